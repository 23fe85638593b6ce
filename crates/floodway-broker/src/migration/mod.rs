//! Connections follow VMs that move to another host: this broker speaks with the one over there.
//!
//! # Theory of operation
//! **Goal**: a VM that is moved while its connections are offloaded finds them online on the host to which it moves, and no byte that either switch has acknowledged is forgotten by both.
//! What is moved is what a data plane writes for an upgrade, of one port; brokers carry it and never look at it.
//!
//! ```text
//! data plane ── Leaving ──▶ broker ── Expect ──▶ broker ── Arriving ──▶ data plane
//!            ◀── Export ───        ◀─ Expected ─
//!            ── Exported ─▶        ── State ───▶        ── Import ────▶
//!            ◀── Released ─        ◀── Taken ───        ◀── Imported ──
//! ```
//!
//! Where a VM comes from a thread of its own ([`source`]) asks all hosts that the configuration names, at once, whether one of their ports waits for it; the one that says yes is the
//! destination, and if two do, none is. Front-ends decide when hosts are asked, so [`asking`] bounds that. A host that is asked has a thread for each connection ([`destination`]), and the broker's loop looks for the port ([`Moves`]): it has the VM's network and address, and a front-end whose rings
//! have not been started.
//!
//! | stage at the source | ends with | or, and then the port drains by itself |
//! |---|---|---|
//! | asks, until all have answered or the time is over | one yes within [`source::ASKING`] | all refuse or say nothing; two say yes; the VM stays |
//! | follows: a sign of life each way every [`HEARTBEAT`] | `Exported` of its data plane | the VM stays; the data plane dies, or says nothing for [`SILENCE`] after the front-end has gone; the destination is silent for [`SILENCE`], or gives up |
//! | sends, and waits for the VM to run over there | `Taken` | the VM stays, or has not started there after [`source::TAKING`], and the destination has confirmed that it does not run there, or says nothing for [`SILENCE`]. If the port or the switch goes, the state is still sent, and nobody waits |
//!
//! | stage at the destination | ends with | or |
//! |---|---|---|
//! | looks for a port | `Expected` | `Refused` |
//! | waits | `State` | the source is silent, cancels or hangs up; the front-end goes; another one has the port: rings wait for nothing any more |
//! | imports | `Imported` of its data plane | `NotTaken`: the data plane has not taken the state, which a `Cancel` waits for; the front-end goes; the data plane dies |
//!
//! **Who decides** whether connections are here or there is the destination, as only one of both hosts runs the VM, and it hears first if that is this one. A source that is told `Taken` lets go; one
//! that is told anything else, or nothing, keeps what it owes. If the two do not hear of each other any more after `State`, both owe: bytes may come twice, which TCP takes, and never not at all.
//! A destination that has all of the state goes on with it though its source has gone.
//!
//! **A new data plane** at the source ends a move that has not been exported (its connections are met in mid-stream); at the destination it is told of ports that wait, and one that died
//! over an import has taken nothing. **A new broker** knows of no move: connections between hosts have ended with the last one, and data planes end theirs when they hear of it.
//!
//! **Trust.** Hosts know each other by certificates ([`tls`]). *Who has none* costs this process at most [`listener::HANDSHAKES`] threads, each for [`listener::HANDSHAKE`], and 50 handshakes a second; it
//! can keep others from being heard for as long as it tries, and then VMs drain by themselves. *A host that has one* and is hostile can claim to be the source of any VM that is about to start here: it delays
//! its rings by a second, and gives the port connections of its choice, which the data plane checks as a stranger's and which end with the port; the VM's true source is refused meanwhile, so that VM drains. One that
//! is among a source's `hosts` can refuse and lose what VMs bring that move to it; if it says yes to another host's VM, that one drains, unless the other host refuses or is silent: then the hostile one gets the VM's connections
//! (what is in flight of them, and what a peer needs to know to go on), and what was acknowledged can be lost. It holds at most [`listener::SESSIONS_OF_HOST`] connections, each of which can fill memory only for a port that waits for a VM, once, and no more than such a port may need; it may say twice as much as it has to ([`destination`]). A VM that runs is out of its reach.
//!
//! **Invariants**: a port has at most one move, in or out; every `Leaving` that is not taken back is answered; what another host sends is bounded before memory is made for it; no thread here holds up the
//! broker's loop.

