//! File descriptors: as many as all front-ends together can make the switch hold.
//!
//! # Theory of operation
//! A front-end sends descriptors, and a process may only have so many. If one could make the switch hold any number of them, the next
//! one's connection or ring would find none left. So what a port can hold is bounded (a kick and a call for each ring, the connection, what comes
//! with one message; memory's are closed once it is mapped), and a switch starts only if the process may have the sum.
//!
//! Source: `getrlimit(2)`.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{Config, PortConfig};

/// A kick and a call for each of two rings.
const PER_PAIR: u64 = 4;
/// Of a port beside its rings: what comes with one message (32), the listener, three of the connection's stream, two events, and
/// what is open while vCPUs are looked for.
const PER_PORT: u64 = 44;
/// Of a worker: events and what waits for them.
const PER_WORKER: u64 = 2;
/// Of an uplink, also while it is opened again.
const PER_UPLINK: u64 = 8;
/// Of the process: standard streams, log, control socket and its clients, AIO.
const OTHERS: u64 = 64;

/// What is asked for where there is no hard limit: the kernel's default for the highest.
const MANY: u64 = 1 << 20;

/// The process may have too few descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this configuration can need {needed} file descriptors, and the process may have {limit} (raise the hard limit: \
     LimitNOFILE= of its systemd unit, or ulimit -Hn)"
)]
pub struct TooFewDescriptors {
    /// What is needed.
    pub needed: u64,
    /// The hard limit.
    pub limit: u64,
}

/// Most descriptors that a switch with this configuration holds.
#[must_use]
pub fn needed(config: &Config) -> u64 {
    let port = |port: &PortConfig| PER_PORT + PER_PAIR * u64::from(port.queue_pairs);
    let ports: u64 = config.ports.iter().map(port).sum();
    let workers = PER_WORKER * config.workers.len() as u64;
    OTHERS + ports + workers + PER_UPLINK * config.uplinks.len() as u64
}

/// Checks that a process with this one's limits can run `config`, once it has raised them.
///
/// # Errors
/// The hard limit is lower than what it needs.
pub fn check(config: &Config) -> Result<(), TooFewDescriptors> {
    let needed = needed(config);
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if limit < needed { Err(TooFewDescriptors { needed, limit }) } else { Ok(()) }
}

/// Raises the process's limit as far as it can be: for one that cannot do it later, when ports come.
///
/// # Errors
/// That is less than `config` needs.
pub fn reserve_all(config: &Config) -> Result<(), TooFewDescriptors> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Up to the hard limit everybody may; what is refused is found below.
    let current = Some(maximum.unwrap_or(MANY));
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    reserve(config)
}

/// Raises the process's limit to what `config` needs, if it is lower.
///
/// # Errors
/// The hard limit is lower.
pub fn reserve(config: &Config) -> Result<(), TooFewDescriptors> {
    let needed = needed(config);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|limit| limit >= needed) {
        return Ok(());
    }
    let limit = maximum.unwrap_or(u64::MAX);
    let raised = Rlimit { current: Some(needed), maximum };
    if limit < needed || setrlimit(Resource::Nofile, raised).is_err() {
        return Err(TooFewDescriptors { needed, limit });
    }
    tracing::debug!(needed, "limit of file descriptors raised");
    Ok(())
}
