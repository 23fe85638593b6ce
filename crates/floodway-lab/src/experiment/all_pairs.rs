//! Every VM sends to every other, and both ends compare SHA-256.
//!
//! In round *r* guest *i* sends to guest *i + r* (modulo the number of guests), all at once: each
//! guest sends one stream and receives one, and after n - 1 rounds every ordered pair has exchanged a stream.
//! Streams have different contents, so one that arrives at the wrong guest is a mismatch, too.

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde::Deserialize;

use super::testbed::{Network, Testbed};
use super::{Measured, RealScenario, Run};
use crate::kernel::Series;

/// Longest wait without progress; only ends a run that hangs.
const STALL_TIMEOUT: Duration = Duration::from_secs(300);

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllPairs {
    /// Kernels of the guests, dealt out in turn.
    pub kernels: Vec<Series>,
    /// What connects them.
    pub network: Network,
    /// Guests, 2..=32.
    pub vms: usize,
    /// Bytes of one stream in MB, at least 1.
    pub transfer_mb: u64,
}

impl RealScenario for AllPairs {
    fn steps(&self) -> u64 {
        self.vms.max(1) as u64
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        ensure!((2..=32).contains(&self.vms), "vms = {}: 2 to 32", self.vms);
        ensure!(!self.kernels.is_empty(), "kernels: name at least one");
        ensure!(self.transfer_mb >= 1, "transfer_mb = {}: at least 1", self.transfer_mb);
        run.progress.step(&format!("booting {} guests", self.vms));
        let kernels: Vec<Series> = self.kernels.iter().copied().cycle().take(self.vms).collect();
        let testbed = Testbed::start("pairs", &kernels, &[self.network])?;
        let mut broken = 0;
        for distance in 1..self.vms {
            run.progress.step(&format!("round {distance}/{}", self.vms - 1));
            let pairs: Vec<(usize, usize)> =
                (0..self.vms).map(|from| (from, (from + distance) % self.vms)).collect();
            let seed = run.seed.wrapping_add((distance * self.vms) as u64);
            broken += exchange(&testbed, self.network, &pairs, self.transfer_mb, seed)?;
        }
        let mut measured = Measured::default();
        let pairs = u32::try_from(self.vms * (self.vms - 1))?;
        measured.add_value("streams", "streams", pairs.into());
        measured.add_value("streams broken", "streams", broken.into());
        measured.add_value("retransmits", "segments", retransmits(&testbed)?);
        if self.network == Network::Floodway {
            let drops = testbed.switch()?.drops()?;
            measured.add_value("frames dropped", "frames", drops.values().sum());
            for (reason, count) in drops.into_iter().filter(|(_, count)| *count > 0.0) {
                measured.add_value(format!("frames dropped/{reason}"), "frames", count);
            }
        }
        Ok(measured)
    }
}

/// Sends a stream for each (from, to), all at once. Returns how many did not arrive as they were sent;
/// each is told on standard error.
pub(super) fn exchange(
    testbed: &Testbed,
    network: Network,
    pairs: &[(usize, usize)],
    transfer_mb: u64,
    seed: u64,
) -> Result<u32> {
    let bytes = transfer_mb * 1_000_000;
    thread::scope(|scope| {
        let streams: Vec<_> = (0_u64..)
            .zip(pairs)
            .map(|(number, &(from, to))| {
                let seed = seed.wrapping_add(number);
                scope.spawn(move || (from, to, stream(testbed, network, from, to, bytes, seed)))
            })
            .collect();
        let mut broken = 0;
        for stream in streams {
            let (from, to, result) = stream.join().map_err(|_| anyhow!("a thread panicked"))?;
            if let Err(error) = result {
                eprintln!("stream from guest {from} to guest {to} broken: {error:#}");
                broken += 1;
            }
        }
        Ok(broken)
    })
}

fn stream(
    testbed: &Testbed,
    network: Network,
    from: usize,
    to: usize,
    bytes: u64,
    seed: u64,
) -> Result<()> {
    let [sender, receiver] = [from, to].map(|index| testbed.guests()[index].agent());
    let listening = receiver.stream_listen(format!("{}:0", network.guest_address(to)?).parse()?)?;
    let (sent, received) = thread::scope(|scope| {
        let received = scope.spawn(|| receiver.stream_receive(&listening, STALL_TIMEOUT));
        let sent = sender.stream_send(listening.address, bytes, seed, STALL_TIMEOUT);
        let received = received.join().map_err(|_| anyhow!("a thread panicked"));
        (sent, received)
    });
    receiver.stream_close(&listening)?;
    let (sent, received) = (sent?, received??);
    ensure!(
        received.bytes == bytes && received.sha256 == sent.sha256,
        "{} bytes with SHA-256 {} arrived, {} with {} were sent",
        received.bytes,
        received.sha256,
        sent.bytes,
        sent.sha256
    );
    Ok(())
}

fn retransmits(testbed: &Testbed) -> Result<f64> {
    let mut sum = 0;
    for guest in testbed.guests() {
        sum += guest.agent().counters()?.get("TcpRetransSegs").copied().unwrap_or(0);
    }
    Ok(sum as f64)
}
