//! The switch under test: a `floodway` process with a configuration of the lab's making.
//!
//! # Theory of operation
//!
//! The lab starts the binary that an operator would run ([`binary`]) inside the namespace of the
//! host that it plays, and speaks to it as an operator would: a TOML file, `floodway status --json`,
//! signals. A [`Switch`] is *up* when `status` answers. It can be killed without warning and started again with
//! the same configuration, which is what the restart experiments do; ports are in client mode, so that a
//! new process finds the sockets of the running VMs.
//!
//! CPU time and memory come from `/proc`, so they are what the kernel charged, whatever the switch
//! says of itself. A switch is two processes; what is measured is the one that moves frames ([`data_plane`]), what is killed both.
//! The lab runs it without a descriptor store, so that its data plane ends with its broker, until [`Switch::keep_store`] says otherwise:
//! then the other processes are found by the switch's directory, in which they work, and end with the lab or are swept by its next run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use floodway_switch::config::{Config, PortConfig, SocketMode, UplinkConfig, UplinkKind};
use floodway_switch::control::ControlClient;
use floodway_wire::ethernet::MacAddr;
use serde_json::Value;

use crate::child::{Process, signal_target};
use crate::cleanup::{self, Guard};
use crate::net::Namespace;
use crate::process;
use crate::vcpu;

/// Overrides which binary is the switch under test.
pub const BINARY_VARIABLE: &str = "FLOODWAY_BIN";
/// Set to `true`, no descriptor store outlives the switch: whatever ends the lab ends all processes of it.
pub const NO_STORE_VARIABLE: &str = "FLOODWAY_NO_DESCRIPTOR_STORE";
/// How long a new process may take until `status` answers.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a starting process is asked.
const START_POLL: Duration = Duration::from_millis(10);
/// Last bytes of the log that an error quotes.
const LOG_TAIL: usize = 2000;

/// The port of a guest with this MAC address. Always in client mode: QEMU listens, the switch connects.
#[must_use]
pub fn port(name: &str, socket: &Path, mac: MacAddr) -> PortConfig {
    PortConfig { mode: SocketMode::Client, mac: Some(mac), ..PortConfig::new(name, socket) }
}

/// A TAP device that the switch creates, if it is not there.
#[must_use]
pub fn tap(name: &str, device: &str) -> UplinkConfig {
    UplinkConfig::new(name, UplinkKind::Tap, device)
}

/// What the switch is to do for the TCP connections of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Offload {
    /// Congestion control of what the VM sends.
    pub transmit: bool,
    /// How, if not by grants to the guest's module: the name of a mode.
    pub mode: Option<&'static str>,
    /// Acknowledgement of what the VM receives.
    pub receive: bool,
    /// How flows share the port's buffer; the switch's default when absent.
    pub buffer: Option<&'static str>,
    /// What the port may hold, in bytes; as before when absent.
    pub budget: Option<u32>,
    /// Congestion control towards the network; the switch's default when absent.
    pub congestion: Option<&'static str>,
    /// First congestion window in segments; the switch's default when absent.
    pub initial_window: Option<u32>,
}

impl Offload {
    /// Words for `floodway offload`.
    fn words(self) -> Vec<String> {
        let state = |on| Some(if on { "on" } else { "off" }.to_owned());
        let options = [
            ("--transmit", self.mode.map(str::to_owned).or_else(|| state(self.transmit))),
            ("--receive", state(self.receive)),
            ("--buffer", self.buffer.map(str::to_owned)),
            ("--budget", self.budget.map(|bytes| bytes.to_string())),
            ("--congestion", self.congestion.map(str::to_owned)),
            ("--initial-window", self.initial_window.map(|segments| segments.to_string())),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        given.flatten().collect()
    }
}

/// What the kernel says of a process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// User and system time of all threads, also of those that ended.
    pub cpu: Duration,
    /// Open file descriptors.
    pub descriptors: usize,
    /// Anonymous memory that is resident. Guests' memory is shared, and not part of it.
    pub anonymous_kib: u64,
    /// Files and devices that are mapped, guests' memory among them.
    pub mappings: usize,
}

/// A running switch, killed when dropped.
#[derive(Debug)]
pub struct Switch {
    name: String,
    dir: PathBuf,
    control: PathBuf,
    /// As it was first started.
    config: toml::Table,
    namespace: Option<String>,
    process: Option<Process>,
    /// Ends the processes that outlive [`process`](Self::process); nothing without a descriptor store.
    others: Option<Guard>,
}

/// What an upgrade was, by the switch's account.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Upgrade {
    /// For how long frames stood still.
    pub pause: Duration,
    /// Connections that were offloaded before.
    pub online: u64,
    /// Those of them that are offloaded after.
    pub carried: u64,
}

