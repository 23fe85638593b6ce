//! `vhgen`, the client: built from its C source with the machine's DPDK, one process for each case and switch, which measures slices when asked.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::case::{Bursts, Case, QUEUE_SIZE};
use super::peer::{HOST_DEVICE, Setup, Switch, build_dir, tail};
use crate::child::Process;
use crate::process;

/// Longest start of the client and wait for the switch to connect.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a line beyond the time of its slice.
const PATIENCE: Duration = Duration::from_secs(10);
/// Huge page memory of a client.
pub const MEMORY_MIB: u32 = 256;
/// The switch was the bottleneck when at least this part of the bursts found no room.
const SATURATED: f64 = 0.5;

/// What `vhgen` prints when the switch carries frames.
#[derive(Deserialize)]
struct Ready {
    tsc_hz: u64,
}

/// What `vhgen` prints of a slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub seconds: f64,
    /// CPU time that the client got in them.
    pub cpu_seconds: f64,
    pub received: u64,
    pub bursts: u64,
    pub full_bursts: u64,
    pub unbuilt_bursts: u64,
    /// Of a client that pauses between bursts.
    #[serde(default)]
    pub exchanges: Option<Exchanges>,
}

/// Bursts that were sent and waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchanges {
    pub count: u64,
    pub lost: u64,
    /// All of them together.
    pub seconds: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Measurement {
    /// Millions of frames that arrived in a second.
    pub fn mpps(&self) -> f64 {
        self.received as f64 / self.seconds / 1e6
    }

    /// Millions of frames that arrived in a second of exchanges.
    pub fn mpps_in_exchanges(&self) -> Option<f64> {
        let exchanges = self.exchanges.as_ref().filter(|exchanges| exchanges.seconds > 0.0)?;
        Some(self.received as f64 / exchanges.seconds / 1e6)
    }

    /// Part of the time in which the client did not have its core, 0 to 1.
    pub fn client_waited(&self) -> f64 {
        (1.0 - self.cpu_seconds / self.seconds).clamp(0.0, 1.0)
    }

    /// Whether the switch was the bottleneck.
    pub fn is_saturated(&self) -> bool {
        self.full_bursts as f64 >= SATURATED * self.bursts.max(1) as f64
    }
}

/// What `vhgen` prints of all its frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub sent: u64,
    pub received: u64,
    pub reordered: u64,
    pub cut: u64,
    pub corrupt: u64,
    pub foreign: u64,
}

impl Totals {
    /// What must never happen to a frame, in words.
    pub fn damage(&self) -> Option<String> {
        let kinds = [
            (self.corrupt, "arrived with other bytes than were sent"),
            (self.cut, "arrived with another length than was sent"),
            (self.reordered, "arrived out of order"),
        ];
        let bad: Vec<String> = kinds
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} frames {what}"))
            .collect();
        if self.received == 0 {
            return Some("no frame arrived".into());
        }
        (!bad.is_empty()).then(|| bad.join(", "))
    }

    /// Part of all frames that were lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }
}

/// The built program.
#[derive(Debug)]
pub struct Generator {
    program: PathBuf,
    core: usize,
}

impl Generator {
    /// Builds it beside this program's own build, with make, cc and pkg-config.
    ///
    /// # Errors
    /// When something for the build is missing; the error says what to install.
    pub fn build(core: usize) -> Result<Self> {
        process::run(&["pkg-config", "--exists", "libdpdk"])
            .context("DPDK's headers are missing: apt-get install libdpdk-dev pkg-config")?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/vhgen");
        let build = build_dir()?;
        let mut command = Command::new("make");
        command.arg("-s").arg("-C").arg(&source).arg(format!("BUILD={}", build.display()));
        process::run_command(command).context("vhgen does not build")?;
        Ok(Self { program: build.join("vhgen"), core })
    }

    /// Starts a client. The switch must be running, in client mode on the sockets of `setup`.
    ///
    /// # Errors
    /// When DPDK does not start, or the switch does not connect or carries nothing.
    pub fn start(&self, case: &Case, setup: &Setup, switch: &Switch) -> Result<Client> {
        let log = setup.dir.join("vhgen.log");
        let mut command = match switch.namespace() {
            Some(namespace) => namespace.command(&self.program),
            None => Command::new(&self.program),
        };
        self.configure(&mut command, case, setup);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let process = Process::spawn("vhgen", command)?;
        let (input, output) = process.take_pipes().context("vhgen has no pipes")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        let mut client = Client { process, input, lines, log, tsc_hz: 0 };
        client.tsc_hz = client.line::<Ready>(START_TIMEOUT)?.tsc_hz;
        Ok(client)
    }

