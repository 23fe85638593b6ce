//! Invariants of the queue disciplines and of the scheduler above them, under arbitrary traffic.

use std::collections::BTreeMap;

use floodway_core::egress::qdisc::{
    Backlog, Cause, Class, CodelConfig, Config, FqConfig, HIGH_BURST, Kind, Packet, Scheduler,
};
use floodway_core::time::{Duration, Instant};
use proptest::prelude::*;

/// What happens to a scheduler.
#[derive(Clone, Debug)]
enum Event {
    Enqueue { high: bool, source: u16, flow: u64, len: u32, ecn: bool },
    Dequeue { n: u32 },
    Wait { us: u64 },
    Trim,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (any::<bool>(), 0_u16..4, 0_u64..6, 60_u32..65_000, any::<bool>())
            .prop_map(|(high, source, flow, len, ecn)| Event::Enqueue { high, source, flow, len, ecn }),
        3 => (1_u32..8).prop_map(|n| Event::Dequeue { n }),
        2 => (0_u64..60_000).prop_map(|us| Event::Wait { us }),
        1 => Just(Event::Trim),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let codel = (0_u64..10_000, 1_u64..100_000, any::<bool>(), proptest::option::of(0_u64..5000));
    (0_usize..3, 1_u32..60, 1_000_u64..600_000, codel, 1_u32..8, 1_u32..9000).prop_map(
        |(kind, limit_packets, limit_bytes, (target, interval, ecn, ce), flows, quantum)| Config {
            high_percent: 75,
            kind: Kind::ALL[kind],
            limit_packets,
            limit_bytes,
            codel: CodelConfig {
                target: Duration::from_micros(target),
                interval: Duration::from_micros(interval),
                mtu: 1514,
                ecn,
                ce_threshold: ce.map(Duration::from_micros),
            },
            fq: FqConfig { flows, quantum },
        },
    )
}

/// A packet's number, and what the test knows of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sent {
    class: Class,
    source: u16,
    packet: Packet<usize>,
}

#[derive(Default)]
struct Ledger {
    sent: Vec<Sent>,
    out: Vec<usize>,
    dropped: Vec<(usize, Cause)>,
    marked: u64,
}

impl Ledger {
    /// Bytes and packets that are neither out nor dropped.
    fn queued(&self, class: Class) -> Backlog {
        let mut waiting: BTreeMap<usize, &Sent> = self.sent.iter().enumerate().collect();
        self.out.iter().chain(self.dropped.iter().map(|(i, _)| i)).for_each(|i| {
            assert!(waiting.remove(i).is_some(), "packet {i} left twice");
        });
        waiting.values().filter(|sent| sent.class == class).fold(Backlog::default(), |sum, sent| {
            Backlog { packets: sum.packets + 1, bytes: sum.bytes + u64::from(sent.packet.len) }
        })
    }
}

fn run(config: Config, events: &[Event]) -> Result<(), TestCaseError> {
    let mut scheduler: Scheduler<usize> = Scheduler::new(config);
    let mut ledger = Ledger::default();
    let (mut now, mut owed) = (Instant::ZERO, 0);
    for event in events {
        match *event {
            Event::Enqueue { high, source, flow, len, ecn } => {
                let class = if high { Class::High } else { Class::Low };
                let packet = Packet { handle: ledger.sent.len(), len, flow, ecn_capable: ecn };
                ledger.sent.push(Sent { class, source, packet });
                scheduler.enqueue(class, source, packet, now, &mut |packet, cause| {
                    ledger.dropped.push((packet.handle, cause));
                });
            }
            Event::Dequeue { n } => {
                for _ in 0..n {
                    let high_waits = scheduler.backlog(Class::High).packets > 0;
                    let dropped = &mut ledger.dropped;
                    let served = scheduler.dequeue(now, &mut |packet, cause| {
                        dropped.push((packet.handle, cause));
                    });
                    let Some(served) = served else {
                        prop_assert!(scheduler.is_empty());
                        break;
                    };
                    let packet = served.departure.packet;
                    let sent = Sent { class: served.class, source: served.source, packet };
                    prop_assert_eq!(sent, ledger.sent[packet.handle]);
                    // A high queue can only be passed over if CoDel has just emptied it, or the low class is behind its share.
                    let high_gone = scheduler.backlog(Class::High).packets == 0;
                    let due = owed > 100 * i64::from(HIGH_BURST);
                    prop_assert!(served.class == Class::High || !high_waits || high_gone || due);
                    let (len, p) = (i64::from(packet.len), i64::from(config.high_percent));
                    owed = match served.class {
                        Class::High if scheduler.backlog(Class::Low).packets == 0 => 0,
                        Class::High => owed + len * (100 - p),
                        Class::Low => (owed - len * p).max(0),
                    };
                    prop_assert!(!served.departure.mark || packet.ecn_capable);
                    ledger.out.push(packet.handle);
                    ledger.marked += u64::from(served.departure.mark);
                }
            }
            Event::Wait { us } => now += Duration::from_micros(us),
            Event::Trim => scheduler.trim(),
        }
        for class in Class::ALL {
            prop_assert_eq!(scheduler.backlog(class), ledger.queued(class));
            let sources = 4;
            let held = scheduler.backlog(class);
            prop_assert!(held.packets <= sources * config.limit_packets);
            prop_assert!(held.bytes <= u64::from(sources) * config.limit_bytes);
        }
    }
    check_counters(&scheduler, &ledger)?;
    in_order(&ledger)
}

