//! Kills the whole switch under a TCP connection between two VMs, and starts it again.
//!
//! Each cycle sends one TCP stream; when a part of it has arrived, all processes of the switch are killed (SIGKILL). The connection must carry the rest. Every other stream is the agent's own,
//! whose ends compare SHA-256; the others are those of iperf3.
//!
//! The *outage* is the time from the kill until the receiver's kernel counts new bytes, so it includes the start of the new process and the sender's retransmission timer.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use floodway_guest::stream::{Received, Sent};

use super::{Held, joined, samples};
use crate::experiment::iperf::{self, Amount, Place};
use crate::experiment::testbed::{Network, Testbed};
use crate::experiment::{Measured, Run};
use crate::switch_process::Switch;
use crate::vm::Vm;

/// Ends a run that hangs: longer than TCP's own patience in the guests is not needed.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the receiver's counters are read. Its share of an outage's error.
const POLL: Duration = Duration::from_millis(20);
/// New bytes that prove that the stream runs again: more than acknowledgements or neighbour
/// discovery could add up to.
const PROGRESS_BYTES: i64 = 100_000;

/// What one cycle showed.
struct Cycle {
    outage: Duration,
    /// Until the new switch was up.
    start: Duration,
    intact: bool,
    held: Held,
}

/// Kills the switch under `count` streams of so many bytes, and adds what that showed.
///
/// # Errors
/// When a part of the testbed fails; a stream that breaks off is no error.
pub fn kill(
    testbed: &mut Testbed,
    (count, bytes): (u32, u64),
    run: &Run,
    measured: &mut Measured,
) -> Result<()> {
    let mut cycles = Vec::new();
    for number in 1..=count {
        run.progress.step(&format!("kill {number}/{count}"));
        let seed = run.seed.wrapping_add(number.into());
        let stream =
            if number.is_multiple_of(2) { Stream::Iperf } else { Stream::Checked { seed } };
        let shown = cycle(testbed, stream, bytes);
        cycles.push(shown.with_context(|| format!("cycle {number}"))?);
    }
    report(&cycles, measured);
    Ok(())
}

fn cycle(testbed: &mut Testbed, stream: Stream, bytes: u64) -> Result<Cycle> {
    let address = Network::Floodway.guest_address(1)?;
    let (guests, switch, _) = testbed.parts()?;
    let [sender, receiver] = [&guests[0], &guests[1]];
    thread::scope(|scope| {
        let running = scope.spawn(|| stream.is_carried(sender, receiver, &address, bytes));
        let ended = || running.is_finished();
        let (outage, start) = kill_in_the_middle(switch, receiver, bytes, &ended)?;
        let intact = joined(running)?;
        Ok(Cycle { outage, start, intact, held: Held::of(guests, switch)? })
    })
}

fn report(cycles: &[Cycle], measured: &mut Measured) {
    let mut outages = samples("outage", "s");
    outages.value = cycles.iter().map(|cycle| cycle.outage.as_secs_f64()).collect();
    let mut starts = samples("start of the switch", "s");
    starts.value = cycles.iter().map(|cycle| cycle.start.as_secs_f64()).collect();
    let longest = outages.value.iter().copied().fold(0.0, f64::max);
    measured.add_samples(outages);
    measured.add_samples(starts);
    measured.add_value("longest outage", "s", longest);
    let of_kind = |intact: bool| cycles.iter().map(move |it| f64::from(it.intact == intact));
    measured.add_value("kills survived", "streams", of_kind(true).sum());
    measured.add_value("streams broken", "streams", of_kind(false).sum());
    let held: Vec<_> = cycles.iter().map(|cycle| cycle.held).collect();
    Held::report(&held, "", measured);
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
    /// the experiment, named by its message, not an error of the lab.
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
