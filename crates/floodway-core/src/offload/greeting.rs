//! A guest that sends ahead for a switch that is gone is told of the one that is there.
//!
//! # Theory of operation
//! **Goal.** The module falls back to the guest's own congestion window when heartbeats have stayed away for [`HEARTBEAT_LIFETIME_MS`], or when one of another epoch comes (invariant I6). A switch that is
//! started again after a crash, or to which a guest has been moved, has no flow online, and would send no heartbeat: for the rest of that time the network would get all that the guest
//! sends by its former grant, which is megabytes in the worst case. So the new switch greets the guest, and the former's flows are offline with the guest's next segment.
//!
//! **When.** Once after the guest's rings have started ([`Offload::resume`]), when the guest sends a segment of a connection that the switch does not know, or of which it knows only what it owes ([`adoption`](super::adoption)). The segment also says
//! which address the notice has to go to. A guest that begins a connection instead is told of the switch by that.
//!
//! **How.** A heartbeat counts for the module only if it bears the guest's nonce, which the new switch does not know. The module answers one that does not by saying the nonce, and the
//! second heartbeat bears it. A guest without a module answers nothing, and is not asked again.
//!
//! Invariant: two heartbeats at most for each start of the rings.

use super::config::EarlyAck;
use super::guest::GuestState;
use super::port::{HEARTBEAT_LIFETIME_MS, OffloadShared};
use super::sink::{Link, Sink};

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

impl OffloadShared {
    /// The guest's rings have started.
    pub fn expect_unknown_flows(&mut self) {
        let uses_module = self.config.transmit && self.config.early_ack != EarlyAck::Always;
        self.greeting = if uses_module { Greeting::Wanted } else { Greeting::Done };
    }

    /// The guest has sent a segment, under the header `link`, of a connection that another switch may have had.
    #[inline]
    pub fn greet<B, S: Sink<B>>(&mut self, link: &Link, sink: &mut S) {
        if self.greeting == Greeting::Wanted && self.guest == GuestState::Running {
            self.greet_now(*link, sink);
        }
    }

    /// The guest's nonce is known now.
    pub fn greet_again<B, S: Sink<B>>(&mut self, sink: &mut S) {
        if let Greeting::Asked(link) = self.greeting {
            self.greet_now(link, sink);
        }
    }

    #[cold]
    fn greet_now<B, S: Sink<B>>(&mut self, link: Link, sink: &mut S) {
        sink.heartbeat(&link, HEARTBEAT_LIFETIME_MS);
        self.greeting = if self.module_heard { Greeting::Done } else { Greeting::Asked(link) };
    }
}
