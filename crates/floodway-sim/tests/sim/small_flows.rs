//! Section 6 of the small-flows paper: what a VM gains that tries to cheat. Each test has a control that shows that the cheat
//! would work if the mechanism were not there.

use crate::support::{AT, MBIT, MS, US};
use floodway_sim::cpu::{Credit, CreditConfig, LoadConfig, VcpuSpec};
use floodway_sim::flow::{FlowId, Side};
use floodway_sim::machine::{DriverConfig, MachineConfig, PassThrough, VmConfig};
use floodway_sim::net::{
    Link, NicConfig, QueueConfig, Star, SwitchConfig, Tagger, TaggerConfig, star,
};
use floodway_sim::packet::Address;
use floodway_sim::tcp::TcpConfig;
use floodway_sim::traffic::{Arrivals, Echo, EchoConfig, Queries, QueryConfig, Samples, Sizes};
use floodway_sim::world::{App, AppId, Ctx, World};
use floodway_sim::{Duration, Instant};

const HIGH: u8 = 46;
/// Hosts of the star.
const SINK: u32 = 0;
const CHEAT: u32 = 1;
const HONEST: u32 = 2;
const ASKED: u32 = 3;
/// What each of the two large transfers is.
const BYTES: u64 = 20_000_000;

/// One large transfer, cut into equal parts that go over a connection each, with a code point that the sender chose.
struct Parts {
    from: Address,
    to: Address,
    connections: u32,
    dscp: u8,
    missing: u32,
    done: Option<Instant>,
}

impl Parts {
    fn new(from: Address, to: Address, connections: u32, dscp: u8) -> Self {
        Self { from, to, connections, dscp, missing: connections, done: None }
    }
}

impl App for Parts {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        for part in 0..self.connections {
            let stack = TcpConfig::linux();
            let flow = ctx.open(self.from, self.to, [&stack, &stack]);
            ctx.set_dscp(flow, Side::Client, self.dscp);
            ctx.send(flow, Side::Client, BYTES / u64::from(self.connections), part);
        }
    }

    fn on_message(&mut self, _: FlowId, _: Side, _: u32, ctx: &mut Ctx<'_>) {
        self.missing -= 1;
        if self.missing == 0 {
            self.done = Some(ctx.now());
        }
    }
}

/// What came of a cheat.
#[derive(Debug, PartialEq)]
struct Outcome {
    cheat: Duration,
    honest: Duration,
    /// 99th percentile of somebody's small queries.
    queries: Duration,
    /// High bytes of the cheat, if its host tags.
    high_bytes: u64,
    digest: u64,
}

/// Two large transfers and small answers into one host. `tags`: hosts meter and tag; the switch always has two classes.
fn race(connections: u32, dscp: u8, tags: bool) -> Outcome {
    race_of(1, connections, dscp, tags)
}

/// The same with another jitter for each seed.
fn race_of(seed: u64, connections: u32, dscp: u8, tags: bool) -> Outcome {
    let queue = QueueConfig::packets(200).with_high(HIGH);
    let link = Link::ethernet(1000 * MBIT, US(20)).with_jitter(US(5));
    let net = star(
        seed,
        &Star { links: vec![link; 4], switch: SwitchConfig::new(queue), nic: NicConfig::default() },
    );
    let mut world = World::new(net);
    world.fingerprint();
    let at: Vec<Address> = (0..4).map(|host| world.add_bare(host)).collect();
    for host in (0..4).filter(|_| tags) {
        world.net_mut().set_tagger(host, Tagger::new(TaggerConfig::default(), 1));
    }
    let [sink, cheat, honest, asked] = [SINK, CHEAT, HONEST, ASKED].map(|host| at[host as usize]);
    let cheat = world.add_app(Parts::new(cheat, sink, connections, dscp));
    let honest = world.add_app(Parts::new(honest, sink, 1, 0));
    let queries = world.add_app(Queries::new(QueryConfig {
        clients: vec![sink],
        server: asked,
        request: 100,
        response: Sizes::Fixed(2000),
        service: Duration::ZERO,
        arrivals: Arrivals::Open(MS(2)),
        stack: TcpConfig::linux(),
        seed: 1,
    }));
    world.run(AT(5_000));
    let done = |app: AppId| world.app::<Parts>(app).unwrap().done.unwrap().since(Instant::ZERO);
    let busy = done(cheat).max(done(honest));
    let records = world.app::<Queries>(queries).unwrap().records();
    let during = records.iter().filter(|record| record.begun < Instant::ZERO + busy);
    let times: Samples = during.map(floodway_sim::traffic::Record::time).collect();
    Outcome {
        cheat: done(cheat),
        honest: done(honest),
        queries: times.quantile(0.99).unwrap(),
        high_bytes: world.net().tagger(CHEAT).map_or(0, Tagger::high_bytes),
        digest: world.digest().unwrap(),
    }
}

/// TCP alone gives more connections more of the link; priority adds nothing to that. Which segments are lost moves a
/// single race by a third, so it takes several.
#[test]
fn a_transfer_split_over_many_connections_is_not_faster_for_the_tags() {
    let mut times = [Duration::ZERO; 2];
    for (seed, connections) in (1..=8).flat_map(|seed| [(seed, 8), (seed, 64)]) {
        for (time, tags) in times.iter_mut().zip([true, false]) {
            *time += race_of(seed, connections, 0, tags).cheat;
        }
    }
    let [with, without] = times.map(|time| time.as_secs_f64());
    assert!(with > 0.95 * without, "{with} s with tags, {without} s without");
}

