//! What a process takes of its host: CPUs, descriptors, names of sockets, lines in the log.

pub(crate) mod affinity;
pub mod descriptors;
pub(crate) mod log_limit;
pub mod socket_access;
pub mod socket_file;
