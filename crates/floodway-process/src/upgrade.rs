//! Which programs a switch of two processes runs, and what a program says of itself before it is started in another's place.
//!
//! A switch is upgraded while it runs, so its broker and its data plane may be of different builds for a moment. A program that is to take their place is first asked
//! what it [speaks](Speaks): one that does not speak as the broker and the descriptor store do is not started.

use serde::{Deserialize, Serialize};

use crate::message::{MAX_REASON, VERSION, Violation, at_most};
use crate::store::STORE_VERSION;

/// Longest version of a program in bytes.
pub const MAX_VERSION: usize = 64;
/// Longest path of a program in bytes (`PATH_MAX` of Linux).
pub const MAX_BINARY: usize = 4096;

/// What a program speaks: it writes this as JSON for `floodway speaks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speaks {
    /// Version of Floodway.
    pub version: String,
    /// Version of the messages between broker and data plane.
    pub protocol: u32,
    /// Version of the messages between broker and descriptor store.
    pub store: u32,
}

/// A program that cannot take the place of this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is floodway {}, whose processes speak version {} among themselves and version {} to the descriptor store; those that run speak {VERSION} and \
     {STORE_VERSION} (restart the switch to change to it)", .0.version, .0.protocol, .0.store
)]
pub struct OtherVersion(pub Speaks);

impl Speaks {
    /// What a program of version `version` with these messages speaks.
    #[must_use]
    pub fn own(version: &str) -> Self {
        Self { version: version.to_owned(), protocol: VERSION, store: STORE_VERSION }
    }

    /// Returns the version of the program if it can take the place of this one.
    ///
    /// # Errors
    /// It speaks other versions.
    pub fn accept(self) -> Result<String, OtherVersion> {
        let is_known = (self.protocol, self.store) == (VERSION, STORE_VERSION);
        if is_known && self.version.len() <= MAX_VERSION {
            Ok(self.version)
        } else {
            Err(OtherVersion(self))
        }
    }
}

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Version of Floodway.
    pub version: String,
    /// Path of its file when it was started.
    pub binary: String,
}

impl Program {
    /// The program `version` at `binary`, of which as much is kept as a message can have.
    #[must_use]
    pub fn new(version: &str, binary: &str) -> Self {
        let cut = |text: &str, max| text[..text.floor_char_boundary(max)].to_owned();
        Self { version: cut(version, MAX_VERSION), binary: cut(binary, MAX_BINARY) }
    }

    fn check(&self) -> Result<(), Violation> {
        at_most("version", self.version.len(), MAX_VERSION)?;
        at_most("binary", self.binary.len(), MAX_BINARY)
    }
}

/// Upgrades of a switch since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgrades {
    /// Attempts, those that failed among them.
    pub attempts: u32,
    /// Those that were made.
    pub count: u32,
    /// When the last one was made, in seconds since 1970 (UTC).
    pub at: u64,
    /// Version of the data plane before it.
    pub from: String,
    /// Microseconds from the time when the data plane before it was told to let go until the next one served.
    pub pause_us: u64,
    /// Why the last attempt failed, if it did.
    pub problem: Option<String>,
}

/// The programs that run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// That of the broker.
    pub broker: Program,
    /// That of the data plane.
    pub data_plane: Program,
    /// How they came to run.
    pub upgrades: Upgrades,
}

impl Programs {
    /// Checks all bounds.
    ///
    /// # Errors
    /// The first field that exceeds its bound.
    pub fn check(&self) -> Result<(), Violation> {
        self.broker.check()?;
        self.data_plane.check()?;
        at_most("from", self.upgrades.from.len(), MAX_VERSION)?;
        at_most("problem", self.upgrades.problem.as_ref().map_or(0, String::len), MAX_REASON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{MAX_DATAGRAM, ToDataPlane, encode};

    #[test]
    fn a_program_of_other_messages_is_refused_by_name() {
        let own = Speaks::own("1.2.3");
        assert_eq!(own.clone().accept().as_deref(), Ok("1.2.3"));
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

    #[test]
    fn the_longest_programs_fit_into_a_message() {
        let long = |max| "é".repeat(max);
        let program = Program::new(&long(MAX_VERSION), &long(MAX_BINARY));
        let upgrades = Upgrades {
            from: program.version.clone(),
            problem: Some("x".repeat(MAX_REASON)),
            ..Upgrades::default()
        };
        let programs = Programs { broker: program.clone(), data_plane: program, upgrades };
        let bytes = encode(&ToDataPlane::Programs(programs)).unwrap();
        assert!(bytes.len() <= MAX_DATAGRAM);
    }
}
