//! `floodway descriptor-store`: keeps what a broker holds for the next one ([`floodway_broker::store`]).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use floodway_broker::store::server;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Keeps what the broker at the other end of standard input gives it until the switch stops; standard output is where the next broker connects. SIGTERM and SIGINT end it, and with it
/// the data plane, while there is no broker.
///
/// # Errors
/// These are no such sockets, or a broker says what it may not.
pub fn run() -> anyhow::Result<()> {
    // It was started by a path that is no name.
    rustix::thread::set_name(c"floodway")?;
    // Nobody of the same user looks into it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // As many as the broker may have, which checks that they are enough.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let terminate = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&terminate))?;
    }
    flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
    let broker = io::stdin().as_fd().try_clone_to_owned()?;
    let listener = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(server::serve(broker, listener, &terminate)?)
}
