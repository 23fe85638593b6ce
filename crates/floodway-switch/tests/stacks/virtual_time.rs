//! Both stacks at both ends of the engine alone, in virtual time.
//!
//! Faults of the stacks themselves, with the offload off as well, bound what can be asked of them:
//!
//! - smoltcp 0.14, as receiver, ignores a FIN that is repeated in a segment whose data it has already; as sender it never
//!   repeats a FIN for which three duplicate ACKs have come. So FINs from and to it wait and never ride on data
//!   ([`Plan::lone_fin`]). After timeouts at both ends at once both go back, and each takes the other's ACKs for
//!   old; so two smoltcps have a stream one way. Bytes that nobody has read when TIME-WAIT ends are gone
//!   (`smol` takes them out before).
//! - lwIP 2.1 fails an assertion when its persist timer expires at a window of a multiple of 64 KiB (see [`options`]). A sender
//!   that has sent beyond a window that then closed can stop for good.
//!
//! What is left of them rarely stops a case with the offload off; a search reports these apart.

use floodway_core::congestion::Algorithm;
use floodway_core::offload::{Config, Transmit};
use floodway_core::time::{Duration, Instant};
use smoltcp::socket::tcp::CongestionControl;

use super::app::{Close, Plan, Reading};
use super::lwip::Lwip;
use super::path::PathConfig;
use super::random::Random;
use super::smol::{Options, Smoltcp};
use super::stack::{Addresses, Stack};
use super::world::{Cpu, Setup, World};

/// Whose stack an end has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Smoltcp,
    Lwip,
}

const GUEST: Addresses = Addresses { own: 1, peer: 2 };
const PEER: Addresses = Addresses { own: 2, peer: 1 };

/// A case: what both runs of it, with the offload and without, have in common.
#[derive(Clone, Debug)]
struct Case {
    setup: Setup,
    guest: (Kind, Options),
    peer: (Kind, Options),
}

fn stack(
    (kind, options): (Kind, Options),
    at: Addresses,
    listens: bool,
    seed: u64,
) -> Box<dyn Stack> {
    match kind {
        Kind::Smoltcp => Box::new(Smoltcp::new(at, listens, options, seed)),
        Kind::Lwip => Box::new(Lwip::new(at, listens, seed)),
    }
}

/// smoltcp's options. `other` is the stack at the other end: lwIP 2.1 fails an assertion when its persist timer expires
/// at a window of a multiple of 64 KiB (`tcp_slowtmr` passes the window as 16 bits to `tcp_split_unsent_seg`).
fn options(random: &mut Random, other: Kind) -> Options {
    let buffers: &[usize] = match other {
        Kind::Smoltcp => &[4 << 10, 32 << 10, 64 << 10, 256 << 10],
        Kind::Lwip => &[4 << 10, 32 << 10, 60_000],
    };
    Options {
        receive_buffer: random.pick(buffers),
        send_buffer: random.pick(&[16 << 10, 64 << 10, 256 << 10]),
        timestamps: random.permille(500),
        nagle: random.permille(500),
        congestion: random.pick(&[
            CongestionControl::None,
            CongestionControl::Reno,
            CongestionControl::Cubic,
        ]),
        mtu: random.pick(&[1500, 1500, 576, 1280]),
        v6: false,
    }
}

fn path(random: &mut Random) -> PathConfig {
    let ms = Duration::from_micros;
    PathConfig {
        delay: ms(random.pick(&[100, 1_000, 10_000, 50_000])),
        rate: random.pick(&[1_250, 12_500, 125_000]),
        queue: random.pick(&[30_000, 256_000]),
        loss: random.pick(&[0, 0, 5, 10, 20, 50]),
        reorder: random.pick(&[0, 0, 10, 50]),
        reorder_by: ms(random.pick(&[200, 2_000])),
        duplicate: random.pick(&[0, 0, 10, 30]),
    }
}

fn plan(random: &mut Random, close: Close, lone_fin: bool) -> Plan {
    let pauses = Reading::Pauses {
        bytes: random.pick(&[20_000, 80_000]),
        pause: Duration::from_millis(random.pick(&[50, 500, 3_000])),
    };
    Plan {
        bytes: random.pick(&[0, 1, 10_000, 100_000, 300_000]),
        reading: if random.permille(300) { pauses } else { Reading::AtOnce },
        close,
        lone_fin,
    }
}

