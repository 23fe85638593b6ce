//! Kills the switch, or only its data plane, under a TCP connection between two VMs.
//!
//! Each cycle sends one TCP stream; when a part of it has arrived, something is killed (SIGKILL): the whole switch, which is then
//! started again, or its data plane, which its broker replaces. The connection must carry the rest. Every other stream is the agent's own,
//! whose ends compare SHA-256; the others are those of iperf3.
//!
//! The *outage* of the whole switch is the time from the kill until the receiver's kernel counts new bytes, so it includes the start of
//! the new process and the sender's retransmission timer. That of a data plane may be shorter than the pauses that two VMs on shared cores make
//! by themselves. It is the longest pause in the second after the kill, as counted by the receiver's kernel; the longest pause in the second before it is printed beside.
//!
//! Leaks are looked for where a lost back-end could leave something: descriptors of the QEMU
//! processes and of the new switch, its memory, and files beside its sockets.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_guest::stream::{Received, Sent};
use floodway_report::Samples;
use serde::Deserialize;

use super::iperf::{self, Amount, Place};
use super::testbed::{Network, Testbed};
use super::{Measured, RealScenario, Run};
use crate::kernel::Series;
use crate::switch_process::{self, Switch};
use crate::vm::Vm;

/// Ends a run that hangs: longer than TCP's own patience in the guests is not needed.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the receiver's counters are read. Its share of an outage's error.
const POLL: Duration = Duration::from_millis(20);
/// The same where an outage may be short.
const LOOK: Duration = Duration::from_millis(2);
/// For how long a stream is measured before a data plane is killed, and after it.
const WATCH: Duration = Duration::from_secs(1);
/// A data plane that has lived for so long is replaced at once (`floodway-broker`, `supervision::YOUNG`).
const YOUNG: Duration = Duration::from_secs(11);
/// New bytes that prove that the stream runs again: more than acknowledgements or neighbour
/// discovery could add up to.
const PROGRESS_BYTES: i64 = 100_000;

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchRestart {
    /// Kernel of the guests.
    pub kernel: Series,
    /// What is killed.
    #[serde(default = "default_victims")]
    pub victims: Vec<Victim>,
    /// Kills of each, at least 2.
    pub cycles: u32,
    /// Bytes of one stream in MB, at least 10.
    pub transfer_mb: u64,
}

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    /// Broker and data plane; the lab starts it again.
    Switch,
    /// The data plane; its broker starts another one.
    DataPlane,
}

fn default_victims() -> Vec<Victim> {
    vec![Victim::Switch]
}

impl Victim {
    /// Prefix of its rows.
    fn prefix(self) -> &'static str {
        match self {
            Self::Switch => "",
            Self::DataPlane => "data plane: ",
        }
    }
}

/// What one cycle showed.
struct Cycle {
    outage: Duration,
    /// Start of the new switch; the longest time without new bytes before the kill of a data plane.
    beside: Duration,
    intact: bool,
}

impl RealScenario for SwitchRestart {
    fn steps(&self) -> u64 {
        1 + self.victims.len() as u64 * u64::from(self.cycles)
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        ensure!(self.cycles >= 2, "cycles = {}: at least 2, to see a leak", self.cycles);
        ensure!(self.transfer_mb >= 10, "transfer_mb = {}: at least 10", self.transfer_mb);
        run.progress.step("booting two guests");
        let mut testbed = Testbed::start("srestart", &[self.kernel; 2], &[Network::Floodway])?;
        let mut measured = Measured::default();
        for &victim in &self.victims {
            self.kill_again_and_again(victim, &mut testbed, run, &mut measured)?;
        }
        Ok(measured)
    }
}

