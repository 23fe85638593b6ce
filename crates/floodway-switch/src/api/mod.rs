//! The documents of the control socket: what can be asked of a running switch, and what it answers. Data only, so that whatever
//! has a state can describe it.

pub mod diagnosis;
pub mod operate;
pub mod status;