impl Case {
    /// The case that follows from `seed`.
    fn new(guest: Kind, peer: Kind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ms = Duration::from_millis;
        let cpu = Cpu { runs: (ms(1), ms(5)), away: (ms(1), ms(random.pick(&[10, 90]))) };
        let close = random.pick(&[
            (Close::WhenWritten, Close::WhenWritten),
            (Close::WhenWritten, Close::AfterPeer),
            (Close::AfterPeer, Close::WhenWritten),
        ]);
        let lone_fin = guest == Kind::Smoltcp || peer == Kind::Smoltcp;
        let budget = random.pick(&[128 << 10, 4 << 20]);
        let mut setup = Setup {
            seed,
            offload: Config {
                congestion: random.pick(&[Algorithm::Cubic, Algorithm::Reno]),
                budget,
                receive_budget: budget,
                early_ack_min_rtt: Duration::ZERO,
                ..Config::default()
            },
            guest: plan(&mut random, close.0, lone_fin),
            peer: plan(&mut random, close.1, lone_fin),
            to_peer: path(&mut random),
            to_guest: path(&mut random),
            cpu: random.permille(600).then_some(cpu),
            guest_connects: random.permille(500),
            gso_packets: random.permille(500),
            gro: None,
            queue_drops: 0,
            guest_drops: 0,
            toggle: random.permille(150).then_some(ms(100)),
        };
        // Every third guest, and every third peer, reads so slowly that its window closes.
        let slow = Reading::Pauses { bytes: 20_000, pause: ms(1_000) };
        let (own, other) = (&mut setup.guest, &mut setup.peer);
        match seed % 3 {
            0 => (own.reading, other.bytes) = (slow, 300_000),
            1 => (other.reading, own.bytes) = (slow, 300_000),
            _ => {}
        }
        // Streams both ways can stop two smoltcps for good.
        if guest == Kind::Smoltcp && peer == Kind::Smoltcp {
            let empty = if seed % 3 == 1 { &mut setup.peer } else { &mut setup.guest };
            empty.bytes = 0;
        }
        let mut ends = (options(&mut random, peer), options(&mut random, guest));
        // lwIP's program speaks IPv4 only.
        let v6 = guest == Kind::Smoltcp && peer == Kind::Smoltcp && random.permille(400);
        for end in [&mut ends.0, &mut ends.1] {
            end.v6 = v6;
            end.mtu = if v6 { end.mtu.max(1280) } else { end.mtu };
        }
        setup.gro = random.permille(300).then_some(Duration::from_micros(200));
        setup.queue_drops = random.pick(&[0, 0, 10, 30]);
        setup.guest_drops = random.pick(&[0, 0, 10, 30]);
        Self { setup, guest: (guest, ends.0), peer: (peer, ends.1) }
    }

    fn world(&self, transmit: Transmit, receive: bool) -> World {
        let mut setup = self.setup.clone();
        setup.offload.set_transmit(transmit);
        setup.offload.receive = receive;
        let guest = stack(self.guest, GUEST, !setup.guest_connects, setup.seed);
        let peer = stack(self.peer, PEER, setup.guest_connects, setup.seed + 1);
        World::new(&setup, guest, peer)
    }

    fn run(&self, transmit: Transmit, receive: bool) -> Result<World, String> {
        let mut world = self.world(transmit, receive);
        world.run(LIMIT).map(|()| world)
    }
}

/// Cases of each pair of stacks that every run of the tests has.
const CASES: u64 = 12;

/// Virtual time that a transfer may take: a hang, not a slow one.
const LIMIT: Duration = Duration::from_secs(3600);

