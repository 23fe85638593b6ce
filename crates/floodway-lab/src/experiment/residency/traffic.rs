//! qperf between a VM and a co-resident one or a host beyond the link.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Test;
use super::remote::Remote;
use crate::agent::Spawned;
use crate::child::Process;
use crate::experiment::testbed::{Network, Testbed};
use crate::experiment::transfer::tcp::Place;
use crate::guest_image::Packages;

/// Where the package has it.
pub(super) const PROGRAM: &str = "/usr/bin/qperf";
/// Port of the first stream's server.
const FIRST_PORT: u32 = 19_765;
/// Beyond the test itself, for a loaded machine. Only ends a run that hangs.
const GRACE: Duration = Duration::from_secs(90);

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub test: Test,
    pub size: u32,
    pub seconds: u32,
    /// Streams to the co-resident VM.
    pub local: u32,
    /// Streams beyond the link.
    pub remote: u32,
}

/// A server for each stream, in the second VM and at each host beyond the link.
#[derive(Debug)]
pub(super) struct Servers {
    _near: Vec<Spawned>,
    _far: Vec<Process>,
}

impl Servers {
    pub fn start(
        testbed: &Testbed,
        remote: Option<&Remote>,
        packages: &Packages,
        streams: u32,
    ) -> Result<Self> {
        forget_fragments(testbed, remote)?;
        let ports = FIRST_PORT..FIRST_PORT + streams;
        let near = ports.clone().map(|port| {
            testbed.guests()[1].agent().spawn(&[PROGRAM, "--listen_port", &port.to_string()])
        });
        let near = near.collect::<Result<_>>()?;
        let mut far = Vec::new();
        for host in remote.map_or(&[][..], Remote::hosts) {
            for port in ports.clone() {
                let program = packages.command(PROGRAM)?;
                let mut command = host.command(program.get_program());
                command.args(program.get_args()).args(["--listen_port", &port.to_string()]);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                far.push(Process::spawn("qperf server", command)?);
            }
        }
        Ok(Self { _near: near, _far: far })
    }

    /// Runs all streams at once; answers Mbit/s at the receivers, or transactions a second.
    pub fn measure(&self, testbed: &Testbed, network: Network, load: &Load) -> Result<f64> {
        let near = network.guest_address(1)?;
        let far = Remote::address(network);
        let streams = load.local + load.remote;
        let mut script = String::new();
        for stream in 0..streams {
            let address = if stream < load.local { &near } else { &far };
            let port = FIRST_PORT + stream;
            script += &format!(
                "{PROGRAM} {address} --listen_port {port} --time {} --msg_size {} --unify_units --timeout 30 {} >/tmp/qperf{stream} 2>&1 & ",
                load.seconds,
                load.size,
                name(load.test)
            );
        }
        script += "wait; cat";
        (0..streams).for_each(|stream| script += &format!(" /tmp/qperf{stream}"));
        let limit = Duration::from_secs(load.seconds.into()) + GRACE;
        let text =
            testbed.guests()[0].agent().exec_within(&["sh", "-c", &script], limit)?.stdout_text();
        let results = parse(&text, load.test);
        ensure!(results.len() == streams as usize, "qperf: {}", text.trim());
        Ok(results.iter().sum())
    }
}

/// Lets receivers give up a message that lacks a fragment after a second, and not after thirty. Else what one measurement lost fills the
/// memory for fragments (4 MB) during the next ones, on either network, until no message in fragments arrives at all.
fn forget_fragments(testbed: &Testbed, remote: Option<&Remote>) -> Result<()> {
    let set = ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ipfrag_time"];
    Place::Guest(&testbed.guests()[1]).run(&set)?;
    let far = remote.map_or(&[][..], Remote::hosts);
    far.iter().try_for_each(|host| Place::Host(host).run(&set).map(drop))
}

/// What qperf calls the test.
const fn name(test: Test) -> &'static str {
    match test {
        Test::Udp => "udp_bw",
        Test::Tcp => "tcp_bw",
        Test::UdpRr => "udp_lat",
        Test::TcpRr => "tcp_lat",
    }
}

/// Mbit/s, or transactions a second, of each stream.
fn parse(text: &str, test: Test) -> Vec<f64> {
    let (key, unit) = match test {
        Test::Udp => ("recv_bw", "bytes/sec"),
        Test::Tcp => ("bw", "bytes/sec"),
        Test::UdpRr | Test::TcpRr => ("latency", "ns"),
    };
    let figure = |line: &str| {
        let (name, rest) = line.split_once('=')?;
        let mut words = rest.split_whitespace();
        let value = words.next()?.parse::<f64>().ok()?;
        (name.trim() == key && words.next()? == unit).then_some(value)
    };
    let rate = |value: f64| match test {
        Test::Udp | Test::Tcp => value * 8e-6,
        // One way.
        Test::UdpRr | Test::TcpRr => 1e9 / (2.0 * value),
    };
    text.lines().filter_map(figure).map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_counts() {
        let text =
            "udp_bw:\n    send_bw  =  419086336 bytes/sec\n    recv_bw  =  1000000 bytes/sec\n";
        assert_eq!(parse(&text.repeat(2), Test::Udp), [8.0, 8.0]);
        assert_eq!(parse("tcp_bw:\n    bw  =  2500000 bytes/sec\n", Test::Tcp), [20.0]);
        assert_eq!(parse("tcp_lat:\n    latency  =  6835.9709 ns\n", Test::TcpRr).len(), 1);
        assert_eq!(parse("udp_lat:\n    latency  =  50000 ns\n", Test::UdpRr), [10_000.0]);
        assert!(parse("failed to connect\n", Test::Tcp).is_empty());
    }
}
