//! `floodway run`: holds the VMs' sockets and all else that takes rights, and keeps a data plane running behind them.

mod supervision;
mod uplinks;
mod user;
mod vcpus;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use floodway_broker::broker::{Broker, State};
use floodway_broker::descriptors;
use floodway_broker::notices::Notices;
use floodway_broker::port::{PortThread, Source};
use floodway_broker::record::Limits;
use floodway_process::message::StatePart;
use floodway_process::sandbox::User;
use floodway_switch::Config;
use floodway_switch::config::{PortConfig, SocketMode};
use floodway_switch::control::{BindError, ControlListener};
use floodway_switch::host::socket_access::{self, Access};
use floodway_switch::host::socket_file::{self, SocketFile};
use floodway_switch::kept::{WORD, addresses, counters};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::cli::RunArgs;
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
    let control = bind_control(&config.control)?;
    let (faults, heard) = mpsc::channel();
    let mut files = Vec::new();
    let mut ports = Vec::new();
    let limits = |port: &PortConfig| Limits::of_port(2 * usize::from(port.queue_pairs));
    let all: Vec<_> = config.ports.iter().map(limits).collect();
    descriptors::reserve(&all, config.uplinks.len())?;
    let uplinks = config.uplinks.iter().map(uplinks::open).collect::<Result<_, _>>()?;
    for port in &config.ports {
        let (source, file) =
            open(port).map_err(|error| anyhow!("{}: {error:#}", describe(port)))?;
        files.extend(file);
        let limits = limits(port);
        ports.push(PortThread::start(&port.name, source, limits, faults.clone())?);
    }
    let notices = Arc::new(Notices::new()?);
    let vcpus = vcpus::start(&config, &notices)?;
    let user = if args.no_sandbox { None } else { user::choose(&config.control)? };
    let supervision = Supervision::new(running);
    let on_event = |event| supervision.on_event(event);
    let start = |channel: OwnedFd| start_data_plane(args, user, channel);
    let mut broker = Broker {
        start: &start,
        configuration: &configuration,
        control: control.as_fd(),
        ports: &ports,
        uplinks,
        notices: &notices,
        faults: &heard,
        on_event: &on_event,
        stop: stopped.as_fd(),
        state: state(&config)?,
        settings: BTreeMap::new(),
    };
    let outcome = broker.run();
    drop((ports, vcpus));
    // The files go last: nobody is to connect to a port that is not served.
    drop((files, control));
    Ok(outcome?)
}

/// Takes the control socket. The data plane of a broker that was killed has it, too, for the moment that it takes the kernel to end it.
fn bind_control(path: &Path) -> Result<ControlListener, BindError> {
    let deadline = Instant::now() + DYING;
    loop {
        match ControlListener::bind(path) {
            Err(BindError::AlreadyRunning(_)) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            bound => return bound,
        }
    }
}

/// What data planes leave for each other.
fn state(config: &Config) -> io::Result<Vec<State>> {
    let parts = [
        (StatePart::Counters, counters::words(config)),
        (StatePart::MacTable, addresses::words(config)),
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

/// Where the front-ends of `port` come from.
fn open(port: &PortConfig) -> anyhow::Result<(Source, Option<SocketFile>)> {
    if port.mode == SocketMode::Client {
        let (path, describe) = (port.socket.clone(), socket_access::describe);
        return Ok((Source::Connect { path, describe }, None));
    }
    if let Some(directory) = port.socket.parent() {
        fs::create_dir_all(directory).context("cannot make its directory")?;
    }
    let access = Access::resolve(&port.permissions)?;
    let (listener, file) = socket_file::listen(&port.socket, access)?;
    Ok((Source::Listen(listener), Some(file)))
}

fn describe(port: &PortConfig) -> String {
    format!("port \"{}\": socket = \"{}\"", port.name, port.socket.display())
}
