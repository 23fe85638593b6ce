//! TCP as a guest's kernel runs it, sans-IO: segments and time go in, segments and deadlines come out.
//!
//! # Theory of operation
//! A [`Connection`] is one end. Its [`Sender`] half finds losses and says what may be sent, with congestion
//! control from `floodway-core`; its [`Receiver`] half puts data in order and decides when to acknowledge.
//! Payload is a number of bytes. Positions are 64-bit offsets into the stream: the SYN is at 0, data
//! begins at 1, and the FIN follows the last byte. They become sequence numbers of 32 bits, which wrap, only in segments.
//!
//! | part | source |
//! |---|---|
//! | states, windows, silly-window avoidance, probes | RFC 9293 |
//! | slow start, congestion avoidance, fast retransmit | RFC 5681, by `floodway_core::congestion` |
//! | recovery with SACK; without | RFC 6675, 2018; RFC 6582 |
//! | sending in recovery | RFC 6937 |
//! | limited transmit | RFC 3042 |
//! | retransmission timer | RFC 6298, with any minimum |
//! | timestamps, PAWS, window scale | RFC 7323 |
//! | initial window | RFC 6928, or any |
//! | ECN; DCTCP's echo | RFC 3168; RFC 8257 section 3.2 |
//! | what waits below TCP | Linux, TCP small queues |
//! | window auto-tuning | Fisk and Feng, "Dynamic right-sizing in TCP", 2001, with Linux's numbers |
//! | lost retransmissions, if wanted | RFC 8985, the rule of its section 6.2 without a reordering window |
//!
//! Not modelled: the rest of RACK, tail-loss probe, F-RTO, Nagle, urgent data, simultaneous open, SYN cookies. A
//! side that has closed answers a repeated FIN until the other side has closed, too, so TIME-WAIT needs no timer.

mod autotune;
mod config;
mod connection;
mod receiver;
mod scoreboard;
mod sender;
mod small_queue;

pub use autotune::Buffer;
pub(crate) use config::Stacks;
pub use config::TcpConfig;
pub use connection::{Connection, State};
pub use receiver::Receiver;
pub use sender::{Sender, SenderStats};
