//! How the transmit offload of a port is written: `true` and `false`, as before there were modes, or the name of a mode.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

pub use floodway_core::offload::Transmit;
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a value must be.
pub const MUST: &str = "must be true, false, \"module\", \"agentless\" or \"auto\"";

/// A mode. `true` is that for guests with the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitSetting(pub Transmit);

impl TransmitSetting {
    /// Returns `true` unless it is off.
    #[must_use]
    pub fn is_on(self) -> bool {
        self.0 != Transmit::Off
    }
}

impl From<bool> for TransmitSetting {
    fn from(on: bool) -> Self {
        Self(if on { Transmit::Module } else { Transmit::Off })
    }
}

/// No mode has that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownMode;

impl FromStr for TransmitSetting {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let modes = [Transmit::Module, Transmit::Agentless, Transmit::Auto];
        modes.into_iter().find(|mode| mode.name() == name).map(Self).ok_or(UnknownMode)
    }
}

impl fmt::Display for TransmitSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

impl Serialize for TransmitSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Transmit::Off => serializer.serialize_bool(false),
            Transmit::Module => serializer.serialize_bool(true),
            Transmit::Agentless | Transmit::Auto => serializer.serialize_str(self.0.name()),
        }
    }
}

impl<'de> Deserialize<'de> for TransmitSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = TransmitSetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, \"module\", \"agentless\" or \"auto\"")
            }

            fn visit_bool<E: Error>(self, on: bool) -> Result<TransmitSetting, E> {
                Ok(on.into())
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<TransmitSetting, E> {
                name.parse().map_err(|_| E::invalid_value(serde::de::Unexpected::Str(name), &self))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for TransmitSetting {
    fn schema_name() -> Cow<'static, str> {
        "TransmitSetting".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`true` is \"module\".",
            "enum": [false, true, "module", "agentless", "auto"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_true_or_false_is_still_written_so() {
        for (json, mode) in [
            ("false", Transmit::Off),
            ("true", Transmit::Module),
            ("\"agentless\"", Transmit::Agentless),
            ("\"auto\"", Transmit::Auto),
        ] {
            let setting: TransmitSetting = serde_json::from_str(json).unwrap();
            assert_eq!((setting.0, serde_json::to_string(&setting).unwrap()), (mode, json.into()));
        }
        let module: TransmitSetting = serde_json::from_str("\"module\"").unwrap();
        assert_eq!(module.0, Transmit::Module);
        for bad in ["\"off\"", "\"agent\"", "1", "null"] {
            assert!(serde_json::from_str::<TransmitSetting>(bad).is_err(), "{bad}");
        }
    }
}
