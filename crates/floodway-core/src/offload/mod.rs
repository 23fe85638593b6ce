//! TCP offload for one port: congestion control for what its guest sends, acknowledgement for what
//! it receives, in one flow entry each.
//!
//! # Theory of operation
//! A guest that waits for its CPU answers ACKs tens of milliseconds late. Its peer is a fraction of
//! a millisecond away. So the switch, which always runs, takes over both control loops of TCP:
//!
//! - **Transmit** (`sender`, vFlood): the guest sends far ahead of the congestion window; the switch
//!   stores its segments and releases them under a congestion window of its own, and keeps each byte
//!   until the peer has acknowledged it, so that it can repair losses itself. ACKs stay end to end: the
//!   switch never acknowledges to its own guest, unless [`Config::early_ack`] is on (`sender::early_ack`).
//! - **Receive** (`receiver`, vSnoop): in-order data is acknowledged at once, in the guest's name, and
//!   kept until the guest has acknowledged it itself.
//!
//! The guest hears of it through the receive window of the ACKs that it gets, which is the *grant*
//! (`grant`), and through the notices of its module ([`Sink::notify_flow`], [`Sink::heartbeat`]).
//!
//! Only connections seen from their first SYN are offloaded: a window scale cannot be guessed. Neither are those whose SYNs
//! agree on something that the switch does not know (`handshake`). All else passes as it came. What the machines ask for goes to a [`Sink`], which owns the bytes.
//! A segment from the network changes a flow only if its numbers and its clock are acceptable (`acceptance`).
//!
//! # Time
//! Each call carries the time. [`Offload::next_timeout`] says when [`Offload::handle_timeout`] has to be
//! called at the latest; earlier does no harm. [`Offload::flush`] ends a batch of frames: acknowledgements
//! that found no data to ride on leave then.
//!
//! # Invariants
//! - **I1** Bytes in flight never exceed the smaller of congestion window and receive window.
//! - **I2** The receiver gets exactly what the guest sent.
//! - **I3** A granted right edge is never taken back while the flow is online.
//! - **I4** What the flows of a port use together never exceeds its budget ([`budget`]).
//! - **I5** Offline flows pass byte for byte.
//! - **I7** The guest never has to retransmit because of what the switch holds or repairs, as long as the path is
//!   alive, and shorter than the guest's timeout.
//! - **R1** to **R7**: see `receiver`. **T1** to **T5**, of early acknowledgement: see `sender::early_ack`.
//!
//! (I6, the way back when the switch is gone, is the guest module's.)
//!
//! Source: Gamage et al., "Opportunistic Flooding to Improve TCP Transmit Performance in Virtualized
//! Clouds" (SOCC 2011), sections 3 and 6; RFC 9293, 2883, 3708, 5681, 5682, 6298, 6582, 6675, 6937, 7323, 8985.

mod acceptance;
mod adopted;
mod adoption;
mod age;
pub mod budget;
mod carried;
mod config;
mod connection;
mod counters;
mod debts;
mod delivered;
mod echo;
mod engine;
mod expectation;
mod flow;
mod forgotten;
mod frames;
mod grant;
mod greeting;
mod guest;
mod handshake;
mod input;
pub mod journal;
mod keeping;
mod moving;
mod mtu;
mod online;
mod opening;
mod owing;
mod packed_link;
mod packet;
mod path_mtu;
mod port;
mod receiver;
mod recording;
mod redelivery;
mod reports;
mod sender;
mod sink;
mod state_pool;
mod stopped;
mod store;
mod summary;
mod undelivered;

pub use crate::tcp::{Ecn, Edit, Segment, Side};
pub use adoption::Adoption;
pub use budget::BufferPolicy;
pub use carried::{Carried, FORMAT, Resumption};
pub use config::{Config, EarlyAck, LocalFlows, Transmit};
pub use counters::{CounterCells, Counters};
pub use engine::Offload;
pub use expectation::Expectation;
pub use frames::Refused;
pub use packet::Packet;
pub use port::HEARTBEAT_LIFETIME_MS;
pub use sink::{FlowNotice, Link, Refusal, Sink, SynthesizedSegment, Transmission, Verdict};
pub use summary::{FlowSummary, Reason, RxState, TxState};