impl Switch {
    /// Writes the configuration into `dir`, starts the switch in `namespace` (the lab's own when
    /// none is given), and waits until it is up. `name` is unique in `dir`.
    ///
    /// # Errors
    /// When there is no binary, or it ends or does not answer in time; the error quotes its log.
    pub fn start(
        name: &str,
        dir: &Path,
        config: &Config,
        namespace: Option<&Namespace>,
    ) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let mut switch = Self {
            name: name.into(),
            dir: dir.into(),
            control: config.control.clone(),
            config: toml::Table::try_from(config)?,
            namespace: namespace.map(|namespace| namespace.name().to_owned()),
            process: None,
            others: None,
        };
        switch.restart_with(|_| ())?;
        Ok(switch)
    }

    /// As [`Switch::restart`], with the configuration that it was first started with as `edit` changes it, from now
    /// on. Keys are the operator's: a configuration that the switch does not take is its error.
    ///
    /// # Errors
    /// As [`Switch::start`].
    pub fn restart_with(&mut self, edit: impl FnOnce(&mut toml::Table)) -> Result<Duration> {
        let mut config = self.config.clone();
        edit(&mut config);
        let path = self.config_path();
        fs::write(&path, toml::to_string(&config)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        self.restart()
    }

    /// Starts it again with the same configuration; kills it first when it runs. Returns the time
    /// from the start of the new process until it was up.
    ///
    /// # Errors
    /// As [`Switch::start`].
    pub fn restart(&mut self) -> Result<Duration> {
        self.kill()?;
        self.launch()
    }

    /// Starts it again with a descriptor store, from now on: what a broker that is killed leaves behind can be taken over, and it can be upgraded. A data plane that dies is replaced
    /// at once, also if the one before it did not live for long.
    ///
    /// # Errors
    /// As [`Switch::start`].
    pub fn keep_store(&mut self) -> Result<()> {
        self.kill()?;
        let (what, dir) = (format!("processes in {}", self.dir.display()), self.dir.clone());
        self.others = Some(cleanup::register(what, move || process::kill_those_in(&dir))?);
        self.launch().map(drop)
    }

    /// Starts the process, which takes over what another one may have left. Returns the time until it was up.
    fn launch(&mut self) -> Result<Duration> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = self.command(&binary()?);
        match self.others {
            None => command.env(NO_STORE_VARIABLE, "true"),
            Some(_) => command.env_remove(NO_STORE_VARIABLE).current_dir(&self.dir),
        };
        command.arg("run").arg("--config").arg(self.config_path());
        if self.others.is_some() {
            command.args(["--longest-pause", "0"]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let started = Instant::now();
        self.process = Some(Process::spawn(format!("switch {}", self.name), command)?);
        self.wait_until_up(started + START_TIMEOUT)?;
        Ok(started.elapsed())
    }

    /// Kills it (SIGKILL): no farewell to guests or uplinks. Does nothing when it does not run.
    ///
    /// # Errors
    /// When it does not go.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::kill)?;
        self.others.as_ref().map_or(Ok(()), |_| process::kill_those_in(&self.dir))
    }

    /// Kills its broker (SIGKILL), and starts another one, which takes over what the first one has left. Returns when it has.
    ///
    /// # Errors
    /// It has no descriptor store, or as [`Switch::start`].
    pub fn replace_broker(&mut self) -> Result<()> {
        ensure!(
            self.others.is_some(),
            "the switch has no descriptor store: its broker would take all with it"
        );
        let broker = self.process.take().context("the switch does not run")?;
        // Not its group, which the other processes are in.
        broker.signal(libc::SIGKILL)?;
        broker.wait(START_TIMEOUT)?;
        self.launch().map(drop)
    }

    /// Upgrades it to the program that it is of.
    ///
    /// # Errors
    /// What `floodway upgrade` says.
    pub fn upgrade(&self) -> Result<Upgrade> {
        let program = binary()?;
        let mut command = Command::new(&program);
        command.args(["upgrade", "--json", "--binary"]).arg(&program);
        command.arg("--control").arg(&self.control);
        let status: Value = serde_json::from_str(&process::run_command(command)?)?;
        let figure = |name: &str| {
            let figure = status["upgrades"][name].as_u64();
            figure.with_context(|| format!("`floodway upgrade` did not say {name}"))
        };
        let pause = Duration::from_micros(figure("pause_us")?);
        Ok(Upgrade { pause, online: figure("online")?, carried: figure("carried")? })
    }

    /// Kills its data plane (SIGKILL), which a broker replaces.
    ///
    /// # Errors
    /// It does not run, or has no broker.
    pub fn kill_data_plane(&self) -> Result<()> {
        let broker = self.process.as_ref().context("the switch does not run")?.id();
        let victim = self.mover()?;
        ensure!(victim != broker, "the switch has no data plane of its own");
        signal_target(i32::try_from(victim)?, libc::SIGKILL)
    }

    /// What `floodway status --json` says.
    ///
    /// # Errors
    /// When the switch does not answer.
    pub fn status(&self) -> Result<Value> {
        let mut command = Command::new(binary()?);
        command.args(["status", "--json", "--control"]).arg(&self.control);
        let text = process::run_command(command)?;
        serde_json::from_str(&text).context("`floodway status --json` did not print JSON")
    }

    /// Switches the offload of a port, by `floodway offload`.
    ///
    /// # Errors
    /// When the switch does not answer, has no such port, or has no offload at all.
    pub fn set_offload(&self, port: &str, offload: &Offload) -> Result<()> {
        let mut command = Command::new(binary()?);
        command.args(["offload", port]).args(offload.words()).arg("--control").arg(&self.control);
        let answer = process::run_command(command);
        answer.map(drop).map_err(|error| {
            if format!("{error:#}").contains("unrecognized subcommand") {
                anyhow!("this build of floodway has no TCP offload (no subcommand `offload`)")
            } else {
                error
            }
        })
    }

    /// What the offload of a port has done since the start of the switch, by name.
    ///
    /// # Errors
    /// As [`Switch::status`]; or there is no such port, or the switch has no offload.
    pub fn offload_counters(&self, port: &str) -> Result<BTreeMap<String, u64>> {
        let status = self.status()?;
        let counters =
            port_of(&status, port).and_then(|entry| entry["offload"]["counters"].as_object());
        let counters = counters.with_context(|| format!("no counters of the offload of {port}"))?;
        Ok(counters.iter().filter_map(|(name, n)| Some((name.clone(), n.as_u64()?))).collect())
    }

    /// How many connections of a port are offloaded.
    ///
    /// # Errors
    /// As [`Switch::offload_counters`].
    pub fn online_flows(&self, port: &str) -> Result<u64> {
        let status = self.status()?;
        let online = port_of(&status, port).and_then(|entry| entry["offload"]["online"].as_u64());
        online
            .with_context(|| format!("the status does not say how many flows of {port} are online"))
    }

    /// The operator's client of its control socket, for what is done too often to start `floodway` each time.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn client(&self) -> Result<ControlClient> {
        Ok(ControlClient::new(&self.control)?)
    }

    /// Frames that were dropped since its start, by reason, over all ports and uplinks.
    ///
    /// # Errors
    /// As [`Switch::status`].
    pub fn drops(&self) -> Result<BTreeMap<String, f64>> {
        let mut sums = BTreeMap::new();
        add_drops(&self.status()?, &mut sums);
        Ok(sums)
    }

    /// CPU time, descriptors and memory of the process that moves frames.
    ///
    /// # Errors
    /// When it does not run.
    pub fn usage(&self) -> Result<Usage> {
        usage(self.mover()?).with_context(|| format!("switch {}", self.name))
    }

    /// Process ID of the process that moves frames. One that a broker has taken over is no child of it.
    fn mover(&self) -> Result<u32> {
        let process = self.process.as_ref().context("the switch does not run")?.id();
        if self.others.is_none() {
            return Ok(data_plane(process));
        }
        let pid = self.status()?["switch"]["pid"].as_u64().context("a status without a pid")?;
        Ok(u32::try_from(pid)?)
    }

    /// Files and sockets in its directory, which other parts of the testbed may share.
    ///
    /// # Errors
    /// When the directory is gone.
    pub fn files(&self) -> Result<usize> {
        let dir = fs::read_dir(&self.dir);
        Ok(dir.with_context(|| format!("cannot list {}", self.dir.display()))?.count())
    }

    /// Process ID of the process that moves frames, `None` when it does not run.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.mover().ok()
    }

    fn config_path(&self) -> PathBuf {
        self.dir.join(format!("{}.toml", self.name))
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    fn command(&self, program: &Path) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(program);
        command
    }

    fn wait_until_up(&self, deadline: Instant) -> Result<()> {
        loop {
            let Err(error) = self.is_up() else { return Ok(()) };
            let ended = match &self.process {
                Some(process) => process.try_wait()?,
                None => bail!("the switch was not started"),
            };
            if let Some(status) = ended {
                bail!("the switch ended ({status}); its log ends with:\n{}", self.log_tail());
            }
            ensure!(
                Instant::now() < deadline,
                "the switch is not up after {START_TIMEOUT:?}: {error:#}; its log ends with:\n{}",
                self.log_tail()
            );
            sleep(START_POLL);
        }
    }

    /// Whether it answers. A data plane that outlives its broker answers at any time, and says which process that is.
    fn is_up(&self) -> Result<()> {
        let status = self.status()?;
        let broker = status["switch"]["predecessors"]["broker"].as_u64();
        let own = self.process.as_ref().map(|process| u64::from(process.id()));
        ensure!(self.others.is_none() || broker == own, "broker {broker:?} looks after it");
        Ok(())
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL)..];
        String::from_utf8_lossy(tail).trim().to_owned()
    }
}