fn check_counters(scheduler: &Scheduler<usize>, ledger: &Ledger) -> Result<(), TestCaseError> {
    let counters = scheduler.counters();
    let dropped = |cause| ledger.dropped.iter().filter(|(_, c)| *c == cause).count() as u64;
    prop_assert_eq!(counters.enqueued, ledger.sent.len() as u64);
    prop_assert_eq!(counters.dequeued, ledger.out.len() as u64);
    prop_assert_eq!(counters.dropped_full, dropped(Cause::Full));
    prop_assert_eq!(counters.dropped_aqm, dropped(Cause::Aqm));
    prop_assert_eq!(counters.marked, ledger.marked);
    Ok(())
}

/// Packets of a flow leave in the order in which they came.
fn in_order(ledger: &Ledger) -> Result<(), TestCaseError> {
    let mut last: BTreeMap<(Class, u16, u64), usize> = BTreeMap::new();
    for &i in &ledger.out {
        let Sent { class, source, packet } = ledger.sent[i];
        let before = last.insert((class, source, packet.flow), i);
        prop_assert!(before.is_none_or(|before| before < i));
    }
    Ok(())
}

proptest! {
    /// In is out plus dropped plus queued; limits hold; flows keep their order; high goes first.
    #[test]
    fn conservation_limits_order_and_precedence(
        config in config(),
        events in proptest::collection::vec(event(), 1..200),
    ) {
        run(config, &events)?;
    }

    /// Sources that always have packets share the link by bytes, whatever their packets and flows.
    #[test]
    fn backlogged_sources_share_by_bytes(
        lens in proptest::collection::vec(60_u32..65_000, 2..5),
        flows in proptest::collection::vec(1_u64..50, 5),
        quantum in 1_u32..10_000,
        kind in 0_usize..3,
    ) {
        // CoDel would drop what waits for ever; here only the turns are of interest.
        let codel = CodelConfig { target: Duration::MAX, ..CodelConfig::default() };
        let fq = FqConfig { flows: 64, quantum };
        let config = Config { kind: Kind::ALL[kind], codel, fq, limit_bytes: u64::MAX, ..Config::default() };
        let mut scheduler = Scheduler::new(config);
        let mut none = |_: Packet<()>, _| panic!("there is room");
        let mut sent = vec![0_u64; lens.len()];
        let mut number = 0;
        for _ in 0..400 {
            for (source, &len) in lens.iter().enumerate() {
                number += 1;
                let packet = Packet { handle: (), len, flow: number % flows[source], ecn_capable: false };
                scheduler.enqueue(Class::Low, source as u16, packet, Instant::ZERO, &mut none);
            }
            let served = scheduler.dequeue(Instant::ZERO, &mut none).expect("a packet");
            sent[usize::from(served.source)] += u64::from(served.departure.packet.len);
            let spread = sent.iter().max().unwrap() - sent.iter().min().unwrap();
            let largest = u64::from(*lens.iter().max().unwrap());
            prop_assert!(spread <= u64::from(quantum) + 2 * largest, "{sent:?}");
        }
    }

    /// Backlogged flows of one source do so too, and one with few bytes never waits a whole round.
    #[test]
    fn flows_share_by_bytes(lens in proptest::collection::vec(60_u32..9000, 2..20), quantum in 1_u32..10_000) {
        let codel = CodelConfig { target: Duration::MAX, ..CodelConfig::default() };
        let fq = FqConfig { flows: 1024, quantum };
        let config = Config { codel, fq, limit_bytes: u64::MAX, limit_packets: 1 << 20, ..Config::default() };
        let mut queue = config.build::<()>();
        let mut none = |_: Packet<()>, _| panic!("there is room");
        let mut sent = vec![0_u64; lens.len()];
        for _ in 0..300 {
            for (flow, &len) in lens.iter().enumerate() {
                let packet = Packet { handle: (), len, flow: flow as u64, ecn_capable: false };
                queue.enqueue(packet, Instant::ZERO, &mut none);
            }
            let packet = queue.dequeue(Instant::ZERO, &mut none).expect("a packet").packet;
            sent[packet.flow as usize] += u64::from(packet.len);
            let spread = sent.iter().max().unwrap() - sent.iter().min().unwrap();
            let largest = u64::from(*lens.iter().max().unwrap());
            prop_assert!(spread <= u64::from(quantum) + 2 * largest, "{sent:?}");
        }
    }
}

