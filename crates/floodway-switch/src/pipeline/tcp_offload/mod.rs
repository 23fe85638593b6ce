//! TCP offload: how a port's engine ([`floodway_core::offload`]) is put into the packet path.
//!
//! # Theory of operation
//! The engine decides and owns no bytes; here are the bytes. Each port has one engine behind one
//! lock. A [`Session`] is one hold of that lock: it shows frames to the engine, carries out what the
//! engine asks for (`egress`) and forwards what the engine lets pass, edited (`frame::headers`). Frames
//! that the engine keeps are copied once into buffers of the port (`frame::pool`, `frame::held`); from there
//! they leave with new headers and without another copy.
//!
//! **Which frames** (`frame::describe`): whole TCP segments between a guest and an uplink, with at most one
//! VLAN tag, without IP options or extension headers, and with a checksum that is partial, validated
//! by the host's kernel, or found right here. All others pass by as they are. Frames between guests of this
//! switch never come here, and a port that does not use offload pays for one flag that it does not.
//!
//! **Order**: what an engine says must leave in the order in which it says it, although frames of a
//! port come to it from two workers, its own and its uplink's. So everything leaves inside the
//! session. The order in `lock_order` is what makes that safe.
//!
//! **Time**: an engine's next timeout is published outside of its lock ([`PortOffload::next_timeout`](crate::state::offload::PortOffload::next_timeout)). The
//! port's own worker runs it; whoever brings it forward wakes that worker if it sleeps for too long.
//!
//! **A guest that stops** ([`floodway_core::offload`], its module on stopped guests): the engine is suspended when the port's
//! last receive ring stops, whatever the reason. The port's worker resumes it when rings run again, hands kept frames over
//! when the guest's address shows up elsewhere, and aborts it when no front-end has been connected for one to two seconds.
//!
//! **Invariants**: memory for kept frames is bounded by the port's budgets (`frame::pool`); what the
//! engine does not know passes unchanged; a frame that is not what its checksum says is never kept
//! and never changes a flow's state.

mod egress;
#[cfg(test)]
mod report_tests;
mod session;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod too_big;

pub use session::Session;
