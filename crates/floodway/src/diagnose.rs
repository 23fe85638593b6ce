//! `floodway diagnose`: why a port does not work, and what to run next.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use floodway_switch::api::diagnosis::{
    Diagnosis, FileReport, Finding, Recent, RegionReport, RingReport, Severity, SocketReport,
    UplinkReport,
};
use floodway_switch::api::status::PortState;
use floodway_switch::control::ControlClient;

use crate::cli::DiagnoseArgs;
use crate::output;
use crate::table::table;
use crate::top::recent;

/// Exit codes of what was found; 1 and 2 are failures to find out.
const EXIT_WARNING: u8 = 3;
const EXIT_ERROR: u8 = 4;
/// For how long a port is watched.
const WATCH: Duration = Duration::from_secs(1);

/// Prints what is known of a port. The exit code says how bad it is.
///
/// # Errors
/// The switch does not answer, has no such port, or standard output takes no more.
pub fn diagnose(args: &DiagnoseArgs) -> anyhow::Result<ExitCode> {
    let mut diagnosis = ControlClient::new(&args.control.path)?.diagnosis(&args.port)?;
    // What nobody is connected to does nothing that could be watched.
    if diagnosis.state == PortState::Running {
        let model = recent::watch(&args.control.path, WATCH)?;
        recent::fill(&mut diagnosis, &model, WATCH);
    }
    if diagnosis.socket.hidden && Path::new(&diagnosis.socket.path).is_absolute() {
        // The switch is in a sandbox, and we are not.
        diagnosis.socket.look();
        diagnosis.judge();
    }
    let text = if args.json { output::json(&diagnosis, None)? } else { render(&diagnosis) };
    writeln!(io::stdout(), "{text}")?;
    Ok(match diagnosis.severity() {
        Severity::Ok => ExitCode::SUCCESS,
        Severity::Warning => ExitCode::from(EXIT_WARNING),
        Severity::Error => ExitCode::from(EXIT_ERROR),
    })
}

/// Facts, then findings, then the command; without a final newline.
fn render(diagnosis: &Diagnosis) -> String {
    let facts = facts(diagnosis).map(|(name, value)| format!("{name:<11}{value}"));
    let mut sections = vec![facts.join("\n")];
    sections.extend(rings(&diagnosis.rings));
    sections.push(findings(diagnosis));
    sections.join("\n\n")
}

