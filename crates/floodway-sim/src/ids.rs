//! Names of what a run has: endpoints, flows and their ends, applications.
//!
//! All parts of the simulator pass them around, so they stand below all of them.

/// An endpoint of flows: a bare machine or a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub u32);

/// Names a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId {
    pub(crate) index: u32,
    pub(crate) generation: u16,
    /// The parts of the network that its client and its server are in; zero if the network is whole.
    pub(crate) parts: [u8; 2],
}

impl FlowId {
    /// Its parts, place and generation in one number.
    pub(crate) const fn number(self) -> u64 {
        let [client, server] = self.parts;
        (client as u64) << 56
            | (server as u64) << 48
            | (self.generation as u64) << 32
            | self.index as u64
    }

    /// Its ends are in different parts of the network.
    pub(crate) const fn crosses(self) -> bool {
        self.parts[0] != self.parts[1]
    }
}

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The end that opened it.
    Client,
    /// The other one.
    Server,
}

impl Side {
    /// The other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}

/// Names an application of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppId(pub(crate) u16);
