//! File descriptors: as many as all front-ends together can make the broker hold.
//!
//! # Theory of operation
//! What a record may hold is bounded, and so is what a message may bring. A broker starts only if the process may have the sum for all its ports, and takes another port
//! only if it may have it then, so no front-end can take another's.
//!
//! Source: `getrlimit(2)`.

use floodway_process::message::MAX_DESCRIPTORS;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::migration;
use crate::record::Limits;

/// Of a port beside its record: a message that is outstanding and one that is arriving, two of the listener, connection, channels of two data planes, event,
/// journal.
const PER_PORT: usize = 2 * MAX_DESCRIPTORS + 11;
/// Of an uplink: a device, and another one that takes its place.
const PER_UPLINK: usize = 8;
/// Of the process: standard streams, main channel, process descriptor, configuration, signals, manage socket and its clients.
const OTHERS: usize = 64;

/// The process may have too few descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the broker can need {needed} file descriptors for this configuration, and the process may have {limit} (raise the hard limit: \
     LimitNOFILE= of its systemd unit, or ulimit -Hn)"
)]
pub struct TooFewDescriptors {
    /// What is needed.
    pub needed: u64,
    /// The hard limit.
    pub limit: u64,
}

/// Most descriptors that a broker holds for ports with these limits and for so many uplinks, and for VMs that move to other hosts and from them if these have connections with it.
#[must_use]
pub fn needed(ports: &[Limits], uplinks: usize, has_hosts: bool) -> u64 {
    let moves = if has_hosts { migration::descriptors(ports.len()) } else { 0 };
    let ports: usize = ports.iter().map(|limits| limits.descriptors + PER_PORT).sum();
    (OTHERS + ports + PER_UPLINK * uplinks + moves) as u64
}

/// Raises the process's limit to what is [`needed`], if it is lower.
///
/// # Errors
/// The hard limit is lower.
pub fn reserve(ports: &[Limits], uplinks: usize, has_hosts: bool) -> Result<(), TooFewDescriptors> {
    let needed = needed(ports, uplinks, has_hosts);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|limit| limit >= needed) {
        return Ok(());
    }
    let limit = maximum.unwrap_or(u64::MAX);
    let raised = Rlimit { current: Some(needed), maximum };
    if limit < needed || setrlimit(Resource::Nofile, raised).is_err() {
        return Err(TooFewDescriptors { needed, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_had_or_named() {
        let few = [Limits::of_port(2); 2];
        assert_eq!(reserve(&few, 2, true), Ok(()));
        let needed_with = needed(&few, 2, true);
        assert!(getrlimit(Resource::Nofile).current.is_none_or(|limit| limit >= needed_with));
        assert_eq!(needed_with - needed(&few, 2, false), 1300 + 2 * 17);
        let many = [Limits { entries: 1, bytes: 1, descriptors: 1 << 60 }; 1];
        let error = reserve(&many, 0, false).unwrap_err();
        assert_eq!(error.needed, needed(&many, 0, false));
    }
}