/// A source that sends one GSO packet whenever its queue is empty gets no more than its share.
#[test]
fn leaving_the_round_does_not_clear_a_debt() {
    let mut scheduler = Scheduler::new(Config { kind: Kind::Fifo, ..Config::default() });
    let mut none = |_: Packet<()>, _| {};
    let packet = |len| Packet { handle: (), len, flow: 0, ecn_capable: false };
    let mut sent = [0_u64; 2];
    let mut waiting = false;
    for _ in 0..2000 {
        scheduler.enqueue(Class::Low, 0, packet(1500), Instant::ZERO, &mut none);
        if !waiting {
            scheduler.enqueue(Class::Low, 1, packet(64_000), Instant::ZERO, &mut none);
            waiting = true;
        }
        let served = scheduler.dequeue(Instant::ZERO, &mut none).expect("a packet");
        waiting &= served.source != 1;
        sent[usize::from(served.source)] += u64::from(served.departure.packet.len);
    }
    assert!(sent[1] <= sent[0] + 2 * 64_000, "{sent:?}");
    assert!(sent[1] + 2 * 64_000 >= sent[0], "{sent:?}");
}

/// A VM that fills its queue costs the other one no packet.
#[test]
fn a_full_queue_is_its_owners_problem() {
    for kind in Kind::ALL {
        let mut scheduler =
            Scheduler::new(Config { kind, limit_packets: 100, ..Config::default() });
        let packet = |handle| Packet { handle, len: 1500, flow: 3, ecn_capable: false };
        let mut lost = Vec::new();
        for _ in 0..10_000 {
            scheduler
                .enqueue(Class::Low, 1, packet(1), Instant::ZERO, &mut |p, _| lost.push(p.handle));
        }
        for _ in 0..100 {
            scheduler
                .enqueue(Class::Low, 2, packet(2), Instant::ZERO, &mut |p, _| lost.push(p.handle));
        }
        assert!(lost.len() >= 9900 && lost.iter().all(|&source| source == 1), "{kind:?}");
    }
}

/// Nobody waits for a paused source, not even the low class for the high one; what it has is there when it is resumed.
#[test]
fn a_paused_source_keeps_its_packets_and_holds_up_nobody() {
    let mut scheduler = Scheduler::new(Config { kind: Kind::Fifo, ..Config::default() });
    let mut none = |_: Packet<u32>, _| {};
    let packet = |handle| Packet { handle, len: 1500, flow: 0, ecn_capable: false };
    let mut put = |scheduler: &mut Scheduler<u32>, class, source, n| {
        scheduler.enqueue(class, source, packet(n), Instant::ZERO, &mut none);
    };
    put(&mut scheduler, Class::High, 1, 1);
    scheduler.pause(Class::High, 1);
    scheduler.pause(Class::High, 7);
    put(&mut scheduler, Class::High, 1, 2);
    assert!(!scheduler.is_empty() && !scheduler.has_ready());
    put(&mut scheduler, Class::Low, 1, 3);
    put(&mut scheduler, Class::High, 2, 4);
    let take = |scheduler: &mut Scheduler<u32>| {
        let served = scheduler.dequeue(Instant::ZERO, &mut |_, _| {})?;
        Some(served.departure.packet.handle)
    };
    assert!(scheduler.has_ready());
    assert_eq!([4, 3].map(Some), [take(&mut scheduler), take(&mut scheduler)]);
    assert_eq!((take(&mut scheduler), scheduler.is_empty()), (None, false));
    scheduler.trim();
    scheduler.trim();
    scheduler.resume(Class::High, 1);
    scheduler.resume(Class::High, 7);
    assert_eq!([1, 2].map(Some), [take(&mut scheduler), take(&mut scheduler)]);
    assert_eq!((take(&mut scheduler), scheduler.is_empty()), (None, true));
}

