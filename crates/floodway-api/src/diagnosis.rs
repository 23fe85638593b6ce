//! The diagnosis of a port: what `GET /v1/ports/NAME/diagnosis` answers and `floodway diagnose` shows.
//!
//! # Theory of operation
//! A diagnosis is a list of facts and what follows from them. [`Diagnosis::judge`] looks for the ways in which ports are known to
//! fail, from the socket to the frames: each rule is a function of the facts alone. The worst finding comes first, and its command
//! is the one suggested. Words that end in "in the guest" are for the guest's shell.
//!
//! The switch counts from its start, so a fault that begins on a busy host hides among all frames of the past, and one that is over is still in
//! the counters. Who asks can look at them for a while and fill [`Recent`] in: what is dropped now comes before what was dropped since
//! the start. The time that vCPUs wait for a CPU is known to the kernel only, and the sandboxed switch does not look; it is there, too.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::PortState;

/// Reasons for drops that say nothing about the port.
const HARMLESS_DROPS: [&str; 4] = ["guest_nonce", "no_destination", "port_down", "hairpin"];
/// Share of a direction's frames from which on drops are worth a look.
const NOTABLE_DROPS: f64 = 0.01;
/// vCPUs that wait for a CPU, on average, from which on that is worth a look: a tenth of one, and a tenth of what they want to run.
const NOTABLE_WAIT: f64 = 0.1;

/// How bad a finding is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is wrong.
    #[default]
    Ok,
    /// It works in part, or nobody has come yet.
    Warning,
    /// It cannot work as things stand.
    Error,
}

impl Severity {
    /// The name in the document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is.
    pub problem: String,
    /// What to run next.
    pub command: String,
}

/// What is known of a port's connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Name of the port.
    pub port: String,
    /// Where it is in its life.
    pub state: PortState,
    /// Its socket.
    pub socket: SocketReport,
    /// The process at the other end, while one is connected.
    pub peer: Option<PeerReport>,
    /// The last thing that went wrong between the port and a front-end.
    pub last_error: Option<ErrorReport>,
    /// Why the last front-end was cut off, until another one comes.
    pub quarantine: Option<String>,
    /// The kind of cause: `guest_memory`, `dirty_log`, `crash`.
    #[serde(default)]
    pub quarantine_cause: Option<String>,
    /// Negotiated virtio features by name.
    pub features: Vec<String>,
    /// vhost-user protocol features that the front-end has chosen, by name.
    pub protocol_features: Vec<String>,
    /// Memory that the front-end shares.
    pub memory: Vec<RegionReport>,
    /// Vrings by index: even ones receive, odd ones transmit.
    pub rings: Vec<RingReport>,
    /// What most frames were dropped for, in either direction; none if none were.
    pub top_drop: Option<DropReport>,
    /// Uplinks of its network.
    #[serde(default)]
    pub uplinks: Vec<UplinkReport>,
    /// What was seen in a while just before; none if nobody has looked, as the switch itself does not.
    #[serde(default)]
    pub recent: Option<Recent>,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
}

/// What a port has done in a while just before the diagnosis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recent {
    /// How long, in seconds.
    pub seconds: f64,
    /// What most frames of the port were dropped for, in either direction; none if none were.
    pub top_drop: Option<DropReport>,
    /// vCPUs that were runnable and did not run, on average; none if the threads of the VMM cannot be seen.
    pub vcpu_wait: Option<f64>,
    /// vCPUs that ran, on average.
    pub vcpu_run: Option<f64>,
}

/// An uplink by which the port's frames leave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UplinkReport {
    /// Its name.
    pub name: String,
    /// Its network interface.
    pub device: String,
    /// What its device did not take, for the most frequent reason; none if it took all.
    pub top_drop: Option<DropReport>,
    /// As `top_drop`, in a while just before.
    #[serde(default)]
    pub recent_drop: Option<DropReport>,
}

