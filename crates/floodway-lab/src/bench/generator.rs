//! `vhgen`, the client: built from its C source with the machine's DPDK, run once per measurement.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::case::{Case, QUEUE_SIZE};
use super::peer::{Setup, tail};
use crate::child::Process;
use crate::process;

/// Seconds before each measurement, while caches and the switch's tables fill.
const WARMUP_S: f64 = 0.5;
/// Longest start of the client and wait for the switch to connect.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Huge page memory of the client.
const MEMORY_MIB: u32 = 256;
/// The switch was the bottleneck when at least this part of the bursts found no room.
const SATURATED: f64 = 0.5;

/// What `vhgen` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub seconds: f64,
    /// CPU time that the client got in them.
    pub cpu_seconds: f64,
    pub tsc_hz: u64,
    pub sent: u64,
    pub received: u64,
    pub mpps: f64,
    pub gbps: f64,
    pub bursts: u64,
    pub full_bursts: u64,
    pub unbuilt_bursts: u64,
    pub total_sent: u64,
    pub total_received: u64,
    pub lost: i64,
    pub reordered: u64,
    pub cut: u64,
    pub corrupt: u64,
    pub foreign: u64,
}

impl Measurement {
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

    /// Part of the time in which the client did not have its core, 0 to 1.
    pub fn client_waited(&self) -> f64 {
        (1.0 - self.cpu_seconds / self.seconds).clamp(0.0, 1.0)
    }

    /// Part of all frames that were lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        self.lost as f64 / self.total_sent.max(1) as f64
    }

    /// TSC cycles per delivered frame, when the switch was the bottleneck.
    pub fn cycles(&self) -> Option<f64> {
        let full = self.full_bursts as f64 / self.bursts.max(1) as f64;
        (full >= SATURATED && self.mpps > 0.0).then(|| self.tsc_hz as f64 / (self.mpps * 1e6))
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
        let own = std::env::current_exe().context("cannot tell where this program is")?;
        let build = own.with_file_name("vhgen-build");
        let mut command = Command::new("make");
        command.arg("-s").arg("-C").arg(&source).arg(format!("BUILD={}", build.display()));
        process::run_command(command).context("vhgen does not build")?;
        Ok(Self { program: build.join("vhgen"), core })
    }

    /// Measures one case. The switch must be running, in client mode on the sockets of `setup`.
    ///
    /// # Errors
    /// When DPDK does not start, or the switch does not connect or carries nothing.
    pub fn run(&self, case: &Case, setup: &Setup, seconds: f64) -> Result<Measurement> {
        let (output, log) = (setup.dir.join("vhgen.json"), setup.dir.join("vhgen.log"));
        let mut command = self.command(case, setup, seconds);
        command.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::create(&log)?);
        let client = Process::spawn("vhgen", command)?;
        let timeout = START_TIMEOUT + Duration::from_secs_f64(WARMUP_S + seconds);
        let status = client.wait(timeout).with_context(|| tail(&log))?;
        ensure!(status.success(), "vhgen failed ({status}): {}", tail(&log));
        let text = std::fs::read_to_string(&output)?;
        serde_json::from_str(&text).with_context(|| format!("vhgen printed `{}`", text.trim()))
    }

    fn command(&self, case: &Case, setup: &Setup, seconds: f64) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--server");
        command.arg("--port-a").arg(&setup.socket_a).arg("--port-b").arg(&setup.socket_b);
        let mut option = |name: &str, value: String| {
            command.arg(name).arg(value);
        };
        option("--core", self.core.to_string());
        option("--memory", MEMORY_MIB.to_string());
        option("--queue-size", QUEUE_SIZE.to_string());
        option("--size", case.size().to_string());
        option("--flows", case.flows.to_string());
        option("--warmup", WARMUP_S.to_string());
        option("--seconds", seconds.to_string());
        if let Some(mss) = case.mss() {
            option("--tso", mss.to_string());
        }
        if let Some(window) = case.window() {
            option("--window", window.to_string());
        }
        if case.touches_all() {
            command.arg("--touch-all");
        }
        command
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// 10 Mpps at 2.6 GHz with the switch as the bottleneck.
    pub fn measurement() -> Measurement {
        serde_json::from_str(
            r#"{"size":64,"flows":1,"tso_mss":0,"touch_all":false,"seconds":2.0,"cpu_seconds":1.9,
            "tsc_hz":2600000000,"sent":20000100,"received":20000000,"mpps":10.0,"gbps":5.12,
            "bursts":1000,"full_bursts":900,"unbuilt_bursts":0,"total_sent":30000000,
            "total_received":29999700,"lost":300,"reordered":0,"cut":0,"corrupt":0,"foreign":2}"#,
        )
        .unwrap()
    }

    #[test]
    fn cycles_are_given_only_when_the_switch_is_the_bottleneck() {
        let mut measured = measurement();
        assert_eq!(measured.cycles(), Some(260.0));
        measured.full_bursts = 100;
        assert_eq!(measured.cycles(), None);
    }

    #[test]
    fn damage_is_said_in_words_and_loss_is_none() {
        let mut measured = measurement();
        assert_eq!(measured.damage(), None);
        assert!((measured.loss() - 1e-5).abs() < 1e-12);
        assert!((measured.client_waited() - 0.05).abs() < 1e-9);
        measured.corrupt = 3;
        assert!(measured.damage().unwrap().starts_with("3 frames arrived with other bytes"));
        measured.received = 0;
        assert_eq!(measured.damage().unwrap(), "no frame arrived");
    }
}
