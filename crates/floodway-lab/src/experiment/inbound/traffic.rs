//! iperf3 from the senders' namespace into the VMs.

use std::fs::File;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::schedule::{Group, Schedule};
use crate::cleanup;
use crate::experiment::transfer::tcp::Place;
use crate::net::Namespace;
use crate::process::Process;
use crate::vm::Vm;

/// Port of the first group's server.
const FIRST_PORT: usize = 5201;
/// Beyond the test itself, for a loaded machine. Only ends a run that hangs.
const GRACE: Duration = Duration::from_secs(120);
const LISTEN_POLL: Duration = Duration::from_millis(50);

/// What a group of connections did.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    pub group: Group,
    /// Bytes that the receiver got by each connection.
    pub bytes: Vec<f64>,
    /// Segments that were sent again.
    pub retransmits: f64,
}

/// A sender that runs.
#[derive(Debug)]
pub(super) struct Sender {
    group: Group,
    process: Process,
    output: std::path::PathBuf,
}

/// Starts the servers of all groups, and waits until they listen.
pub(super) fn serve(guests: &[Vm], schedule: &Schedule) -> Result<()> {
    for (vm, guest) in guests.iter().enumerate() {
        let ports: Vec<_> = ports_of(schedule, vm).map(|(port, _)| port.to_string()).collect();
        if ports.is_empty() {
            continue;
        }
        let script =
            format!("for p in {}; do iperf3 -s -1 -p $p >/dev/null & done; wait", ports.join(" "));
        guest.agent().spawn(&["sh", "-c", &script])?;
        let deadline = Instant::now() + GRACE;
        loop {
            let sockets = guest.agent().exec(&["ss", "-Hltn"])?.stdout_text();
            if ports.iter().all(|port| sockets.contains(&format!(":{port} "))) {
                break;
            }
            ensure!(Instant::now() < deadline, "iperf3 -s does not listen after {GRACE:?}");
            thread::sleep(LISTEN_POLL);
        }
    }
    Ok(())
}

fn ports_of(schedule: &Schedule, vm: usize) -> impl Iterator<Item = (usize, Group)> {
    let groups = schedule.0.iter().enumerate();
    groups.filter(move |(_, group)| group.vm == vm).map(|(n, &group)| (FIRST_PORT + n, group))
}

/// Starts all senders, each of which waits for its time.
pub(super) fn start(
    namespace: &Namespace,
    addresses: &[String],
    schedule: &Schedule,
) -> Result<Vec<Sender>> {
    let dir = cleanup::run_dir()?;
    let mut senders = Vec::new();
    for (vm, address) in addresses.iter().enumerate() {
        for (port, group) in ports_of(schedule, vm) {
            let Group { count, begin, end, .. } = group;
            let script = format!(
                "sleep {begin}; exec iperf3 -c {address} -p {port} -P {count} -t {} -J",
                end - begin
            );
            let output = dir.join(format!("iperf3-{port}.json"));
            let mut command = namespace.command("sh");
            command.args(["-c", &script]).stdin(Stdio::null()).stdout(File::create(&output)?);
            let process = Process::spawn(format!("iperf3 to {address}"), command)?;
            senders.push(Sender { group, process, output });
        }
    }
    Ok(senders)
}

/// Waits for all senders.
pub(super) fn finish(senders: Vec<Sender>) -> Result<Vec<Transfer>> {
    senders
        .into_iter()
        .map(|Sender { group, process, output }| {
            process.wait(GRACE)?;
            let text = std::fs::read_to_string(&output)?;
            parse(group, &text).with_context(|| format!("iperf3 of VM {}", group.vm + 1))
        })
        .collect()
}

fn parse(group: Group, text: &str) -> Result<Transfer> {
    let json: Value = serde_json::from_str(text).context("it did not print JSON")?;
    if let Some(error) = json["error"].as_str() {
        anyhow::bail!("{error}");
    }
    let streams = json.pointer("/end/streams").and_then(Value::as_array).context("no streams")?;
    let bytes = streams.iter().filter_map(|stream| stream.pointer("/receiver/bytes")?.as_f64());
    let retransmits = json.pointer("/end/sum_sent/retransmits").and_then(Value::as_f64);
    Ok(Transfer { group, bytes: bytes.collect(), retransmits: retransmits.unwrap_or_default() })
}

/// Retransmission time-outs of a namespace's kernel so far.
pub(super) fn timeouts(namespace: &Namespace) -> Result<u64> {
    let text = Place::Host(namespace).run(&["cat", "/proc/net/netstat"])?;
    counter(&text, "TcpExt:", "TCPTimeouts").context("the kernel does not count time-outs")
}

/// A counter of `/proc/net/netstat`: a line of names, and one of values, for each protocol.
fn counter(text: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(found, _)| *found == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netstat_has_names_above_values() {
        let text = "TcpExt: A TCPTimeouts B\nTcpExt: 1 22 3\nIpExt: TCPTimeouts\nIpExt: 9\n";
        assert_eq!(counter(text, "TcpExt:", "TCPTimeouts"), Some(22));
        assert_eq!(counter(text, "TcpExt:", "C"), None);
    }

    #[test]
    fn each_stream_counts() {
        let group = Group { vm: 0, count: 2, begin: 0, end: 1 };
        let text = r#"{"end": {"streams": [{"receiver": {"bytes": 5}}, {"receiver": {"bytes": 7}}],
            "sum_sent": {"retransmits": 3}}}"#;
        let transfer = parse(group, text).unwrap();
        assert_eq!((transfer.bytes, transfer.retransmits), (vec![5.0, 7.0], 3.0));
        assert!(parse(group, r#"{"error": "no"}"#).is_err());
    }
}