/// A port's socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SocketReport {
    /// Its path.
    pub path: String,
    /// Who listens: `server` is the switch, `client` the VMM.
    pub mode: String,
    /// Its file; none if there is none that the switch can see.
    pub file: Option<FileReport>,
    /// The process that answers may not look for the file.
    #[serde(default)]
    pub hidden: bool,
    /// Times that the switch has tried to connect.
    pub attempts: u64,
    /// Why it cannot, other than that nobody listens.
    pub problem: Option<String>,
}

/// Whose a file is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileReport {
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits in octal.
    pub mode: String,
}

impl SocketReport {
    /// Looks for the file.
    pub fn look(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        self.hidden = found.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::NotFound);
        self.file = found.ok().map(|file| FileReport {
            uid: file.uid(),
            gid: file.gid(),
            mode: format!("{:04o}", file.permissions().mode() & 0o7777),
        });
    }
}

/// A process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerReport {
    /// Its number; zero if it is in another PID namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Something that went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    /// What.
    pub error: String,
    /// Seconds ago.
    pub ago_s: f64,
    /// It belongs to the front-end that is connected, or nobody has connected since.
    pub current: bool,
}

/// A region of guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegionReport {
    /// Guest physical address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// Where a vring is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RingState {
    /// The front-end has not said where it is.
    #[default]
    Unset,
    /// It is described and not started, or not enabled.
    Stopped,
    /// Frames move.
    Running,
    /// It should run and does not: the guest has broken it.
    Broken,
}

impl RingState {
    /// The name in the document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unset => "unset",
            Self::Stopped => "stopped",
            Self::Running => "running",
            Self::Broken => "broken",
        }
    }
}

/// A vring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RingReport {
    /// Its index.
    pub index: usize,
    /// Where it is in its life.
    pub state: RingState,
    /// Entries; zero before the front-end has said how many.
    pub size: u16,
    /// The front-end has enabled it.
    pub enabled: bool,
    /// The guest can kick it; polled otherwise.
    pub kick: bool,
    /// The guest can be interrupted.
    pub call: bool,
}

/// Drops for one reason in one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DropReport {
    /// `rx` to the guest, `tx` from it.
    pub direction: String,
    /// The reason.
    pub reason: String,
    /// Frames dropped for it since the switch started, or in the while that was looked at.
    pub frames: u64,
    /// Their share of all frames of that direction, 0 to 1.
    pub share: f64,
}

