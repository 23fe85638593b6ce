//! `floodway run`: the switch in the foreground, from its configuration to a signal.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use floodway_switch::config::migration::NO_BROKER;
use floodway_switch::config::offload::NO_JOURNAL;
use floodway_switch::control::{ControlListener, ControlServer};
use floodway_switch::{Config, Switch};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;
use tracing_subscriber::EnvFilter;

use crate::broker;
use crate::broker::journals::Passed;
use crate::cli::RunArgs;
use crate::log::{Flush, Log};
use crate::notify::Notifier;
use crate::reload::reload;

/// Runs the switch until SIGINT or SIGTERM, or only checks its configuration. On SIGHUP the switch becomes what the file says then.
///
/// # Errors
/// The configuration is not valid, or a socket, device or thread cannot be had.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let passed = Passed::take();
    let config = Config::load(&args.config)?;
    if args.check {
        broker::migration::check(config.migration.as_ref())?;
        return Ok(writeln!(
            io::stdout(),
            "{}: valid: {}",
            args.config.display(),
            summary(&config)
        )?);
    }
    let flush = start_log(&args.log, io::stderr().is_terminal())?;
    end_process_on_panic();
    if !args.single_process {
        // One that comes before there is anything to reload does nothing.
        flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
        let next = broker::run(args, format!("running with {}", summary(&config)), passed)?;
        if let Some(next) = next {
            drop(flush);
            broker::upgrade::replace(&next)?;
        }
        return Ok(());
    }
    check_single(&config)?;
    passed.release();
    // Before there is anything to clean up: from here on a signal ends the wait below, not the
    // process. Once stopping, it ends the process again, in case the stop hangs.
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, Arc::clone(&stopping))?;
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;

    // Before any port is touched: a second switch with this configuration goes no further.
    let listener = ControlListener::bind(&config.control)?;
    let switch = Switch::start(&config)?;
    let control = ControlServer::start(listener, switch.operator())?;
    let running = format!("running with {}", summary(&config));
    tracing::info!(control = %config.control.display(), "{running}");
    let source = switch.status_source();
    let lives = move || {
        source.status();
        true
    };
    let notifier = Notifier::ready(lives, &running)?;

    let mut received = signals.forever().inspect(|&signal| {
        if signal == SIGHUP {
            notifier.reloading();
            reload(&*switch.operator(), &args.config);
            notifier.reloaded();
        }
    });
    let signal = received.find(|&signal| signal != SIGHUP).and_then(signal_name);
    drop(received);
    stopping.store(true, Ordering::Relaxed);
    tracing::info!(signal, "stopping");
    notifier.stopping();
    drop(control);
    switch.stop();
    Ok(())
}

/// Checks that a single process can do what `config` asks for.
fn check_single(config: &Config) -> anyhow::Result<()> {
    if let Some(port) = config.port_that_may_owe() {
        anyhow::bail!("port \"{}\": {NO_JOURNAL}", port.name);
    }
    if config.migration.is_some() {
        anyhow::bail!("migration: {NO_BROKER}");
    }
    Ok(())
}

/// Starts to log what `filter` admits to standard error, with colours if that is a terminal. What is returned waits for the last lines.
///
/// # Errors
/// No thread can be had, or the filter is none.
pub fn start_log(filter: &str, colours: bool) -> anyhow::Result<Flush> {
    let (log, flush) = Log::start(io::stderr())?;
    tracing_subscriber::fmt()
        .with_writer(log)
        .with_ansi(colours)
        .with_env_filter(EnvFilter::try_new(filter)?)
        .init();
    Ok(flush)
}

/// Ends the process if any thread panics: half a switch is worse than none, and its supervisor starts the next one.
pub fn end_process_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// What the configuration describes, in numbers.
pub fn summary(config: &Config) -> String {
    let count = |n: usize, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let workers = count(config.workers.len(), "worker");
    let ports = count(config.ports.len(), "port");
    format!("{workers}, {ports}, {}", count(config.uplinks.len(), "uplink"))
}