impl SwitchRestart {
    fn kill_again_and_again(
        &self,
        victim: Victim,
        testbed: &mut Testbed,
        run: &Run,
        measured: &mut Measured,
    ) -> Result<()> {
        let name = |name: &str| format!("{}{name}", victim.prefix());
        let beside = match victim {
            Victim::Switch => "start of the switch",
            Victim::DataPlane => "longest pause before the kill",
        };
        let mut outages = samples(&name("outage"), "s");
        let mut besides = samples(&name(beside), "s");
        let mut broken = 0_u32;
        let (mut descriptors, mut memory, mut files) = (Vec::new(), Vec::new(), Vec::new());
        for cycle in 0..self.cycles {
            run.progress.step(&name(&format!("kill {}/{}", cycle + 1, self.cycles)));
            let seed = run.seed.wrapping_add(cycle.into());
            let stream = if cycle % 2 == 0 { Stream::Checked { seed } } else { Stream::Iperf };
            let result = self
                .cycle(victim, testbed, stream)
                .with_context(|| name(&format!("cycle {}", cycle + 1)))?;
            outages.value.push(result.outage.as_secs_f64());
            besides.value.push(result.beside.as_secs_f64());
            broken += u32::from(!result.intact);
            descriptors.push(open_descriptors(testbed)?);
            let anonymous = testbed.switch()?.usage()?.anonymous_kib;
            memory.push(usize::try_from(anonymous).unwrap_or(usize::MAX));
            files.push(testbed.switch()?.files()?);
        }
        let longest = outages.value.iter().copied().fold(0.0, f64::max);
        measured.add_samples(outages);
        measured.add_samples(besides);
        measured.add_value(name("longest outage"), "s", longest);
        measured.add_value(name("kills survived"), "streams", (self.cycles - broken).into());
        measured.add_value(name("streams broken"), "streams", broken.into());
        measured.add_value(name("descriptors leaked"), "descriptors", growth(&descriptors));
        measured.add_value(name("memory grown"), "KiB", growth(&memory));
        measured.add_value(name("files left"), "files", growth(&files));
        Ok(())
    }