impl Diagnosis {
    /// How bad the worst finding is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.findings.first().map_or(Severity::Ok, |finding| finding.severity)
    }

    /// The command of the worst finding.
    #[must_use]
    pub fn command(&self) -> Option<&str> {
        self.findings.first().map(|finding| &*finding.command)
    }

    /// Fills the findings in, from the other fields.
    pub fn judge(&mut self) {
        let rules = [Self::quarantined, Self::socket, Self::device, Self::rings, Self::error];
        let mut findings: Vec<_> = rules.iter().filter_map(|rule| rule(self)).collect();
        findings.extend(self.drops());
        findings.extend(self.waits());
        findings.extend(self.uplinks.iter().filter_map(UplinkReport::drops));
        // Stable: of two that are as bad, the one closer to the socket is the cause.
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self.findings = findings;
    }

    fn quarantined(&self) -> Option<Finding> {
        let reason = self.quarantine.as_ref()?;
        let problem = format!("the last front-end was cut off: {reason}");
        Some(match self.quarantine_cause.as_deref() {
            Some("crash") => error(problem, "journalctl -u floodway --since -1h -p warning"),
            _ => error(problem, "df -h /dev/shm /dev/hugepages"),
        })
    }

    fn socket(&self) -> Option<Finding> {
        let SocketReport { path, mode, file, hidden, problem, .. } = &self.socket;
        let rights = format!("namei -l {path}");
        if let Some(problem) = problem {
            return Some(error(problem, rights));
        }
        if self.state != PortState::Down || self.quarantine.is_some() {
            return None;
        }
        Some(match (&**mode, file.is_some() || *hidden) {
            ("server", true) => warning(
                "no VMM has connected; its user needs write permission for the socket, and search permission above it",
                rights,
            ),
            ("server", false) => error(
                "the socket has been removed since the switch started",
                "systemctl restart floodway",
            ),
            (_, true) => warning(
                "nobody listens on the socket: its VMM has ended, or is another one",
                format!("ss -xlp | grep {path}"),
            ),
            (_, false) => warning(
                "no VMM has made the socket yet; its user needs write permission for the directory",
                rights,
            ),
        })
    }

    fn device(&self) -> Option<Finding> {
        if self.state != PortState::Connected || self.rings.iter().any(RingReport::is_broken) {
            return None;
        }
        let problem = if self.memory.is_empty() {
            "no guest memory is shared: the guest's driver has not started the device, or its VMM does not share memory (share=on)"
        } else {
            "the guest's driver has not started the device"
        };
        let pid = self.peer.map_or(0, |peer| peer.pid);
        Some(warning(problem, format!("ps -ww -f -p {pid}")))
    }

    fn rings(&self) -> Option<Finding> {
        let broken = self.rings.iter().find(|ring| ring.is_broken())?;
        let problem = format!(
            "ring {} is broken: the guest's driver wrote what cannot be, or its memory is gone; it stops until the driver starts anew",
            broken.index
        );
        Some(error(problem, self.log()))
    }

    fn error(&self) -> Option<Finding> {
        let last = self.last_error.as_ref().filter(|last| last.current)?;
        let problem = format!("the last error of its front-end: {}", last.error);
        Some(warning(problem, self.log()))
    }

    fn drops(&self) -> Option<Finding> {
        let now = self.recent.as_ref().and_then(|recent| recent.top_drop.as_ref());
        let (top, when) = notable(now, self.top_drop.as_ref())?;
        let command = match &*top.reason {
            "spoofed_mac" | "spoofed_ip" | "invalid_source" | "mac_in_use" => {
                "ip address show # in the guest"
            }
            "oversize" | "no_large_buffer" => "ip link show # in the guest, and its MTU",
            "queue_full" => "floodway top --once --sort drops",
            "bad_descriptor" | "bad_offload" | "runt" => "ethtool -i eth0 # in the guest",
            _ => "floodway status --watch",
        };
        let problem = format!(
            "{:.1} % of {} frames {when}: {}{}",
            top.share * 100.0,
            top.direction,
            top.reason,
            cause(&top.reason)
        );
        Some(warning(problem, command))
    }

    fn waits(&self) -> Option<Finding> {
        let recent = self.recent.as_ref()?;
        let (wait, run) = (recent.vcpu_wait?, recent.vcpu_run?);
        let share = wait / (wait + run);
        if wait < NOTABLE_WAIT || share < NOTABLE_WAIT {
            return None;
        }
        let problem = format!(
            "its vCPUs wait for a CPU {:.0} % of the time that they could run: other VMs or programs have the cores",
            share * 100.0
        );
        Some(warning(problem, "floodway top --once --sort wait"))
    }

    fn log(&self) -> String {
        format!("journalctl -u floodway --grep {}", self.port)
    }
}

impl UplinkReport {
    fn drops(&self) -> Option<Finding> {
        let (top, when) = notable(self.recent_drop.as_ref(), self.top_drop.as_ref())?;
        let Self { name, device, .. } = self;
        let problem = format!(
            "{:.1} % of the frames that leave by uplink {name} {when}: {}{}",
            top.share * 100.0,
            top.reason,
            cause(&top.reason)
        );
        Some(warning(problem, format!("ip -s link show {device}")))
    }
}

/// The drops to speak of, and when they are: those of now if they matter, else those since the start.
fn notable<'a>(
    now: Option<&'a DropReport>,
    all: Option<&'a DropReport>,
) -> Option<(&'a DropReport, &'static str)> {
    let matters =
        |top: &&DropReport| top.share >= NOTABLE_DROPS && !HARMLESS_DROPS.contains(&&*top.reason);
    let now = now.filter(matters).map(|top| (top, "are dropped now"));
    now.or_else(|| all.filter(matters).map(|top| (top, "were dropped since the start")))
}