/// The binary under test: `$FLOODWAY_BIN`, or the release build in the directory of this
/// program's own build.
///
/// # Errors
/// When there is none; the error says how to build it.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE).map(PathBuf::from) {
        ensure!(path.is_file(), "{BINARY_VARIABLE}={}: no such file", path.display());
        return Ok(std::path::absolute(path)?);
    }
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    own.ancestors()
        .skip(1)
        .take(3)
        .flat_map(|dir| [dir.join("floodway"), dir.join("release/floodway")])
        .find(|candidate| candidate.is_file() && candidate.components().any(|part| part.as_os_str() == "release"))
        .context("no release build of floodway; build one: cargo build --release -p floodway, or name one in FLOODWAY_BIN")
}

/// What a status says of a port.
fn port_of<'a>(status: &'a Value, port: &str) -> Option<&'a Value> {
    status["ports"].as_array()?.iter().find(|entry| entry["name"] == port)
}

/// Adds up the objects of drop counters, wherever they are in the status.
fn add_drops(status: &Value, sums: &mut BTreeMap<String, f64>) {
    match status {
        Value::Array(entries) => entries.iter().for_each(|entry| add_drops(entry, sums)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::Object(drops) if key == "drops" || key == "undelivered" => {
                        for (reason, count) in drops {
                            *sums.entry(reason.clone()).or_default() +=
                                count.as_f64().unwrap_or(0.0);
                        }
                    }
                    other => add_drops(other, sums),
                }
            }
        }
        _ => {}
    }
}