proptest! {
    /// However much the high class has, the low one gets its percent of any interval in which it has packets.
    #[test]
    fn the_high_class_leaves_the_low_one_its_share(
        percent in 1_u8..=99,
        lens in proptest::collection::vec((60_u32..=1514, 60_u32..=65_000), 50..400),
    ) {
        let config = Config { kind: Kind::Fifo, high_percent: percent, limit_bytes: 1 << 30, ..Config::default() };
        let mut scheduler = Scheduler::new(config);
        let mut none = |_: Packet<()>, _| {};
        let packet = |len| Packet { handle: (), len, flow: 0, ecn_capable: false };
        for &(high, low) in &lens {
            for source in 0..8 {
                scheduler.enqueue(Class::High, source, packet(high), Instant::ZERO, &mut none);
                scheduler.enqueue(Class::Low, source, packet(low), Instant::ZERO, &mut none);
            }
        }
        let (p, burst) = (i64::from(percent), i64::from(HIGH_BURST) + 65_000);
        // What the low class is owed, and the least that it was: intervals are differences.
        let (mut owed, mut least) = (0, 0);
        while scheduler.backlog(Class::Low).packets > 1 {
            let served = scheduler.dequeue(Instant::ZERO, &mut none).expect("a packet");
            let len = i64::from(served.departure.packet.len);
            owed += if served.class == Class::High { len * (100 - p) } else { -len * p };
            least = least.min(owed);
            prop_assert!(owed - least <= 100 * burst, "{owed} {least}");
        }
    }
}

#[test]
fn a_low_class_that_is_paused_is_owed_no_more_than_a_burst() {
    let config = Config { kind: Kind::Fifo, limit_bytes: 1 << 30, ..Config::default() };
    let mut scheduler = Scheduler::new(config);
    let mut none = |_: Packet<()>, _| {};
    let packet = Packet { handle: (), len: 1500, flow: 0, ecn_capable: false };
    let mut put = |scheduler: &mut Scheduler<()>, class| {
        scheduler.enqueue(class, 1, packet, Instant::ZERO, &mut none);
    };
    let take = |scheduler: &mut Scheduler<()>| {
        scheduler.dequeue(Instant::ZERO, &mut |_, _| {}).map(|served| served.class)
    };
    put(&mut scheduler, Class::Low);
    scheduler.pause(Class::Low, 1);
    for _ in 0..10_000 {
        put(&mut scheduler, Class::High);
        assert_eq!(take(&mut scheduler), Some(Class::High));
    }
    scheduler.resume(Class::Low, 1);
    for _ in 0..10_000 {
        put(&mut scheduler, Class::Low);
        put(&mut scheduler, Class::High);
    }
    let low = std::iter::from_fn(|| take(&mut scheduler)).take_while(|&c| c == Class::Low).count();
    assert!(
        low * 1500 <= HIGH_BURST as usize + 2 * 1500,
        "{low} packets of the low class in a row"
    );
}

/// Small flows' bursts go first, whatever waits in the low class.
#[test]
fn a_burst_of_the_high_class_waits_for_nothing() {
    let mut scheduler = Scheduler::new(Config { kind: Kind::Fifo, ..Config::default() });
    let mut none = |_: Packet<()>, _| {};
    let packet = |len| Packet { handle: (), len, flow: 0, ecn_capable: false };
    for _ in 0..1000 {
        scheduler.enqueue(Class::Low, 0, packet(1500), Instant::ZERO, &mut none);
        scheduler.enqueue(Class::High, 1, packet(1500), Instant::ZERO, &mut none);
    }
    let mut class = || scheduler.dequeue(Instant::ZERO, &mut none).expect("a packet").class;
    let burst = (0..).take_while(|_| class() == Class::High).count();
    assert_eq!(burst, 4 * 65_536 / 1500 + 1);
    let high = (0..400).filter(|_| class() == Class::High).count();
    assert!((299..=301).contains(&high), "three quarters: {high}");
}
