//! Which programs a switch of two processes runs: it is upgraded while it runs, so its broker and its data plane may be of different ones.

use serde::{Deserialize, Serialize};

/// Longest version of a program in bytes.
pub const MAX_VERSION: usize = 64;
/// Longest path of a program in bytes (`PATH_MAX` of Linux).
pub const MAX_BINARY: usize = 4096;

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

    /// Lengths of its fields, and what they may be.
    fn lengths(&self) -> [(&'static str, usize, usize); 2] {
        [("version", self.version.len(), MAX_VERSION), ("binary", self.binary.len(), MAX_BINARY)]
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
    /// Connections that were online before it.
    pub online: u32,
    /// Those of them that went on online; the others went off the offload.
    pub carried: u32,
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
    /// Lengths of fields in bytes, and what they may be; all but the problem, which is a reason like others.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (&'static str, usize, usize)> {
        let from = [("from", self.upgrades.from.len(), MAX_VERSION)];
        self.broker.lengths().into_iter().chain(self.data_plane.lengths()).chain(from)
    }
}
