//! Time, events, seeds: what every model stands on.

mod barrier;
mod clock;
mod digest;
mod queue;
mod rng;
mod sweep;

pub(crate) use barrier::{Barrier, Broken};
pub use clock::Clock;
pub use digest::Digest;
pub use queue::{EventQueue, Timer};
pub use rng::Rng;
pub use sweep::{Progress, sweep};
