//! How connections fare that follow VMs from host to host, as operators see it.

use serde::{Deserialize, Serialize};

/// All moves since the broker was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves {
    /// VMs whose connections went to another host.
    pub left: u32,
    /// VMs whose connections came from another host.
    pub arrived: u32,
    /// VMs whose connections did not follow them, either way.
    pub failed: u32,
    /// VMs that are about to leave.
    pub leaving: u16,
    /// Ports that wait for VMs.
    pub arriving: u16,
    /// The last one that is over.
    pub last: Option<Move>,
}

/// A move that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// One more than that of the one before.
    pub number: u32,
    /// The port's name.
    pub port: String,
    /// It came here.
    pub inward: bool,
    /// The other host; empty if none was found.
    pub host: String,
    /// Connections that were online where it came from, as far as that is known.
    pub online: u32,
    /// Those that are online where it went.
    pub carried: u32,
    /// Why connections did not follow, if they did not.
    pub problem: Option<String>,
}

impl Moves {
    /// Each text with its name and its length.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let last = self.last.iter();
        last.flat_map(|last| {
            let problem = last.problem.as_ref().map_or(0, String::len);
            [("port", last.port.len()), ("host", last.host.len()), ("problem", problem)]
        })
    }
}