    fn cycle(&self, victim: Victim, testbed: &mut Testbed, stream: Stream) -> Result<Cycle> {
        let address = Network::Floodway.guest_address(1)?;
        let (guests, switch, _) = testbed.parts()?;
        let [sender, receiver] = [&guests[0], &guests[1]];
        let bytes = self.transfer_mb * 1_000_000;
        if victim == Victim::DataPlane {
            // One that dies young is replaced after a pause.
            thread::sleep(YOUNG.saturating_sub(switch.age()?));
        }
        thread::scope(|scope| {
            let running = scope.spawn(|| stream.is_carried(sender, receiver, &address, bytes));
            let ended = || running.is_finished();
            let (outage, beside) = match victim {
                Victim::Switch => kill_in_the_middle(switch, receiver, bytes, &ended)?,
                Victim::DataPlane => kill_data_plane(switch, receiver, bytes, &ended)?,
            };
            Ok(Cycle { outage, beside, intact: joined(running)? })
        })
    }
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
enum Stream {
    /// Pseudo-random bytes, compared at the ends.
    Checked {
        seed: u64,
    },
    Iperf,
}

impl Stream {
    /// Sends `bytes`; returns whether all of them arrived as they were. A stream that broke off is a result of
    /// the experiment, told by its message, not an error of the lab.
    fn is_carried(self, sender: &Vm, receiver: &Vm, address: &str, bytes: u64) -> Result<bool> {
        match self {
            Self::Checked { seed } => {
                let listening = receiver.agent().stream_listen(format!("{address}:0").parse()?)?;
                let (received, sent) = thread::scope(|scope| {
                    let received =
                        scope.spawn(|| receiver.agent().stream_receive(&listening, STALL_TIMEOUT));
                    let to = listening.address;
                    let sent = sender.agent().stream_send(to, bytes, seed, STALL_TIMEOUT);
                    (joined(received), sent)
                });
                receiver.agent().stream_close(&listening)?;
                Ok(is_intact(received, sent))
            }
            Self::Iperf => {
                let places = (Place::Guest(sender), Place::Guest(receiver));
                match iperf::transfer(places.0, places.1, address, Amount::Bytes(bytes)) {
                    // Its server stops counting when the client has sent all, so what is in flight
                    // then is missing. The kill came at a quarter.
                    #[expect(clippy::cast_precision_loss, reason = "a count of bytes below 2^53")]
                    Ok(transfer) => Ok(transfer.bytes >= 0.75 * bytes as f64),
                    Err(error) => {
                        eprintln!("iperf3 broken: {error:#}");
                        Ok(false)
                    }
                }
            }
        }
    }
}

/// Waits for a quarter of the stream, kills the switch, starts it, and waits for the stream to go on. Returns
/// the outage and the new process's start-up time.
fn kill_in_the_middle(
    switch: &mut Switch,
    receiver: &Vm,
    bytes: u64,
    ended: &dyn Fn() -> bool,
) -> Result<(Duration, Duration)> {
    let begin = received_bytes(receiver)?;
    let quarter = i64::try_from(bytes / 4)?;
    wait_for_bytes(receiver, begin + quarter, ended).context("before the kill")?;
    let killed = Instant::now();
    switch.kill()?;
    let seen = settled_bytes(receiver)?;
    let start = switch.restart()?;
    wait_for_bytes(receiver, seen + PROGRESS_BYTES, ended).context("after the restart")?;
    Ok((killed.elapsed(), start))
}

/// Kills the data plane under the stream. Returns the longest time without new bytes after that, and before it.
fn kill_data_plane(
    switch: &Switch,
    receiver: &Vm,
    bytes: u64,
    ended: &dyn Fn() -> bool,
) -> Result<(Duration, Duration)> {
    let begin = received_bytes(receiver)?;
    wait_for_bytes(receiver, begin + i64::try_from(bytes / 10)?, ended)
        .context("before the kill")?;
    let before = longest_pause(receiver, ended)?;
    switch.kill_data_plane()?;
    let outage = longest_pause(receiver, ended)?;
    ensure!(outage < WATCH, "nothing has come for {WATCH:?} after the kill");
    Ok((outage, before))
}

/// The longest time in which the receiver's kernel counts nothing new, of the next [`WATCH`].
fn longest_pause(receiver: &Vm, ended: &dyn Fn() -> bool) -> Result<Duration> {
    let start = Instant::now();
    let (mut last, mut seen, mut longest) = (start, received_bytes(receiver)?, Duration::ZERO);
    while start.elapsed() < WATCH {
        ensure!(!ended(), "the stream has ended already; raise transfer_mb");
        let count = received_bytes(receiver)?;
        let now = Instant::now();
        if count > seen {
            longest = longest.max(now - last);
            (last, seen) = (now, count);
        }
        thread::sleep(LOOK);
    }
    Ok(longest.max(last.elapsed()))
}

fn wait_for_bytes(receiver: &Vm, target: i64, ended: &dyn Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + STALL_TIMEOUT;
    while received_bytes(receiver)? < target {
        ensure!(!ended(), "the stream has ended already; raise transfer_mb");
        ensure!(Instant::now() < deadline, "the stream stands still for {STALL_TIMEOUT:?}");
        thread::sleep(POLL);
    }
    Ok(())
}

/// The count once it has stopped growing: what the dead switch had put into the ring still has to
/// be taken out of it, and is no sign of life. The time that this takes is part of the outage.
fn settled_bytes(receiver: &Vm) -> Result<i64> {
    let mut seen = received_bytes(receiver)?;
    loop {
        thread::sleep(POLL);
        let now = received_bytes(receiver)?;
        if now == seen {
            return Ok(seen);
        }
        seen = now;
    }
}

/// Bytes of IP packets that the guest's kernel has received.
fn received_bytes(guest: &Vm) -> Result<i64> {
    let counters = guest.agent().counters()?;
    counters.get("IpExtInOctets").copied().context("the guest has no counter IpExtInOctets")
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

fn is_intact(received: Result<Received>, sent: Result<Sent>) -> bool {
    match (received, sent) {
        (Ok(received), Ok(sent)) => received.sha256 == sent.sha256,
        (received, sent) => {
            let messages = [received.err(), sent.err()].into_iter().flatten();
            messages.for_each(|error| eprintln!("stream broken: {error:#}"));
            false
        }
    }
}

fn open_descriptors(testbed: &Testbed) -> Result<usize> {
    let mut sum = testbed.switch()?.usage()?.descriptors;
    for guest in testbed.guests() {
        sum += switch_process::usage(guest.pid())?.descriptors;
    }
    Ok(sum)
}

/// Last minus first; the first cycle may still open what is opened once.
#[expect(clippy::cast_precision_loss, reason = "counts of descriptors")]
pub(super) fn growth(counts: &[usize]) -> f64 {
    let at = |count: Option<&usize>| count.map_or(0.0, |count| *count as f64);
    at(counts.last()) - at(counts.first())
}

pub(super) fn samples(name: &str, unit: &str) -> Samples {
    Samples { name: name.into(), unit: unit.into(), ..Samples::default() }
}
