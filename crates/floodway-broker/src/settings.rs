//! Settings that operators made at run time: data planes hand them over, and each is given all of them at its start.
//!
//! A data plane that was taken over can hand over anything, so there is a bound on how many there are; their lengths are bounded by the protocol.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use floodway_process::message::Setting;

/// Settings of each port, and of the switch as a whole, that are kept. Data planes have two for each port, and one more.
const MAX_PER_PORT: usize = 4;

/// More settings than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it makes more settings than there are")]
pub struct TooMany;

/// Settings by key.
#[derive(Debug, Default)]
pub struct Settings(Mutex<BTreeMap<String, Vec<u8>>>);

impl Settings {
    /// Keeps `setting` in the place of the one with the same key, in a switch of so many ports.
    ///
    /// # Errors
    /// There are more than such a switch has.
    pub fn keep(&self, setting: Setting, ports: usize) -> Result<(), TooMany> {
        let mut all = self.lock();
        if all.len() >= MAX_PER_PORT * (ports + 1) && !all.contains_key(&setting.key) {
            return Err(TooMany);
        }
        all.insert(setting.key, setting.value);
        Ok(())
    }

    /// Keeps settings of a broker that has died.
    pub fn resume(&self, settings: Vec<Setting>) {
        self.lock().extend(settings.into_iter().map(|Setting { key, value }| (key, value)));
    }

    /// Forgets the settings with these keys.
    pub fn forget(&self, keys: &[String]) {
        let mut all = self.lock();
        for key in keys {
            all.remove(key);
        }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Setting> {
        let setting =
            |(key, value): (&String, &Vec<u8>)| Setting { key: key.clone(), value: value.clone() };
        self.lock().iter().map(setting).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(key: &str, value: u8) -> Setting {
        Setting { key: key.to_owned(), value: vec![value] }
    }

    #[test]
    fn the_latest_of_each_is_kept_and_there_is_a_bound() {
        let settings = Settings::default();
        for key in ["a", "b", "c", "d"] {
            settings.keep(setting(key, 1), 0).unwrap();
        }
        assert_eq!(settings.keep(setting("e", 1), 0), Err(TooMany));
        settings.keep(setting("a", 2), 0).unwrap();
        settings.forget(&["b".to_owned(), "z".to_owned()]);
        assert_eq!(settings.all(), [setting("a", 2), setting("c", 1), setting("d", 1)]);
        settings.keep(setting("e", 1), 0).unwrap();
        settings.keep(setting("f", 1), 1).unwrap();
    }
}
