//! `floodway run`: holds the VMs' sockets and all else that takes rights, and keeps a data plane running behind them. Changes of the configuration come
//! in here, too.

mod ports;
mod reload;
mod supervision;
mod uplinks;
mod user;
mod vcpus;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use floodway_broker::broker::{Broker, State};
use floodway_broker::transaction::Transaction;
use floodway_process::message::StatePart;
use floodway_process::sandbox::User;
use floodway_switch::Config;
use floodway_switch::control::{BindError, ControlListener, ControlServer};
use floodway_switch::kept::counters::Places;
use floodway_switch::kept::{WORD, addresses, counters, pairs, turns};
use floodway_switch::operator::ConfigApi;
use floodway_switch::switch;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::cli::RunArgs;
use ports::Ports;
use reload::Reload;
use supervision::Supervision;

/// How long a data plane may take to end after its broker was killed.
const DYING: Duration = Duration::from_millis(500);
/// Of the environment, what data planes get: whether a panic is reported with the calls that led to it.
const BACKTRACE: &str = "RUST_BACKTRACE";

/// Serves until SIGINT or SIGTERM; `running` is what the service manager shows.
///
/// # Errors
/// A socket cannot be had, or the first data plane does not start.
pub fn run(args: &RunArgs, running: String) -> anyhow::Result<()> {
    // One text for both processes, whatever becomes of the file.
    let configuration = fs::read_to_string(&args.config)?;
    let config = Config::parse(&configuration, &args.config)?;
    let (stop, stopped) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        pipe::register(signal, stop.try_clone()?)?;
    }
    // Before any port is touched: a second switch with this configuration goes no further.
    let control = bind_control(|| ControlListener::bind(&config.control))?;
    let manage = bind_control(|| ControlListener::bind_manage(&config.control))?;
    let (faults, heard) = mpsc::channel();
    let places = Places { ports: switch::numbers(&config), uplinks: config.uplinks.len() };
    let numbers = u16::try_from(places.ports)?;
    let state = state(places, config.workers.len())?;
    let control_path = config.control.clone();
    let uplinks = config.uplinks.iter().map(uplinks::open).collect::<Result<_, _>>()?;
    let ports = Arc::new(Ports::open(config, &configuration, numbers, faults)?);
    let user = if args.no_sandbox { None } else { user::choose(&control_path)? };
    let supervision = Supervision::new(running);
    let changed: Arc<dyn ConfigApi> = Arc::<Ports>::clone(&ports);
    let reload = Reload::start(&args.config, Arc::clone(&changed), supervision.notifier())?;
    let manage = ControlServer::start_manage(manage, changed)?;
    let on_event = |event| supervision.on_event(event);
    let start = |channel: OwnedFd| start_data_plane(args, user, channel);
    let mut broker = Broker {
        start: &start,
        layout: Transaction::new(ports.layout()),
        numbers,
        control: control.as_fd(),
        uplinks,
        notices: &ports.notices(),
        faults: &heard,
        on_event: &on_event,
        stop: stopped.as_fd(),
        longest_pause: Duration::from_millis(args.longest_pause.into()),
        state,
        settings: &ports.settings(),
        changes: &ports.changes(),
    };
    let outcome = broker.run();
    drop((manage, reload, broker));
    ports.close();
    // The files go last: nobody is to connect to a port that is not served.
    drop(control);
    Ok(outcome?)
}

/// Takes the control socket. The data plane of a broker that was killed has it, too, for the moment that it takes the kernel to end it.
fn bind_control(
    bind: impl Fn() -> Result<ControlListener, BindError>,
) -> Result<ControlListener, BindError> {
    let deadline = Instant::now() + DYING;
    loop {
        match bind() {
            Err(BindError::AlreadyRunning(_)) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            bound => return bound,
        }
    }
}

/// What data planes leave for each other.
fn state(places: Places, workers: usize) -> io::Result<Vec<State>> {
    let parts = [
        (StatePart::Counters, counters::words(places)),
        (StatePart::Pairs, pairs::words(places)),
        (StatePart::MacTable, addresses::words(places)),
        (StatePart::Turns, turns::words(workers)),
    ];
    parts.into_iter().map(|(part, words)| State::new(part, (words * WORD) as u64)).collect()
}

/// Starts a data plane with `channel` as its standard input, and nothing else of this process's but standard error.
fn start_data_plane(args: &RunArgs, user: Option<User>, channel: OwnedFd) -> io::Result<Child> {
    // Not by its path: that may lead to another version by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("floodway").arg("data-plane").arg("--name").arg(&args.config);
    command.args(["--log", &args.log]);
    if args.no_sandbox {
        command.arg("--no-sandbox");
    }
    if let Some(User { uid, gid }) = user {
        command.args(["--uid", &uid.to_string(), "--gid", &gid.to_string()]);
    }
    command.env_clear().envs(std::env::var_os(BACKTRACE).map(|value| (BACKTRACE, value)));
    command.stdin(Stdio::from(channel)).stdout(Stdio::null()).spawn()
}
