//! What threads share without waiting for long: deadlines, the order of locks, and the atomics of both.

pub(crate) mod atomics;
pub(crate) mod deadline;
pub(crate) mod lock_order;
