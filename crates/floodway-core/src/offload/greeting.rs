//! Ends the flood of a guest that still sends ahead for a switch that is gone.
//!
//! # Theory of operation
//! **Goal.** The module falls back to the guest's own congestion window when heartbeats have stayed away for [`HEARTBEAT_LIFETIME_MS`](super::HEARTBEAT_LIFETIME_MS), or when one of another epoch comes (invariant I6). A switch that is
//! started again after a crash, or to which a guest has been moved, has no flow online, and would send no heartbeat: for the rest of that time the network would get all that the guest
//! sends by its former grant, which is megabytes in the worst case. So the new switch greets the guest, whose flows of the former switch are offline from its next segment on.
//!
//! **When.** Once after the guest's rings have started ([`Offload::resume`](super::Offload::resume)), when the guest sends a segment of a connection that the switch does not know, or of which it knows only what it owes ([`adoption`](super::adoption)). The segment also says
//! which address the notice has to go to. A guest that begins a connection instead hears of the switch by the notices of that connection.
//!
//! **How.** A heartbeat counts for the module only if it bears the guest's nonce, which the new switch does not know. The module answers one that does not by saying the nonce, and the
//! second heartbeat bears it. A guest without a module answers nothing, and is not asked again.
//!
//! Invariant: two heartbeats at most for each start of the rings.

use super::config::{Config, EarlyAck};
use super::sink::Link;

/// Whether the guest has been greeted since its rings started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Greeting {
    /// It will be when it sends for a switch that is gone.
    Wanted,
    /// A heartbeat has gone to this address of a guest whose nonce is not known.
    Asked(Link),
    /// It has been, or need not be.
    Done,
}

impl Greeting {
    /// For a guest whose rings have started.
    pub fn of_started(config: &Config) -> Self {
        let uses_module = config.transmit && config.early_ack != EarlyAck::Always;
        if uses_module { Self::Wanted } else { Self::Done }
    }

    /// After a heartbeat to `link`, which bears the guest's nonce if the module `is_heard`.
    pub fn after_heartbeat(link: Link, is_heard: bool) -> Self {
        if is_heard { Self::Done } else { Self::Asked(link) }
    }
}
