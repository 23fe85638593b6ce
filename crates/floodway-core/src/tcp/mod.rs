//! What every mechanism that looks at TCP shares: sequence numbers, segments without their bytes, changes to headers, what
//! SYNs agree on, and the estimate of the round trip.
//!
//! Nothing here has a policy. [`offload`](crate::offload), [`inbound`](crate::inbound) and [`congestion`](crate::congestion) stand above it and
//! know nothing of each other's segments.

pub(crate) mod ecn;
mod edit;
pub mod rtt;
mod segment;
pub mod seq;

pub use edit::Edit;
pub use segment::{Ecn, Segment, Side};
pub use seq::Seq;
