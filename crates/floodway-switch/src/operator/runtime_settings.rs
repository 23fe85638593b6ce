//! Settings that were made at run time, for whoever keeps them beyond this process.
//!
//! # Theory of operation
//! After each change the whole group of settings that it belongs to is handed over, under a key and in the words of the control socket: the latest under each key
//! is all that a later process needs to be told ([`apply`]). What is handed back may have been written by a process that a guest had taken over; it
//! passes the checks that an operator's changes pass.
//!
//! | key | value |
//! |---|---|
//! | `offload/PORT` | [`OffloadChange`] with all settings of the port |
//! | `drain/PORT` | [`DrainRequest`] |
//! | `inbound` | [`InboundChange`] with all settings |

use std::sync::Arc;

use serde::Serialize;

use super::ControlApi;
use crate::api::control::{
    ControlError, DrainRequest, InboundChange, OffloadChange, OffloadSettings,
};
use crate::state::shared::Shared;

/// Why a setting was not made.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// This version knows no such key.
    #[error("setting \"{0}\" is not known")]
    UnknownKey(String),
    /// Its value is not what the key has.
    #[error("the value of setting \"{key}\" is not understood: {source}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A value is out of its range, or its port does not exist.
    #[error(transparent)]
    Refused(#[from] ControlError),
}

/// A setting to be kept.
pub(super) enum Kept<'a> {
    Offload(&'a str, &'a OffloadSettings),
    Drain(&'a str, bool),
    Inbound(&'a InboundChange),
}

/// Hands `setting` to whoever keeps settings, if there is somebody.
pub(super) fn keep(shared: &Shared, setting: &Kept<'_>) {
    match setting {
        Kept::Offload(port, settings) => {
            hand_over(shared, &format!("offload/{port}"), &OffloadChange::from(*settings));
        }
        Kept::Drain(port, draining) => {
            hand_over(shared, &format!("drain/{port}"), &DrainRequest { draining: *draining });
        }
        Kept::Inbound(change) => hand_over(shared, "inbound", change),
    }
}

fn hand_over(shared: &Shared, key: &str, value: &impl Serialize) {
    let Some(keeper) = shared.settings_keeper.get() else { return };
    match serde_json::to_vec(value) {
        Ok(value) => keeper(key, value),
        Err(error) => tracing::error!(key, %error, "a setting is not kept"),
    }
}

/// Makes a setting that was kept.
///
/// # Errors
/// It is none; nothing is changed.
pub(crate) fn apply(shared: &Arc<Shared>, key: &str, value: &[u8]) -> Result<(), SettingError> {
    let unreadable = |source| SettingError::Value { key: key.to_owned(), source };
    match key.split_once('/') {
        Some(("offload", port)) => {
            let change = serde_json::from_slice(value).map_err(unreadable)?;
            shared.offload(port, &change)?;
        }
        Some(("drain", port)) => {
            let DrainRequest { draining } = serde_json::from_slice(value).map_err(unreadable)?;
            shared.drain(port, Some(draining))?;
        }
        None if key == "inbound" => {
            let change = serde_json::from_slice(value).map_err(unreadable)?;
            shared.inbound(&change)?;
        }
        _ => return Err(SettingError::UnknownKey(key.to_owned())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;
    use crate::Config;
    use crate::api::settings::adopt;

    fn config() -> Config {
        let text = "[[port]]\nname = \"ab\"\nsocket = \"/unused\"\n";
        Config::parse(text, "test".as_ref()).unwrap()
    }

    fn switch() -> Arc<Shared> {
        Shared::without_threads(&config()).unwrap()
    }

    type Keys = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

    fn kept_by(shared: &Shared) -> Keys {
        let keys = Keys::default();
        let to = Arc::clone(&keys);
        let keeper = move |key: &str, value: Vec<u8>| {
            to.lock().unwrap().insert(key.to_owned(), value);
        };
        assert!(shared.settings_keeper.set(Box::new(keeper)).is_ok());
        keys
    }

    #[test]
    fn another_switch_has_the_same_settings_after_all_that_was_kept() {
        let first = switch();
        let keys = kept_by(&first);
        let offload = OffloadChange {
            transmit: Some(true.into()),
            congestion: Some("vegas".to_owned()),
            idle_s: Some(77),
            ..OffloadChange::default()
        };
        first.offload("ab", &offload).unwrap();
        let more = OffloadChange { budget: Some(1 << 20), ..OffloadChange::default() };
        first.offload("ab", &more).unwrap();
        let inbound = InboundChange {
            capacity_mbit: Some(1000),
            police_udp: Some(true),
            ..InboundChange::default()
        };
        first.inbound(&inbound).unwrap();
        first.drain("ab", Some(true)).unwrap();

        let second = switch();
        for (key, value) in &*keys.lock().unwrap() {
            apply(&second, key, value).unwrap();
        }
        // So has a configuration.
        let mut config = config();
        for (key, value) in &*keys.lock().unwrap() {
            adopt(&mut config, key, value).unwrap();
        }
        let ports = first.ports();
        assert_eq!(config.ports[0].offload, *ports.list()[0].offload.machine().engine.config());
        assert_eq!(config.inbound, first.inbound.with(|state| state.core.config().clone()));
        let none = OffloadChange::default();
        assert_eq!(first.offload("ab", &none).unwrap(), second.offload("ab", &none).unwrap());
        let settings = |shared: &Arc<Shared>| {
            let status = shared.inbound(&InboundChange::default()).unwrap();
            crate::api::control::InboundStatus { ports: Vec::new(), ..status }
        };
        assert_eq!(settings(&first), settings(&second));
        assert_eq!(settings(&second).capacity_bps, 1_000_000_000);
        assert!(second.drain("ab", None).unwrap().draining);
        assert_eq!(keys.lock().unwrap().len(), 3, "what is only shown is not kept");
    }

    #[test]
    fn what_is_no_setting_changes_nothing() {
        let shared = switch();
        let before = shared.offload("ab", &OffloadChange::default()).unwrap();
        let wrong = [
            ("offload/zz", "{\"transmit\": true}"),
            ("offload/ab", "{\"transmit\": true, \"budget\": 1}"),
            ("offload/ab", "{"),
            ("offload/ab", "{\"other\": 1}"),
            ("drain/ab", "{}"),
            ("inbound", "{\"capacity_mbit\": 99999999999}"),
            ("inbound/ab", "{}"),
            ("", "{}"),
        ];
        for (key, value) in wrong {
            assert!(apply(&shared, key, value.as_bytes()).is_err(), "{key}: {value}");
            if !key.starts_with("drain") {
                let mut config = config();
                assert!(adopt(&mut config, key, value.as_bytes()).is_err(), "{key}: {value}");
                assert_eq!(config, self::config());
            }
        }
        assert_eq!(shared.offload("ab", &OffloadChange::default()).unwrap(), before);
    }
}