#[test]
fn a_transfer_split_over_many_connections_is_one_flow() {
    let whole = race(1, 0, true);
    let allowed = |outcome: &Outcome| {
        30_000.0 + 1.25e6 * outcome.cheat.as_secs_f64().max(outcome.honest.as_secs_f64())
    };
    for connections in [8, 64] {
        let split = race(connections, 0, true);
        assert!(split.high_bytes as f64 <= allowed(&split), "{split:?}");
        let control = race(connections, 0, false);
        assert!(split.queries < whole.queries * 2, "{:?} {:?}", split.queries, whole.queries);
        assert!(split.queries * 3 < control.queries, "{:?} {:?}", split.queries, control.queries);
    }
}

#[test]
fn a_forged_code_point_changes_nothing() {
    let honest = race(1, 0, true);
    assert_eq!(race(1, HIGH, true), honest, "not an event is different");
    // Where nobody tags, it works: the cheat overtakes, and others pay.
    let (plain, forged) = (race(1, 0, false), race(1, HIGH, false));
    assert!(forged.cheat.as_secs_f64() < 0.8 * plain.cheat.as_secs_f64(), "{plain:?} {forged:?}");
}

/// Slowest round trip of pings to a VM beside some that sleep and burst, and the share of the core that the first of them had.
fn burst(
    bursters: u32,
    busy: Duration,
    pause: Duration,
    preempts: bool,
    rival: bool,
) -> (Duration, f64) {
    let config = CreditConfig { boost_preempts_boost: preempts, ..CreditConfig::xen_4_2() };
    let link = Link::ethernet(1000 * MBIT, US(10));
    let queue = QueueConfig::packets(100);
    let shape =
        Star { links: vec![link; 2], switch: SwitchConfig::new(queue), nic: NicConfig::default() };
    let mut world = World::new(star(1, &shape));
    // With a second core there are credits for two, and nobody runs out of them: the worst case for latency. With one
    // there are too few, and they decide.
    let pcpus = if rival { 1 } else { 2 };
    let machine = world.add_machine(
        0,
        MachineConfig {
            pcpus,
            scheduler: Box::new(Credit::new(pcpus, config)),
            switch_cost: US(3),
            cache_cost: Duration::ZERO,
            driver: DriverConfig::new(VcpuSpec::pinned(pcpus - 1, 256)),
        },
        Box::new(PassThrough),
    );
    let vm = |load| VmConfig { load, ..VmConfig::new(VcpuSpec::pinned(0, 256)) };
    let echo = world.add_vm(machine, &vm(None));
    for n in 0..bursters {
        let load = LoadConfig::operations(1, busy, pause);
        world.add_vm(machine, &vm(Some(LoadConfig { phase: MS(7) * n, ..load })));
    }
    if rival {
        let all = LoadConfig::operations(1, MS(1_000_000), Duration::ZERO);
        world.add_vm(machine, &vm(Some(all)));
    }
    let client = world.add_bare(1);
    let ping = world.add_app(Echo::new(EchoConfig {
        from: client,
        to: echo,
        bytes: 56,
        gap: MS(3),
        random: true,
        count: 6_000,
        seed: 1,
    }));
    world.run(AT(20_000));
    let records = world.app::<Echo>(ping).unwrap().records();
    assert!(records.len() > 5_900);
    let slowest = records.iter().map(floodway_sim::traffic::Record::time).max().unwrap();
    let now = world.now();
    let ran = world.machine(machine).vm_times(1, now).ran;
    (slowest, ran.as_secs_f64() / now.since(Instant::ZERO).as_secs_f64())
}

#[test]
fn who_sleeps_and_bursts_holds_the_core_no_longer_than_the_rate_limit() {
    let rate_limit = CreditConfig::xen_4_2().rate_limit;
    let mut worst_before = Duration::ZERO;
    for (busy, pause) in [(2, 1), (9, 1), (25, 5), (60, 1), (60, 30), (400, 1)] {
        let (slowest, _) = burst(1, MS(busy), MS(pause), true, false);
        assert!(slowest < rate_limit + US(300), "{busy} ms, {pause} ms: {slowest:?}");
        worst_before = worst_before.max(burst(1, MS(busy), MS(pause), false, false).0);
    }
    // As Xen is, the same bursts hold it for most of a slice.
    assert!(worst_before > MS(15), "{worst_before:?}");
}

/// The limit of the change: a wake-up preempts who runs, but not who is next. Where several burst, somebody may wait for
/// another's slice.
#[test]
fn several_who_sleep_and_burst_still_delay() {
    let (slowest, _) = burst(3, MS(25), MS(5), true, false);
    assert!(slowest > MS(5) && slowest < MS(100), "{slowest:?}");
}

/// Credits are what bounds the share: whoever bursts has no more of the core than half beside one that never sleeps.
#[test]
fn who_sleeps_and_bursts_has_no_more_than_its_share() {
    for (busy, pause) in [(9, 1), (60, 30), (400, 1)] {
        let [plain, patched] =
            [false, true].map(|preempts| burst(1, MS(busy), MS(pause), preempts, true).1);
        assert!(patched < 0.53, "{busy} ms, {pause} ms: {patched}");
        assert!(patched < plain + 0.02, "{busy} ms, {pause} ms: {patched} after {plain}");
    }
}
