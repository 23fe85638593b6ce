//! A scenario in our simulator.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant as Wall};

use anyhow::{Result, ensure};
use floodway_core::congestion::Algorithm;
use floodway_core::rtt::RtoLimits;
use floodway_sim::Instant;
use floodway_sim::net::{Builder, Link, NicConfig, Node, QueueConfig, SwitchConfig};
use floodway_sim::packet::Address;
use floodway_sim::parallel::Parallel;
use floodway_sim::tcp::{Buffer, TcpConfig};
use floodway_sim::traffic::{Entry, Record, Replay, Work};
use floodway_sim::world::{AppId, World};

use super::outcome::{Outcome, Phase};
use super::scenario::{Scenario, Tcp};

/// ns-3's point-to-point link adds the two bytes of PPP to an IP packet.
const LINK_HEADER: u32 = 2;
/// Parts of a network that runs in parts: the pods of the tree of 1024 hosts.
const PARTS: usize = 8;
/// Applications write all at once, as into a socket buffer that never binds.
const SEND_BUFFER: u32 = 2000 << 20;

/// Runs it as a whole, in one thread.
#[must_use]
pub fn play(scenario: &Scenario) -> Outcome {
    let (mut world, app) = populated(scenario);
    let mut run = |until| {
        world.run(Instant::ZERO + until);
        world.events()
    };
    let [before, measured] = phases(scenario, &mut run);
    let replay = world.app::<Replay>(app);
    let done = done(scenario, |n| replay.and_then(|replay| replay.record(n)));
    Outcome { before, measured, memory_kib: memory_kib(), digest: None, done }
}

/// Runs it in parts, by so many threads. Its digest is the same for any number of them.
///
/// # Errors
/// When there are fewer parts than threads, or a link between parts has no delay.
pub fn play_in_parts(scenario: &Scenario, threads: NonZeroUsize) -> Result<Outcome> {
    ensure!(threads.get() <= PARTS, "--threads {threads}: the network has {PARTS} parts");
    let (mut world, app) = populated(scenario);
    world.fingerprint();
    let mut parallel = Parallel::new(world, PARTS)?;
    let mut run = |until| {
        parallel.run(Instant::ZERO + until, threads);
        parallel.events()
    };
    let [before, measured] = phases(scenario, &mut run);
    let replays: Vec<&Replay> = parallel.app(app).collect();
    let done = done(scenario, |n| replays.iter().find_map(|replay| replay.record(n)));
    let digest = parallel.digest();
    Ok(Outcome { before, measured, memory_kib: memory_kib(), digest, done })
}

fn populated(scenario: &Scenario) -> (World, AppId) {
    let (mut world, hosts) = build(scenario);
    let entries = entries(scenario, &hosts);
    let app = world.add_app(Replay::new(entries, stack(&scenario.tcp)));
    (world, app)
}

/// When each transfer was complete.
fn done(scenario: &Scenario, record: impl Fn(usize) -> Option<Record>) -> Vec<Option<u64>> {
    let transfers = (0..).zip(&scenario.work).filter(|(_, work)| work.bytes.is_some());
    transfers.map(|(n, _)| record(n).map(|record| record.done.as_nanos())).collect()
}

/// Both parts of the run. `run` goes on up to a time and returns the number of events so far.
fn phases(scenario: &Scenario, run: &mut impl FnMut(Duration) -> u64) -> [Phase; 2] {
    let mut last = 0;
    [scenario.measure_from, scenario.until].map(|until| {
        let (begin, cpu_begin) = (Wall::now(), cpu_seconds());
        let events = run(until);
        Phase {
            seconds: begin.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds() - cpu_begin,
            events: events - std::mem::replace(&mut last, events),
        }
    })
}

fn build(scenario: &Scenario) -> (World, Vec<Address>) {
    let mut builder = Builder::new(0);
    let limit = scenario.queue_packets;
    // One descriptor of the ring is one packet of the limit.
    let queue = QueueConfig::packets(limit.saturating_sub(1));
    let nic = NicConfig { ring_bytes: u64::MAX, ring_slots: 1, queue };
    let mut nodes: Vec<Node> = (0..scenario.hosts).map(|_| builder.host(nic)).collect();
    let switch = SwitchConfig::new(QueueConfig::packets(limit));
    nodes.extend((0..scenario.switches).map(|_| builder.switch(switch)));
    for link in &scenario.links {
        let [a, b] = link.nodes.map(|node| nodes[node as usize]);
        let raw = Link { overhead: LINK_HEADER, ..Link::raw(link.rate, link.delay) };
        builder.connect(a, b, raw);
    }
    let mut world = World::new(builder.build());
    let hosts = (0..scenario.hosts).map(|host| world.add_bare(host)).collect();
    (world, hosts)
}

fn entries(scenario: &Scenario, hosts: &[Address]) -> Vec<Entry> {
    let entry = |work: &super::scenario::Work| Entry {
        start: work.start,
        from: hosts[work.from as usize],
        to: hosts[work.to as usize],
        work: work.bytes.map_or(Work::Open, Work::Transfer),
    };
    scenario.work.iter().map(entry).collect()
}

/// Everything in which our stack differs from ns-3's unless told otherwise is set to what ns-3 does.
fn stack(tcp: &Tcp) -> TcpConfig {
    TcpConfig {
        mss: tcp.mss,
        initial_window: tcp.initial_window,
        delayed_ack: tcp.delayed_ack,
        rto: RtoLimits { min: tcp.min_rto, max: Duration::from_secs(120) },
        syn_rto: tcp.syn_rto,
        receive: Buffer { initial: tcp.receive_buffer, max: tcp.receive_buffer },
        send: Buffer { initial: SEND_BUFFER, max: SEND_BUFFER },
        idle_restart: false,
        // ns-3 3.37 does not ask whether a window was used before it widens it.
        validate_window: false,
        // ns-3 acknowledges a connection's first segment at once, and then every second one.
        quick_acks: 1,
        ..TcpConfig::plain(Algorithm::NewReno)
    }
}

/// Processor time of this thread; to a few ms.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
    nanos.unwrap_or(0.0) / 1e9
}

/// Most memory that this process has had.
fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::shapes;
    use super::*;

    #[test]
    fn threads_make_no_difference() {
        let scenario = shapes::fat_tree(&shapes::Tree::PAPER, Duration::from_millis(2), 1);
        let [one, three] = [1, 3].map(|threads| {
            let threads = NonZeroUsize::new(threads).unwrap();
            play_in_parts(&scenario, threads).unwrap()
        });
        assert!(one.done.iter().any(Option::is_some));
        assert_eq!(
            (one.digest, one.measured.events, one.done),
            (three.digest, three.measured.events, three.done)
        );
    }

    #[test]
    fn all_transfers_of_a_short_dumbbell_arrive() {
        let scenario = shapes::dumbbell_bulk(3, 100_000, 1);
        let outcome = play(&scenario);
        assert_eq!(outcome.done.len(), 3);
        for (done, (work, bytes)) in outcome.done.iter().zip(scenario.transfers()) {
            let time = done.unwrap() - work.start.as_nanos() as u64;
            assert!(time > bytes * 8, "{time} ns is less than a gigabit needs for {bytes} bytes");
        }
    }
}