fn facts(diagnosis: &Diagnosis) -> [(&'static str, String); 10] {
    let none = || "none".to_owned();
    let peer = diagnosis.peer.map(|p| format!("pid {}, uid {}, gid {}", p.pid, p.uid, p.gid));
    let last_error = diagnosis.last_error.as_ref().map(|last| {
        let whose = if last.current { "" } else { " (an earlier front-end)" };
        format!("{}, {:.0} s ago{whose}", last.error, last.ago_s)
    });
    let top_drop = diagnosis.top_drop.as_ref().map(|top| {
        let share = top.share * 100.0;
        format!("{} frames {}, {share:.1} %: {}", top.frames, top.direction, top.reason)
    });
    [
        ("port", format!("{}, {}", diagnosis.port, diagnosis.state.name())),
        ("socket", socket(&diagnosis.socket)),
        ("peer", peer.unwrap_or_else(none)),
        ("features", list(&diagnosis.features)),
        ("protocol", list(&diagnosis.protocol_features)),
        ("memory", memory(diagnosis)),
        ("last error", last_error.unwrap_or_else(none)),
        ("top drop", top_drop.unwrap_or_else(none)),
        ("vCPUs", diagnosis.recent.as_ref().map_or_else(none, vcpus)),
        ("uplinks", uplinks(&diagnosis.uplinks)),
    ]
}

fn vcpus(recent: &Recent) -> String {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    match (recent.vcpu_run, recent.vcpu_wait) {
        (Some(run), Some(wait)) => format!("run {}, wait {}", percent(run), percent(wait)),
        _ => "not seen".to_owned(),
    }
}

fn socket(socket: &SocketReport) -> String {
    let file = match &socket.file {
        Some(FileReport { uid, gid, mode }) => format!("uid {uid}, gid {gid}, mode {mode}"),
        None => "no such file".to_owned(),
    };
    let listener = if socket.mode == "server" { "the switch listens" } else { "the VMM listens" };
    format!("{}, {listener}, {file}", socket.path)
}

fn uplinks(uplinks: &[UplinkReport]) -> String {
    let uplink = |it: &UplinkReport| format!("{} ({})", it.name, it.device);
    list(&uplinks.iter().map(uplink).collect::<Vec<_>>())
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

fn memory(diagnosis: &Diagnosis) -> String {
    let regions = &diagnosis.memory;
    if regions.is_empty() {
        return "none".to_owned();
    }
    let bytes: u64 = regions.iter().map(|region| region.size).sum();
    let range = |r: &RegionReport| format!("{:#x}+{:#x}", r.address, r.size);
    let ranges: Vec<_> = regions.iter().map(range).collect();
    format!("{} MiB: {}", bytes >> 20, ranges.join(" "))
}

fn rings(rings: &[RingReport]) -> Option<String> {
    let header = ["RING", "DIRECTION", "STATE", "ENABLED", "KICK", "CALL", "SIZE"];
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let row = |ring: &RingReport| {
        [
            ring.index.to_string(),
            if ring.index.is_multiple_of(2) { "rx" } else { "tx" }.to_owned(),
            ring.state.name().to_owned(),
            yes(ring.enabled),
            yes(ring.kick),
            yes(ring.call),
            ring.size.to_string(),
        ]
    };
    table(header, 6, rings.iter().map(row).collect())
}

fn findings(diagnosis: &Diagnosis) -> String {
    let line = |f: &Finding| format!("{}: {}", f.severity.name(), f.problem);
    let mut lines: Vec<_> = diagnosis.findings.iter().map(line).collect();
    match diagnosis.command() {
        Some(command) => lines.push(format!("try: {command}")),
        None => lines.push("ok: nothing is wrong".to_owned()),
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use floodway_switch::api::diagnosis::{ErrorReport, PeerReport, RingState};
    use floodway_switch::api::status::PortState;

    use super::*;

    #[test]
    fn a_diagnosis_has_facts_findings_and_one_command() {
        let ring = RingReport { state: RingState::Running, size: 256, ..RingReport::default() };
        let mut diagnosis = Diagnosis {
            port: "vm1".into(),
            state: PortState::Running,
            socket: SocketReport {
                path: "/run/vm1.sock".into(),
                mode: "server".into(),
                file: Some(FileReport { uid: 0, gid: 64055, mode: "0660".into() }),
                ..SocketReport::default()
            },
            peer: Some(PeerReport { pid: 7, uid: 64055, gid: 64055 }),
            last_error: Some(ErrorReport { error: "x".into(), ago_s: 2.2, current: true }),
            memory: vec![RegionReport { address: 0, size: 1 << 21 }],
            recent: Some(Recent {
                vcpu_run: Some(0.5),
                vcpu_wait: Some(0.041),
                ..Recent::default()
            }),
            rings: vec![ring, RingReport { index: 1, ..ring }],
            ..Diagnosis::default()
        };
        diagnosis.judge();
        let expected = "\
port       vm1, running
socket     /run/vm1.sock, the switch listens, uid 0, gid 64055, mode 0660
peer       pid 7, uid 64055, gid 64055
features   none
protocol   none
memory     2 MiB: 0x0+0x200000
last error x, 2 s ago
top drop   none
vCPUs      run 50 %, wait 4 %
uplinks    none

RING  DIRECTION  STATE    ENABLED  KICK  CALL  SIZE
0     rx         running  no       no    no     256
1     tx         running  no       no    no     256

warning: the last error of its front-end: x
try: journalctl -u floodway --grep vm1";
        assert_eq!(render(&diagnosis), expected);
    }
}
