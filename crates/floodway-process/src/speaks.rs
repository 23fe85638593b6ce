//! What a program says of itself before it is started in another's place.
//!
//! In an upgrade a program that is to take the place of the one that runs is first asked which messages its processes speak. One that does not speak as the broker and the
//! descriptor store do is not started.

use serde::{Deserialize, Serialize};

use crate::message::VERSION;
use crate::store::STORE_VERSION;
use crate::upgrade::MAX_VERSION;

/// What a program speaks: it writes this as JSON for `floodway speaks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speaks {
    /// Version of Floodway.
    pub version: String,
    /// Version of the messages between broker and data plane.
    pub protocol: u32,
    /// Version of the messages between broker and descriptor store.
    pub store: u32,
    /// Version of the format in which data planes hand connections over. Those of other versions go off the offload before.
    #[serde(default)]
    pub flows: u32,
}

/// A program that cannot take the place of this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is floodway {}, whose processes speak version {} among themselves and version {} to the descriptor store; those that run speak {VERSION} and \
     {STORE_VERSION} (restart the switch to change to it)", .0.version, .0.protocol, .0.store
)]
pub struct OtherVersion(pub Speaks);

impl Speaks {
    /// What a program of version `version` with these messages, and with this format of connections, speaks.
    #[must_use]
    pub fn own(version: &str, flows: u32) -> Self {
        Self { version: version.to_owned(), protocol: VERSION, store: STORE_VERSION, flows }
    }

    /// Returns the version of the program, and its format of connections, if it can take the place of this one.
    ///
    /// # Errors
    /// It speaks other versions.
    pub fn accept(self) -> Result<(String, u32), OtherVersion> {
        let is_known = (self.protocol, self.store) == (VERSION, STORE_VERSION);
        if is_known && self.version.len() <= MAX_VERSION {
            Ok((self.version, self.flows))
        } else {
            Err(OtherVersion(self))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_other_messages_is_refused_by_name() {
        let own = Speaks::own("1.2.3", 7);
        assert_eq!(own.clone().accept(), Ok(("1.2.3".to_owned(), 7)));
        let others = [
            Speaks { protocol: VERSION + 1, ..own.clone() },
            Speaks { store: STORE_VERSION + 1, ..own.clone() },
            Speaks { version: "1".repeat(MAX_VERSION + 1), ..own },
        ];
        for other in others {
            let error = other.clone().accept().unwrap_err();
            assert_eq!(error, OtherVersion(other.clone()));
            assert!(error.to_string().contains(&format!("version {}", other.protocol)));
        }
    }
}