const OFFLOADS: [(Transmit, bool); 6] = [
    (Transmit::Off, false),
    (Transmit::Module, false),
    (Transmit::Off, true),
    (Transmit::Module, true),
    (Transmit::Agentless, false),
    (Transmit::Agentless, true),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What the offload did in all runs with it.
#[derive(Debug, Default)]
struct Totals {
    stored: u64,
    retransmitted: u64,
    acknowledged: u64,
    window_updates: u64,
    early_acks: u64,
    redelivered: u64,
    withdrawn: u64,
    /// Segments by which the ends closed their windows.
    closed_by_guest: u64,
    closed_by_peer: u64,
}

impl Totals {
    fn add(&mut self, world: &World) {
        let counters = world.offload.counters();
        self.stored += counters.stored_bytes;
        self.retransmitted += counters.retransmitted;
        self.acknowledged += counters.acknowledged_bytes;
        self.window_updates += counters.window_updates;
        self.early_acks += counters.early_acks;
        self.redelivered += counters.redelivered;
        self.withdrawn += counters.rx_withdrawn;
        self.closed_by_guest += world.wire.closed_by_guest;
        self.closed_by_peer += world.wire.closed_by_peer;
    }

    /// Sweeps over paths that harm nothing would prove nothing.
    fn check(&self) {
        let done = [self.stored, self.retransmitted, self.acknowledged, self.window_updates];
        let more = [self.early_acks, self.redelivered, self.withdrawn];
        let closed = [self.closed_by_guest, self.closed_by_peer];
        let all = done.into_iter().chain(more).chain(closed).all(|n| n > 0);
        assert!(all, "the offload had nothing to do: {self:?}");
    }
}

/// Runs a case; a broken invariant is a reason as well.
fn outcome(case: &Case, transmit: Transmit, receive: bool) -> Result<World, String> {
    let run = std::panic::AssertUnwindSafe(|| case.run(transmit, receive));
    std::panic::catch_unwind(run).unwrap_or_else(|_| Err("a panic, see above".to_owned()))
}

/// What failed in a search.
#[derive(Debug, Default)]
struct Failures {
    with_offload: Vec<(u64, Transmit, bool)>,
    /// Without offload: faults of the stacks.
    alone: Vec<u64>,
}

/// Runs a case with the offload off, in either half, and in both. If it fails with the offload off, that is all.
fn run_all_ways(case: &Case, seed: u64, totals: &mut Totals, failures: &mut Failures) {
    for (transmit, receive) in OFFLOADS {
        match outcome(case, transmit, receive) {
            Ok(world) => totals.add(&world),
            Err(reason) => {
                eprintln!("seed {seed}, offload {transmit:?} {receive}: {reason}\n{case:?}\n");
                if (transmit, receive) == (Transmit::Off, false) {
                    return failures.alone.push(seed);
                }
                failures.with_offload.push((seed, transmit, receive));
            }
        }
    }
}

/// Runs cases of two stacks. `FLOODWAY_CASES=N` asks for another number of them, `FLOODWAY_SEED=S` for those from seed `S`
/// on. All are run, also after one has failed.
fn streams_arrive(guest: Kind, peer: Kind) {
    let first = number("FLOODWAY_SEED").unwrap_or(1);
    let cases = number("FLOODWAY_CASES").unwrap_or(CASES);
    let (mut totals, mut failures) = (Totals::default(), Failures::default());
    for seed in first..first + cases {
        run_all_ways(&Case::new(guest, peer, seed), seed, &mut totals, &mut failures);
    }
    let few_alone = failures.alone.len() as u64 * 100 <= cases;
    assert!(few_alone && failures.with_offload.is_empty(), "of {cases} from {first}: {failures:?}");
    if cases >= CASES {
        totals.check();
    }
}

#[test]
fn streams_arrive_between_smoltcp_and_smoltcp() {
    streams_arrive(Kind::Smoltcp, Kind::Smoltcp);
}

#[test]
fn streams_arrive_between_smoltcp_and_lwip() {
    streams_arrive(Kind::Smoltcp, Kind::Lwip);
}

#[test]
fn streams_arrive_between_lwip_and_smoltcp() {
    streams_arrive(Kind::Lwip, Kind::Smoltcp);
}

#[test]
fn streams_arrive_between_lwip_and_lwip() {
    streams_arrive(Kind::Lwip, Kind::Lwip);
}

/// A guest that sends to a peer that reads all the time, over a path that loses 1 % of the frames both ways.
fn upload(guest: Kind, peer: Kind, seed: u64) -> Case {
    let mut case = Case::new(guest, peer, seed);
    let lossy = PathConfig { loss: 10, ..PathConfig::default() };
    (case.setup.to_peer, case.setup.to_guest) = (lossy, lossy);
    (case.setup.guest.bytes, case.setup.peer.bytes) = (500_000, 0);
    (case.setup.guest.reading, case.setup.peer.reading) = (Reading::AtOnce, Reading::AtOnce);
    (case.setup.guest.close, case.setup.peer.close) = (Close::WhenWritten, Close::AfterPeer);
    (case.setup.toggle, case.setup.queue_drops, case.setup.guest_drops) = (None, 0, 0);
    case
}

/// I7, for guests that have a CPU or wait for one: the switch repairs what the path loses. Without it, they repeat.
#[test]
fn no_guest_repeats_what_the_switch_has() {
    let (mut repaired, mut plain_repeats) = (0, 0);
    for guest in [Kind::Smoltcp, Kind::Lwip] {
        for peer in [Kind::Smoltcp, Kind::Lwip] {
            for seed in 1..=4 {
                let case = upload(guest, peer, seed);
                let world = case.run(Transmit::Module, false).expect("the streams arrive");
                assert_eq!(world.wire.guest_repeats, 0, "{case:?}");
                repaired += world.offload.counters().retransmitted;
                let plain = case.run(Transmit::Off, false).expect("the streams arrive");
                plain_repeats += plain.wire.guest_repeats;
            }
        }
    }
    assert!(repaired > 0 && plain_repeats > 0, "{repaired} {plain_repeats}");
}

/// A reset of either end, in the middle of streams both ways, ends the connection at both ends at once and leaves
/// nothing in the switch.
#[test]
fn a_reset_ends_the_connection_at_both_ends() {
    for (guest, peer) in [(Kind::Smoltcp, Kind::Lwip), (Kind::Lwip, Kind::Smoltcp)] {
        for (transmit, receive) in OFFLOADS {
            for at_guest in [false, true] {
                let mut case = upload(guest, peer, 1);
                (case.setup.guest.bytes, case.setup.peer.bytes) = (500_000, 500_000);
                (case.setup.to_peer, case.setup.to_guest) = Default::default();
                let mut world = case.world(transmit, receive);
                world.connect();
                let in_the_middle = |world: &World| world.read_so_far().iter().all(|&n| n > 50_000);
                let limit = Duration::from_secs(10);
                world.run_until(limit, in_the_middle).expect("a connection");
                world.abort(at_guest);
                let ended = |world: &World| world.are_reset() == [true; 2];
                world.run_until(Duration::from_secs(1), ended).expect("a reset at both ends");
                let counters = world.offload.counters();
                assert_eq!(counters.flows_opened, counters.flows_closed, "{case:?}");
            }
        }
    }
}

/// Guests without the module send as fast as their CPU lets them, and what is acknowledged early has arrived when they have closed: the last byte and the FIN are the peer's
/// to acknowledge.
#[test]
fn guests_without_the_module_do_not_wait_for_the_network() {
    for guest in [Kind::Smoltcp, Kind::Lwip] {
        for peer in [Kind::Smoltcp, Kind::Lwip] {
            let mut early = 0;
            for seed in 1..=4 {
                let case = upload(guest, peer, seed);
                let world = case.run(Transmit::Agentless, false).expect("the streams arrive");
                let counters = world.offload.counters();
                assert_eq!(counters.early_acks_aborted, 0, "{case:?}");
                early += counters.early_acks;
            }
            assert!(early > 0, "{guest:?} {peer:?}");
        }
    }
}

/// A guest that has its CPU for 1 to 5 ms of every 11 to 15, over a round trip of 10 ms. Its time from the first SYN to the end of the connection, with and without, is printed.
#[test]
fn guests_without_the_module_that_wait_for_their_cpu_send_sooner() {
    let ms = Duration::from_millis;
    for guest in [Kind::Smoltcp, Kind::Lwip] {
        for peer in [Kind::Smoltcp, Kind::Lwip] {
            let (mut off, mut on) = (0.0, 0.0);
            for seed in 1..=8 {
                let mut case = upload(guest, peer, seed);
                let path = PathConfig { delay: ms(5), ..PathConfig::default() };
                (case.setup.to_peer, case.setup.to_guest) = (path, path);
                case.setup.cpu = Some(Cpu { runs: (ms(1), ms(5)), away: (ms(10), ms(10)) });
                let took = |transmit| {
                    let world = case.run(transmit, false).expect("the streams arrive");
                    world.now.since(Instant::ZERO).as_secs_f64()
                };
                off += took(Transmit::Off);
                on += took(Transmit::Agentless);
            }
            eprintln!("{guest:?} to {peer:?}: {off:.2} s, {on:.2} s, {:.2} times", off / on);
            assert!(on < off, "{guest:?} {peer:?}: {on} s, {off} s without");
        }
    }
}
