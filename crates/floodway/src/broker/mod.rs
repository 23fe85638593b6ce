//! `floodway run`: holds the VMs' sockets and all else that takes rights, and keeps a data plane running behind them. Changes of the configuration come
//! in here, too.

mod beginning;
pub mod journals;
pub mod migration;
mod ports;
mod reload;
mod supervision;
pub mod upgrade;
mod uplinks;
mod user;
mod vcpus;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use floodway_broker::broker::{Broker, BrokerError, Outcome, Progress};
use floodway_broker::transaction::Transaction;
use floodway_broker::upgrade::{Candidate, UpgradeControl};
use floodway_process::sandbox::User;
use floodway_switch::Config;
use floodway_switch::api::control::store_path;
use floodway_switch::control::{ControlListener, ControlServer};
use floodway_switch::operator::ConfigApi;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::cli::RunArgs;
use beginning::{Beginning, Held};
use journals::{Journals, Passed};
use ports::Ports;
use reload::Reload;
use supervision::Supervision;
use upgrade::Upgrader;

/// Of the environment, what children get: whether a panic is reported with the calls that led to it, and in debug builds where tests end them.
const PASSED_ON: &[&str] = &[
    "RUST_BACKTRACE",
    #[cfg(debug_assertions)]
    floodway_process::fault::VARIABLE,
];

/// Serves until SIGINT or SIGTERM; `running` is what the service manager shows, `passed` what it has from the last switch. Returns the program that is to be executed in the place of this one, if there is
/// one: nothing has stopped then.
///
/// # Errors
/// A socket cannot be had, or the first data plane does not start.
pub fn run(args: &RunArgs, running: String, passed: Passed) -> anyhow::Result<Option<Candidate>> {
    // It may have been executed by a path that is no name.
    rustix::thread::set_name(c"floodway")?;
    // One text for both processes, whatever becomes of the file.
    let configuration = fs::read_to_string(&args.config)?;
    let config = Config::parse(&configuration, &args.config)?;
    let (stop, stopped) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        pipe::register(signal, stop.try_clone()?)?;
    }
    upgrade::unblock_signals()?;
    // Before any port is touched: a second switch with this configuration goes no further.
    let beginning = beginning::begin(config, configuration, !args.no_descriptor_store)?;
    let (store, is_new) = (beginning.store.clone(), beginning.held.past.is_none());
    let outcome = serve(args, running, (beginning, Journals::new(passed)), &stopped);
    if outcome.is_err() && is_new {
        // What a broker of before has left may be taken over by yet another one.
        store.close();
    }
    outcome
}

/// Serves with what it begins with, until `stopped` becomes readable.
fn serve(
    args: &RunArgs,
    running: String,
    (beginning, journals): (Beginning, Journals),
    stopped: &UnixStream,
) -> anyhow::Result<Option<Candidate>> {
    let Beginning { control, store, config, configuration, held } = beginning;
    let manage = ControlListener::bind_manage(&config.control)?;
    let (faults, heard) = mpsc::channel();
    let Held { numbers, state, uplinks, settings, left, past, programs, replacing } = held;
    // The file may say something else than what a broker of before has left. An upgrade changes nothing of that.
    let differs =
        past.is_some() && !replacing && fs::read_to_string(&args.config)? != configuration;
    let control_path = config.control.clone();
    let moves = migration::start(config.migration.as_ref(), past.is_some())?;
    let (left, faults) = ((left, journals), (faults, store.clone()));
    let ports = Ports::open(config, &configuration, (numbers, uplinks), faults, left)?;
    let ports = Arc::new(ports);
    ports.settings().resume(settings);
    let start = starter(args, &control_path)?;
    // Before anybody changes it, which waits for the broker's loop.
    let layout = Transaction::new(ports.layout());
    let supervision = Supervision::new(running);
    let changed: Arc<dyn ConfigApi> = Arc::<Ports>::clone(&ports);
    let reload =
        Reload::start(&args.config, Arc::clone(&changed), supervision.notifier(), differs)?;
    let upgrades = Arc::new(UpgradeControl::new(programs)?);
    let upgrader = Arc::new(Upgrader::new(Arc::clone(&upgrades), &args.config, store.clone()));
    let manage = ControlServer::start_manage(manage, changed, upgrader)?;
    let mut broker = Broker {
        start: &start,
        layout,
        numbers: numbers.ports,
        uplink_numbers: numbers.uplinks,
        control: control.as_fd(),
        notices: &ports.notices(),
        faults: &heard,
        on_event: &|event| supervision.on_event(event),
        stop: stopped.as_fd(),
        longest_pause: Duration::from_millis(args.longest_pause.into()),
        state,
        settings: &ports.settings(),
        changes: &ports.changes(),
        store: store.clone(),
        past,
        upgrades: &upgrades,
        progress: Progress::default(),
        moves,
    };
    let outcome = broker.run();
    if let Ok(Outcome::Replaced(candidate)) = outcome {
        // What is dropped closes connections and removes files, and all that goes on.
        mem::forget(broker);
        mem::forget((manage, reload, ports, control, supervision));
        return Ok(Some(candidate));
    }
    store.close();
    drop((manage, reload, broker));
    close(&ports, control, &store_path(&control_path), &outcome);
    outcome?;
    Ok(None)
}

/// Ends what the broker's data planes have been served with, when `outcome` has come of it.
fn close(
    ports: &Ports,
    control: ControlListener,
    store_file: &Path,
    outcome: &Result<Outcome, BrokerError>,
) {
    // The next one might crash over the same journals.
    if matches!(outcome, Err(BrokerError::NotReady(end)) if end.is_crash()) {
        ports.release_journals();
    }
    ports.close();
    // The files go last: nobody is to connect to a port that is not served.
    drop(control);
    // Fails when it was never there.
    let _ = fs::remove_file(store_file);
}

/// What starts data planes of the switch with this control socket, of this program or of another one.
fn starter<'a>(
    args: &'a RunArgs,
    control: &Path,
) -> anyhow::Result<impl Fn(OwnedFd, Option<&Candidate>) -> io::Result<Child> + use<'a>> {
    let user = if args.no_sandbox { None } else { user::choose(control)? };
    Ok(move |channel: OwnedFd, candidate: Option<&Candidate>| {
        start_data_plane(args, user, channel, upgrade::command(candidate))
    })
}

/// Starts a data plane by `command`, with `channel` as its standard input, and nothing else of this process's but standard error.
fn start_data_plane(
    args: &RunArgs,
    user: Option<User>,
    channel: OwnedFd,
    mut command: Command,
) -> io::Result<Child> {
    command.arg("data-plane").arg("--name").arg(&args.config);
    command.args(["--log", &args.log]);
    if args.no_sandbox {
        command.arg("--no-sandbox");
    }
    if let Some(User { uid, gid }) = user {
        command.args(["--uid", &uid.to_string(), "--gid", &gid.to_string()]);
    }
    command.env_clear().envs(environment());
    command.stdin(Stdio::from(channel)).stdout(Stdio::null()).spawn()
}

/// What children get of the environment.
fn environment() -> impl Iterator<Item = (&'static str, OsString)> {
    PASSED_ON.iter().filter_map(|&name| Some((name, std::env::var_os(name)?)))
}
