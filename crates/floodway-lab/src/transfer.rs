//! The host's end of transfers: sinks and sources in network namespaces.
//!
//! A socket belongs to the namespace of the thread that made it. Sinks are made, and plans run,
//! on threads of this process that enter the namespace first; nothing else of the process leaves its own.
//! Threads inherit the CPUs of whoever starts them: pin the lab first (see [`crate::vcpu::pin`]).

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;

use anyhow::{Context, Result, anyhow};
use floodway_guest::transfer::{self, Plan, Sent, Sink};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::net::Namespace;

/// Opens a sink in a namespace.
///
/// # Errors
/// When the namespace or the address is not to be had.
pub fn listen(namespace: &Namespace, address: SocketAddr) -> Result<Sink> {
    inside(namespace, || Sink::listen(address))?
        .with_context(|| format!("cannot listen on {address} in {}", namespace.name()))
}

/// Runs a plan in a namespace to its end.
///
/// # Errors
/// When the namespace is gone or the plan makes no sense. A transfer that fails is no error: see [`Sent::error`].
pub fn send(namespace: &Namespace, plan: &Plan) -> Result<Vec<Sent>> {
    inside(namespace, || transfer::send(plan))?
        .with_context(|| format!("transfers from {}", namespace.name()))
}

/// Runs `work` on a thread of its own in a namespace, which sockets that it makes belong to.
///
/// # Errors
/// When the namespace is gone.
pub fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce() -> T + Send) -> Result<T> {
    let path = namespace.path();
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<T> {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        });
        thread.join().map_err(|_| anyhow!("a thread panicked"))?
    })
    .with_context(|| format!("cannot enter {}", path.display()))
}
