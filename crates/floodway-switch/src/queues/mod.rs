//! The queues between guest and switch: virtqueues, what is taken from them and given to them, and when either side is
//! interrupted for it.

pub mod call;
pub mod moderation;
pub mod ring;
pub mod rx;
pub mod tx;
pub mod virtqueue;
