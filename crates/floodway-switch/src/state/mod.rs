//! What workers, front-ends' threads and the control socket share.

pub mod port;
pub mod workers;