/// The process of a switch that moves frames: the data plane that `process` has started, or `process` itself if it has none.
#[must_use]
pub fn data_plane(process: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.unwrap_or_default();
    let is_data_plane = |child: &u32| {
        let words = fs::read_to_string(format!("/proc/{child}/cmdline"));
        words.is_ok_and(|words| words.split('\0').nth(1) == Some("data-plane"))
    };
    let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.find(is_data_plane).unwrap_or(process)
}

/// What the kernel says of a process.
///
/// # Errors
/// When there is no such process.
pub fn usage(pid: u32) -> Result<Usage> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let status = fs::read_to_string(proc.join("status")).context("it has ended")?;
    Ok(Usage {
        // Not /proc/PID/stat: its 10 ms ticks would show an idle switch as 0.
        cpu: vcpu::process_cpu_time(pid)?,
        descriptors: fs::read_dir(proc.join("fd"))?.count(),
        anonymous_kib: anonymous_kib(&status).context("cannot read /proc/PID/status")?,
        mappings: fs::read_to_string(proc.join("maps"))?.lines().count(),
    })
}

fn anonymous_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_told_from_shared() {
        let status = "VmRSS:\t  9000 kB\nRssAnon:\t    1200 kB\nRssShmem:\t 7000 kB\n";
        assert_eq!(anonymous_kib(status), Some(1200));
        assert_eq!(anonymous_kib("VmRSS: 1 kB"), None);
    }

    #[test]
    fn offload_is_switched_in_the_words_of_the_command() {
        let full = Offload {
            transmit: true,
            mode: None,
            receive: false,
            buffer: Some("fair"),
            budget: Some(65536),
            congestion: Some("reno"),
            initial_window: Some(3),
        };
        let expected = "--transmit on --receive off --buffer fair --budget 65536 --congestion reno --initial-window 3";
        assert_eq!(full.words().join(" "), expected);
        assert_eq!(Offload { buffer: None, budget: None, ..full }.words().len(), 8);
        let agentless = Offload { mode: Some("agentless"), ..full };
        assert_eq!(agentless.words()[..2], ["--transmit", "agentless"]);
    }

    #[test]
    fn drops_are_added_up_by_reason() {
        let status = serde_json::json!({
            "ports": [
                {"undelivered": {"storm": 1}, "queues": [{"rx": {"drops": {"storm": 2, "runt": 3}}}]},
                {"queues": [{"rx": {"drops": {"runt": 4}}}]},
            ],
            "uplinks": [{"tx": {"drops": {"uplink_full": 5}}}],
        });
        let mut sums = BTreeMap::new();
        add_drops(&status, &mut sums);
        let expected = [("runt", 7.0), ("storm", 3.0), ("uplink_full", 5.0)];
        assert_eq!(sums, expected.map(|(reason, count)| (reason.to_owned(), count)).into());
    }

    #[test]
    fn the_usage_of_a_live_process_can_be_read() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.descriptors > 0 && usage.anonymous_kib > 0 && usage.mappings > 0);
    }
}