    fn configure(&self, command: &mut Command, case: &Case, setup: &Setup) {
        command.arg("--server");
        command.arg("--port-a").arg(&setup.socket_a);
        match (case.uplink, case.bursts) {
            (None, _) => command.arg("--port-b").arg(&setup.socket_b),
            (Some(_), None) => command.arg("--counter").arg(host_counter()),
            (Some(_), Some(_)) => command.arg("--echo"),
        };
        let mut option = |name: &str, value: String| {
            command.arg(name).arg(value);
        };
        option("--core", self.core.to_string());
        option("--memory", MEMORY_MIB.to_string());
        option("--queue-size", QUEUE_SIZE.to_string());
        option("--size", case.size().to_string());
        option("--flows", case.flows.to_string());
        if let Some(mss) = case.mss() {
            option("--tso", mss.to_string());
        }
        match (case.bursts, case.window()) {
            (Some(Bursts { frames, gap_us }), _) => {
                option("--burst", frames.to_string());
                option("--gap", gap_us.to_string());
            }
            (None, Some(window)) => option("--window", window.to_string()),
            (None, None) => {}
        }
        if case.touches_all() {
            command.arg("--touch-all");
        }
    }
}

/// The file that counts what the host has received, in its namespace.
fn host_counter() -> PathBuf {
    ["/sys/class/net", HOST_DEVICE, "statistics/rx_packets"].iter().collect()
}

/// A client whose frames the switch carries.
#[derive(Debug)]
pub struct Client {
    process: Process,
    input: ChildStdin,
    lines: Receiver<String>,
    log: PathBuf,
    /// Cycles of its clock in a second.
    pub tsc_hz: u64,
}

impl Client {
    /// Moves frames for `settle`, then for `time`, which is measured.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn measure(&mut self, settle: Duration, time: Duration) -> Result<Measurement> {
        let asked = writeln!(self.input, "{} {}", settle.as_secs_f64(), time.as_secs_f64());
        asked.with_context(|| format!("vhgen has ended: {}", tail(&self.log)))?;
        self.line(settle + time + PATIENCE)
    }

    /// Ends it; the switch must be running, to carry what is under way.
    ///
    /// # Errors
    /// When it does not end, or not well.
    pub fn finish(self) -> Result<Totals> {
        let Self { process, input, lines, log, .. } = self;
        drop(input);
        let totals = line(&lines, PATIENCE, &log)?;
        let status = process.wait(PATIENCE).with_context(|| tail(&log))?;
        ensure!(status.success(), "vhgen failed ({status}): {}", tail(&log));
        Ok(totals)
    }

    fn line<T: DeserializeOwned>(&self, timeout: Duration) -> Result<T> {
        line(&self.lines, timeout, &self.log)
    }
}

/// The next line of the client's output.
fn line<T: DeserializeOwned>(lines: &Receiver<String>, timeout: Duration, log: &Path) -> Result<T> {
    let line = lines.recv_timeout(timeout);
    let line = line.map_err(|_| anyhow!("no answer of vhgen in {timeout:?}: {}", tail(log)))?;
    serde_json::from_str(&line).with_context(|| format!("vhgen printed `{line}`"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// 10 Mpps with the switch as the bottleneck, as the client prints it.
    pub fn measurement() -> Measurement {
        let text = r#"{"seconds":0.150000,"cpu_seconds":0.148500,"received":1500000,"bursts":1000,"full_bursts":900,"unbuilt_bursts":0}"#;
        serde_json::from_str(text).unwrap()
    }

    /// Some frames of ten million were lost, as the client prints it.
    pub fn totals() -> Totals {
        let text =
            r#"{"sent":10000000,"received":9999900,"reordered":0,"cut":0,"corrupt":0,"foreign":2}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_switch_is_the_bottleneck_when_most_bursts_find_no_room() {
        let mut measured = measurement();
        assert!((measured.mpps() - 10.0).abs() < 1e-9 && measured.is_saturated());
        assert!((measured.client_waited() - 0.01).abs() < 1e-9);
        measured.full_bursts = 100;
        assert!(!measured.is_saturated());
    }

    #[test]
    fn damage_is_put_in_words_and_loss_is_none() {
        let mut totals = totals();
        assert_eq!(totals.damage(), None);
        assert!((totals.loss() - 1e-5).abs() < 1e-12);
        totals.corrupt = 3;
        assert!(totals.damage().unwrap().starts_with("3 frames arrived with other bytes"));
        totals.received = 0;
        assert_eq!(totals.damage().unwrap(), "no frame arrived");
    }
}
