//! Inbound rates: the link into the host, divided among its VMs by demand.
//!
//! # Theory of operation
//! **Goal.** Who shares a host shares the link into it, and the place where that link overflows, the port
//! of the switch in front of the host, belongs to nobody here. So the senders are held back before
//! they send: TCP sends no further than the right edge that its receiver advertises, and every
//! acknowledgement of a VM passes through this switch.
//!
//! **Rates** ([`allocation`]). `C_i = C * w_i / sum(w)` (the paper's eq. 3), where the weight of a VM is the number
//! of its active connections up to a cap, or what another [`Policy`] says; no VM gets less than the minimum.
//! Computed anew at each change of a weight ([`allocator`]). Beyond the paper, what a VM demonstrably does not use is lent to
//! those that can use it (water filling), if the operator wants that.
//!
//! **Active connections** ([`WindowClamp`]). A connection counts from the end of its handshake, and again whenever it
//! receives data, until it has received none for a while, its peer has closed, or it was reset. What was
//! never answered does not count: a flood of SYNs gains nothing. A connection met in
//! mid-stream counts when its VM acknowledges data on it.
//!
//! **Enforcement.** Two bounds on the right edge of each connection that leaves the host:
//! - *Window* (eq. 4): `wnd_j / RTT_j` summed over a VM's connections is a small multiple of `C_i`, with
//!   each connection's own RTT, so that long and short paths get the same rate. It bounds what
//!   senders can have in flight at once, not their rate.
//! - *Pacing*: the edges of a VM's connections together advance no faster than `C_i` ([`pacer`]), in equal
//!   portions, in turn. The RTT on a modern network is so short that `C_i * RTT` is less than two
//!   segments for each of a dozen connections, where no window can express the rate; and an RTT measured wrongly
//!   would be a rate gone wrong. An acknowledgement that would leave its sender with less than two segments waits
//!   for its turn; one that leaves more goes at once, and a window update follows. What arrives without having
//!   been granted (retransmissions, UDP, pure ACKs) is taken off what is granted next, and so is what was granted long ago and
//!   comes only now (`unused_credit`).
//! - *Turns* (`request_pacing`). No window is less than two segments, and idle connections keep theirs: many that wake up at once are a
//!   burst that no pacing of edges holds back. What wakes them up leaves through here: the VM's requests, and its SYN-ACKs. They leave
//!   at the rate at which what they invite fits the link.
//!
//! **RTT.** The edge follows what has arrived at the switch, so the time that counts is that from an advance of the right
//! edge to the first data beyond the old one (at first that from SYN to SYN-ACK, or SYN-ACK to ACK), and not what the
//! guest takes for an ACK. It counts as its minimum plus what the burst may queue at the
//! port: the smoothed one would let a standing queue pay for its own growth. Linux's receiver estimates by
//! timestamps of 1 ms or by windows filled, which at 100 us says nothing.
//!
//! # Invariants
//! - **N1** A right edge is never taken back, and no window that leaves is larger than the VM's own.
//! - **N2** Where the VM's own window allows it, no window that leaves is under two segments.
//! - **N3** ACK numbers leave in the order in which the VM said them.
//! - **N4** The rates of all VMs add up to the capacity, to the bit; none is below the minimum.
//! - **N5** What is kept is bounded: one ACK for each connection and 1024 requests and SYN-ACKs each, nothing longer than [`MAX_HOLD`].
//! - **N6** A connection whose window scale is not known is never changed, nor is one that its SYNs exclude. A segment with an unknown
//!   option is neither held nor absorbed.
//!
//! # Limits
//! Two segments for each of many connections can be more than the rate times the path: what does not fit is
//! spread by pacing, until [`MAX_HOLD`] lets the floor win over the rate (at 30 KB/s for each connection). A sender may
//! use at once what it was granted and did not use: at most its window. Connections whose SYNs have an unknown option (TCP-MD5, TCP-AO,
//! MPTCP) or agree on AccECN are left alone (`handshake`): they count for the division and keep to no rate.
//!
//! Source: Hwang, Hong and Suh, "Dynamic Inbound Rate Adjustment Scheme for Virtualized Cloud Data Centers"
//! (IEICE Transactions E99-D, 2016); RFC 9293 section 3.8.6 (windows), RFC 7323 section 2 (scale).

pub mod allocation;
pub mod allocator;
mod clamp;
mod config;
mod connection;
mod counters;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handshake;
mod meter;
mod paced_queue;
pub mod pacer;
mod port;
mod request_pacing;
mod unused_credit;
mod waiting;
mod window;
mod window_rtt;

pub use allocation::Allocator;
pub use allocator::BandwidthAllocator;
pub use config::{Config, Policy};
pub use counters::{CounterCells, Counters};
pub use port::{Sink, Verdict, WindowClamp};
pub use waiting::MAX_HOLD;