/// What is behind a drop, for those that have one cause in most cases, after a colon; else nothing.
#[must_use]
pub fn cause(reason: &str) -> &'static str {
    match reason {
        "spoofed_mac" => ": the guest sends from a MAC address that is not the port's",
        "spoofed_ip" => ": the guest sends from an IP address that is not the port's",
        "oversize" => {
            ": sender and receiver do not agree on the MTU; the port's is smaller than the frames"
        }
        "no_large_buffer" => ": the guest's receive buffers are smaller than the frames",
        "queue_full" => {
            ": the guest gives no receive buffers back; it has no CPU time, or its driver hangs"
        }
        "uplink_error" => ": its device is down or gone, or has a smaller MTU",
        "uplink_refused" => {
            ": the host refuses them; a filter of its, or a full queue of the device"
        }
        "uplink_full" | "uplink_queue_full" => ": more is sent than its device takes",
        _ => "",
    }
}

impl RingReport {
    fn is_broken(&self) -> bool {
        self.state == RingState::Broken
    }
}

fn error(problem: impl Into<String>, command: impl Into<String>) -> Finding {
    Finding { severity: Severity::Error, problem: problem.into(), command: command.into() }
}

fn warning(problem: impl Into<String>, command: impl Into<String>) -> Finding {
    Finding { severity: Severity::Warning, problem: problem.into(), command: command.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> Diagnosis {
        Diagnosis {
            port: "vm1".into(),
            state: PortState::Running,
            socket: SocketReport {
                path: "/run/vm1.sock".into(),
                mode: "client".into(),
                ..SocketReport::default()
            },
            memory: vec![RegionReport { address: 0, size: 4096 }],
            rings: vec![RingReport { state: RingState::Running, ..RingReport::default() }],
            ..Diagnosis::default()
        }
    }

    fn dropped(direction: &str, reason: &str, share: f64) -> Option<DropReport> {
        let (direction, reason) = (direction.into(), reason.into());
        Some(DropReport { direction, reason, frames: 9, share })
    }

    fn judged(mut diagnosis: Diagnosis) -> Diagnosis {
        diagnosis.judge();
        diagnosis
    }

    #[test]
    fn a_port_that_runs_has_no_findings() {
        let healthy = judged(running());
        assert_eq!((healthy.severity(), healthy.command()), (Severity::Ok, None));
        let drop = |reason: &str, share| {
            let top_drop = dropped("tx", reason, share);
            judged(Diagnosis { top_drop, ..running() }).severity()
        };
        assert_eq!(drop("port_down", 0.9), Severity::Ok);
        assert_eq!(drop("spoofed_ip", 0.001), Severity::Ok);
        assert_eq!(drop("spoofed_ip", 0.5), Severity::Warning);
    }

    #[test]
    fn the_cause_of_drops_is_named_also_those_of_an_uplink() {
        let top_drop = dropped("rx", "queue_full", 0.2);
        let found = judged(Diagnosis { top_drop, ..running() });
        assert!(found.findings[0].problem.contains("gives no receive buffers back"));
        let uplink = |top_drop| UplinkReport {
            name: "up".into(),
            device: "eth0".into(),
            top_drop,
            recent_drop: None,
        };
        let with = |top_drop| judged(Diagnosis { uplinks: vec![uplink(top_drop)], ..running() });
        let found = with(dropped("tx", "uplink_error", 0.5));
        let expected = "50.0 % of the frames that leave by uplink up were dropped since the start: uplink_error: its device is down or gone, or has a smaller MTU";
        assert_eq!(found.findings[0].problem, expected);
        assert_eq!(
            (found.severity(), found.command()),
            (Severity::Warning, Some("ip -s link show eth0"))
        );
        assert_eq!(with(dropped("tx", "uplink_error", 0.001)).findings, []);
        assert_eq!(with(None).findings, []);
    }

    #[test]
    fn what_is_dropped_now_comes_before_what_was_dropped_in_the_past() {
        let drop = |reason, share| dropped("tx", reason, share);
        let with = |now, all| {
            let recent = Some(Recent { top_drop: now, ..Recent::default() });
            let found = judged(Diagnosis { top_drop: all, recent, ..running() });
            found.findings.first().map(|finding| finding.problem.clone()).unwrap_or_default()
        };
        let problem = with(drop("spoofed_mac", 0.9), drop("storm", 0.5));
        assert!(problem.starts_with("90.0 % of tx frames are dropped now: spoofed_mac: the guest"));
        let past = "50.0 % of tx frames were dropped since the start: storm";
        assert_eq!(with(drop("spoofed_mac", 0.001), drop("storm", 0.5)), past);
        assert_eq!(with(drop("port_down", 0.9), drop("storm", 0.5)), past);
        assert_eq!(with(None, drop("storm", 0.001)), "");
        let recent_drop = drop("uplink_error", 1.0);
        let uplink = UplinkReport { name: "up".into(), recent_drop, ..UplinkReport::default() };
        let found = judged(Diagnosis { uplinks: vec![uplink], ..running() });
        let expected =
            "100.0 % of the frames that leave by uplink up are dropped now: uplink_error";
        assert!(found.findings[0].problem.starts_with(expected));
    }

    #[test]
    fn vcpus_that_wait_for_a_noticeable_part_of_their_time_are_a_finding() {
        let with = |vcpu_wait, vcpu_run| {
            let recent = Some(Recent { vcpu_wait, vcpu_run, ..Recent::default() });
            judged(Diagnosis { recent, ..running() })
        };
        let found = with(Some(0.5), Some(0.5));
        assert!(found.findings[0].problem.starts_with("its vCPUs wait for a CPU 50 % of the time"));
        assert_eq!(found.command(), Some("floodway top --once --sort wait"));
        assert_eq!(with(Some(0.05), Some(0.01)).findings, [], "next to nothing");
        assert_eq!(with(Some(0.5), Some(15.0)).findings, [], "little, of so many");
        assert_eq!(with(None, None).findings, []);
    }

    #[test]
    fn the_worst_finding_suggests_the_command() {
        let last_error = Some(ErrorReport { error: "x".into(), ago_s: 1.0, current: true });
        let mut diagnosis = Diagnosis { last_error, ..running() };
        assert_eq!(judged(diagnosis.clone()).severity(), Severity::Warning);
        diagnosis.socket.problem = Some("cannot connect: Permission denied".into());
        let diagnosis = judged(diagnosis);
        assert_eq!(diagnosis.severity(), Severity::Error);
        assert_eq!(diagnosis.command(), Some("namei -l /run/vm1.sock"));
        assert_eq!(diagnosis.findings.len(), 2);
    }

    #[test]
    fn an_error_of_an_earlier_front_end_is_no_finding() {
        let last_error = Some(ErrorReport { error: "x".into(), ago_s: 1.0, current: false });
        assert_eq!(judged(Diagnosis { last_error, ..running() }).findings, []);
    }

    #[test]
    fn a_port_without_a_front_end_says_who_has_to_come() {
        let find = |mode: &str, file: Option<FileReport>| {
            let socket = SocketReport { mode: mode.into(), file, ..running().socket };
            let down = Diagnosis { state: PortState::Down, socket, ..running() };
            let finding = judged(down).findings[0].clone();
            (finding.severity, finding.command)
        };
        let file = Some(FileReport::default());
        let rights = "namei -l /run/vm1.sock".to_owned();
        assert_eq!(find("server", file.clone()), (Severity::Warning, rights.clone()));
        assert_eq!(find("server", None), (Severity::Error, "systemctl restart floodway".into()));
        assert_eq!(find("client", None), (Severity::Warning, rights));
        assert_eq!(find("client", file).1, "ss -xlp | grep /run/vm1.sock");
    }

    #[test]
    fn a_broken_ring_is_an_error_and_hides_that_the_device_stands() {
        let mut diagnosis = running();
        diagnosis.state = PortState::Connected;
        assert_eq!(judged(diagnosis.clone()).severity(), Severity::Warning);
        diagnosis.rings[0].state = RingState::Broken;
        let diagnosis = judged(diagnosis);
        assert_eq!((diagnosis.severity(), diagnosis.findings.len()), (Severity::Error, 1));
    }
}