mod asking;
mod destination;
pub(crate) mod inbox;
mod link;
mod listener;
mod moves;
mod protocol;
mod source;
#[cfg(test)]
pub(crate) mod testing;
mod tls;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use asking::Askers;
use inbox::Inbox;
pub use moves::Moves;
pub(crate) use moves::TooMuch;
use tls::Keys;
pub use tls::{Files, Trust, TrustError};

use crate::vm::Vm;

/// Between two signs of life.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The other host has gone if it has said nothing for so long.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a message may take.
const MESSAGE: Duration = Duration::from_secs(2);
/// How long the state of a port's connections may take from host to host.
const TRANSFER: Duration = Duration::from_secs(10);

/// Descriptors of a port's moves: an inbox, one for answers, memory twice, and a connection; and inboxes and connections of those that are being ended.
const PER_PORT: usize = 5 + 2 * (asking::IN_A_ROW as usize + 2);

/// What connections between hosts are made by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where other hosts connect.
    pub listen: Option<SocketAddr>,
    /// Names or addresses of hosts that VMs may move to, and ports.
    pub hosts: Vec<(String, u16)>,
    /// How hosts know each other.
    pub trust: Trust,
    /// Version of the format of connections' state.
    pub flows: u32,
}

/// Most descriptors that moves of so many ports take.
pub(crate) fn descriptors(ports: usize) -> usize {
    // The listener and its end, orders, and a file that is read.
    let own = 4;
    // Of another host: socket, inbox, memory that comes, and memory for the data plane.
    let sessions = listener::HANDSHAKES + 4 * listener::SESSIONS;
    // Socket, and what looking a name up takes.
    let askers = 3 * asking::ASKERS;
    own + sessions + askers + PER_PORT * ports
}

/// Why connections follow no VM.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// A file cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// Nobody can connect.
    #[error(
        "migration.listen = \"{address}\": {source}; name an address of this host and a port that is free"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Descriptors or threads have run out.
    #[error("connections cannot follow VMs: {0}")]
    System(#[from] io::Error),
}

/// What a broker's loop and its threads for moves share.
struct Shared {
    settings: Settings,
    keys: Keys,
    orders: Inbox<Order>,
    askers: Arc<Askers>,
    /// The last move that has a number.
    last: AtomicU64,
}

impl Shared {
    /// A number for a move.
    fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// What threads ask of the broker's loop.
enum Order {
    /// Another host takes the connections of the VM that leaves in this move.
    Export { id: u64 },
    /// A move of a VM that leaves is over.
    Left { id: u64, outcome: Result<Went, Stayed> },
    /// Another host asks whether a port waits for a VM.
    Expect(Expected),
    /// The state of its connections is here.
    Import { id: u64, file: OwnedFd, bytes: u64, online: u32 },
    /// It does not come.
    TakeBack { id: u64, reason: String },
    /// Nobody listens to what becomes of it any more: it does not come, unless its state is here.
    Lost { id: u64, reason: String },
}

/// A VM that another host asks for.
struct Expected {
    id: u64,
    vm: Vm,
    /// Which host, for operators.
    host: String,
    inbox: Arc<Inbox<Event>>,
}

/// Connections that went along.
struct Went {
    host: String,
    carried: u32,
    online: u32,
}

/// Connections that did not.
struct Stayed {
    /// Empty if none was found.
    host: String,
    reason: String,
}

/// What the broker's loop says to the thread of a move.
enum Event {
    /// The VM does not leave, or there is nothing any more that could go along.
    Stays(String),
    /// Nobody waits for what becomes of it any more, and what was exported still goes along.
    Abandoned,
    /// What goes along is there.
    Exported { file: File, bytes: u64, online: u32 },
    /// A port waits for the VM, and takes so many bytes.
    Expected { room: u64 },
    /// None does.
    Refused(String),
    /// The data plane has answered.
    Imported { taken: bool, carried: u32, online: u32 },
    /// The port waits no more.
    Gone(String),
}
