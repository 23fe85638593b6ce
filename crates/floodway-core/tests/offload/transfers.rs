//! Transfers over paths and peers of many kinds.

use floodway_core::congestion::Algorithm;
use floodway_core::histogram::{BUCKETS, upper_bound};
use floodway_core::offload::{BufferPolicy, Reason, TxState};
use floodway_core::time::Duration;

use crate::harness::tcp::TcpConfig;
use crate::harness::{CpuConfig, Setup, World};

const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;
const MB: i64 = 1 << 20;

fn run(setup: Setup, up: i64, down: i64) -> World {
    let mut world = World::new(setup);
    world.connect();
    world.transfer(up, down, SECONDS(60));
    world.check_i7();
    world
}

/// 30 ms of every 90.
pub fn contended() -> CpuConfig {
    CpuConfig { runs: (MS(30), MS(30)), away: (MS(60), MS(60)) }
}

#[test]
fn one_megabyte_each_way() {
    for (name, up, down) in [("up", MB, 0), ("down", 0, MB), ("both", MB, MB)] {
        let world = run(Setup { name, ..Setup::default() }, up, down);
        assert_eq!(world.refused, 0);
        let counters = world.switch.offload.counters();
        assert_eq!(counters.retransmitted + counters.timeouts, 0, "nothing was lost");
        if up > 0 {
            assert!(counters.stored_bytes >= up as u64);
        }
        if down > 0 {
            assert!(counters.acknowledged_bytes >= down as u64 * 9 / 10, "{counters:?}");
        }
    }
}

#[test]
fn round_trips_are_counted_and_none_is_shorter_than_the_path() {
    let mut setup = Setup { name: "round-trips", ..Setup::default() };
    setup.to_peer.delay = MS(4);
    setup.to_guest.delay = MS(4);
    let world = run(setup, MB, 0);
    let rtts = world.switch.offload.rtts();
    let shorter = |index: &usize| upper_bound(*index).is_some_and(|bound| bound < MS(8));
    let too_short: u64 = (0..BUCKETS).filter(shorter).map(|index| rtts.buckets[index]).sum();
    assert_eq!(too_short, 0, "{rtts:?}");
    let mean = Duration::from_nanos(rtts.sum_ns / rtts.count());
    assert!(rtts.count() > 10 && mean >= MS(8) && mean < MS(100), "{rtts:?}");
}

#[test]
fn a_guest_that_waits_for_its_cpu_does_not_slow_its_transfer() {
    let time = |transmit, receive, up, down| {
        let mut setup = Setup { name: "contended", cpu: contended(), ..Setup::default() };
        setup.offload.transmit = transmit;
        setup.offload.receive = receive;
        setup.to_peer.delay = MS(4);
        setup.to_guest.delay = MS(4);
        let mut world = World::new(setup);
        world.connect();
        let start = world.now;
        world.transfer(up, down, SECONDS(60));
        world.check_i7();
        world.now.since(start)
    };
    let (off, on) = (time(false, false, 4 * MB, 0), time(true, true, 4 * MB, 0));
    assert!(on * 2 < off, "up: {off:?} without, {on:?} with");
    let (off, on) = (time(false, false, 0, 4 * MB), time(true, true, 0, 4 * MB));
    assert!(on * 3 < off * 2, "down: {off:?} without, {on:?} with");
}

/// Without the module the guest's own window rules, and the switch's has to grow as fast. ACKs of a whole flight come while the guest is away: most of them
/// find less than half of it in flight.
#[test]
fn a_guest_without_the_module_is_as_fast_as_by_itself() {
    let time = |transmit| {
        let mut setup = Setup { name: "own-window", module: false, ..Setup::default() };
        setup.offload.transmit = transmit;
        setup.cpu = CpuConfig { runs: (MS(1), MS(1)), away: (MS(20), MS(20)) };
        setup.to_peer.delay = MS(10);
        setup.to_guest.delay = MS(10);
        let mut world = World::new(setup);
        world.connect();
        let start = world.now;
        world.transfer(2 * MB, 0, SECONDS(60));
        assert_eq!(world.switch.offload.counters().stored_bytes > 0, transmit);
        world.now.since(start)
    };
    let (off, on) = (time(false), time(true));
    assert!(on * 20 <= off * 21, "{off:?} without, {on:?} with");
}

#[test]
fn losses_are_repaired_in_the_switch() {
    for (name, sack) in [("loss-sack", true), ("loss-no-sack", false)] {
        let mut setup = Setup { name, cpu: contended(), ..Setup::default() };
        setup.peer.sack = sack;
        setup.to_peer.loss = 10;
        setup.to_guest.loss = 10;
        let world = run(setup, 2 * MB, 0);
        assert!(world.to_peer.dropped > 5);
        assert!(world.switch.offload.counters().retransmitted >= 5);
    }
}

#[test]
fn peers_of_many_kinds() {
    type Change = fn(&mut TcpConfig);
    let kinds: [(&str, Change); 9] = [
        ("no-sack", |c| c.sack = false),
        ("no-timestamps", |c| c.timestamps = false),
        ("no-scale", |c| c.scale = None),
        ("plain", |c| {
            (c.sack, c.timestamps, c.scale) = (false, false, None);
        }),
        ("large-scale", |c| (c.scale, c.buffer) = (Some(14), 16 << 20)),
        ("small-mss", |c| c.mss = 500),
        ("delayed-ack", |c| (c.ack_every, c.delayed_ack) = (50, MS(100))),
        ("small-buffer", |c| c.buffer = 20_000),
        ("slow-reader", |c| (c.buffer, c.read_rate) = (100_000, Some(5_000))),
    ];
    for (name, change) in kinds {
        for guest in [false, true] {
            let mut setup = Setup { name, ..Setup::default() };
            change(if guest { &mut setup.guest } else { &mut setup.peer });
            run(setup.clone(), MB / 2, MB / 2);
            setup.to_peer.loss = 20;
            setup.to_guest.loss = 20;
            setup.cpu = contended();
            run(setup, MB / 2, MB / 2);
        }
    }
}

#[test]
fn sequence_numbers_and_clocks_wrap() {
    let mut setup = Setup { name: "wrap", ..Setup::default() };
    setup.guest.isn = u32::MAX - 200_000;
    setup.peer.isn = u32::MAX - 100_000;
    setup.guest.clock = u32::MAX - 20;
    setup.peer.clock = u32::MAX - 30;
    setup.to_peer.loss = 10;
    setup.to_guest.loss = 10;
    run(setup, MB, MB);
}

#[test]
fn gso_packets_are_split_at_the_end_of_the_window() {
    let mut setup = Setup { name: "split", ..Setup::default() };
    setup.peer.buffer = 30_000;
    setup.peer.read_rate = Some(3_000);
    let world = run(setup, MB / 4, 0);
    let counters = world.switch.offload.counters();
    assert!(counters.released > counters.stored_frames, "{counters:?}");
}

#[test]
fn a_closed_window_is_probed() {
    let mut setup = Setup { name: "zero-window", ..Setup::default() };
    setup.peer.buffer = 50_000;
    let mut world = World::new(setup);
    world.connect();
    world.peer.rx.paused = true;
    world.guest.write(400_000, world.now);
    world.run_for(SECONDS(10));
    let taken = world.peer.rx.bytes();
    assert!((50_000..55_000).contains(&taken), "{taken}");
    let counters = world.switch.offload.counters();
    let probes = counters.window_probes + world.guest.tx.counts.window_probes;
    assert!((3..40).contains(&probes), "{probes}");
    // The guest may time out on what it sent and nobody reads. It is not heard on the wire.
    let repeats = world.wire_repeats() as u64;
    assert_eq!(repeats, counters.retransmitted);
    // The update that opens the window is lost: only a probe finds it.
    world.peer.resume(world.now);
    world.to_guest.drop_next = vec![0];
    world.transfer(0, 0, SECONDS(60));
    world.check_received(400_000, 0);
}

#[test]
fn a_window_that_stays_closed_for_an_hour_does_not_end_it() {
    let mut setup = Setup { name: "closed-long", ..Setup::default() };
    setup.peer.buffer = 50_000;
    let mut world = World::new(setup);
    world.connect();
    world.peer.rx.paused = true;
    world.guest.write(400_000, world.now);
    world.run_for(SECONDS(3600));
    world.peer.resume(world.now);
    world.transfer(0, 0, SECONDS(120));
    world.check_received(400_000, 0);
}

#[test]
fn a_dead_peer_is_given_up_without_a_false_word() {
    let mut setup = Setup { name: "dead-peer", ..Setup::default() };
    setup.guest.retries2 = 100;
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(100_000, 1_000);
    world.to_peer.config.loss = 1000;
    world.guest.write(100_000, world.now);
    // The monitor checks that the guest is never told of more than the peer acknowledged.
    world.run_for(SECONDS(3600));
    assert_eq!(world.switch.offload.used().0, 0);
    assert_eq!(world.switch.offload.online(), 0);
    // It comes back: the guest's own retransmissions repair it.
    world.to_peer.config.loss = 0;
    world.transfer(0, 0, SECONDS(600));
    world.check_received(200_000, 1_000);
}

#[test]
fn idle_connections_restart_and_keepalives_pass() {
    for garbage in [false, true] {
        let mut world = World::new(Setup { name: "keepalive", ..Setup::default() });
        world.connect();
        world.transfer_some(200_000, 200_000);
        let cwnd = world.switch.summary(&world.flow).unwrap().cwnd;
        world.run_for(SECONDS(30));
        let (sent, heard) = (world.passed_to_network(), world.passed_to_guest());
        world.guest.keepalive(garbage, world.now);
        world.run_for(SECONDS(1));
        assert_eq!(world.passed_to_network(), sent + 1, "the keepalive reaches the peer");
        assert_eq!(world.passed_to_guest(), heard + 1, "its answer is the peer's");
        let (sent, heard) = (world.passed_to_network(), world.passed_to_guest());
        world.peer.keepalive(garbage, world.now);
        world.run_for(SECONDS(1));
        assert_eq!(world.passed_to_guest(), heard + 1);
        assert_eq!(world.passed_to_network(), sent + 1, "the guest is alive, says the guest");
        world.transfer(200_000, 200_000, SECONDS(5));
        world.check_i7();
        assert!(cwnd > 14_480);
    }
}

#[test]
fn marks_lower_the_window_and_the_guest_hears_nothing_of_it() {
    let mut setup = Setup { name: "ecn", cpu: contended(), ..Setup::default() };
    setup.guest.ecn = true;
    setup.peer.ecn = true;
    setup.to_peer.mark = 20;
    setup.to_guest.mark = 20;
    let world = run(setup, 2 * MB, 2 * MB);
    assert!(world.switch.offload.counters().ecn_reductions > 1);
    // R6: what was marked towards the guest is echoed.
    assert!(world.monitor.ce_to_guest > 1 && world.monitor.ece_from_switch > 0);
    assert!(!world.guest_was_echoed(), "an echo came to the guest");
}

#[test]
fn every_algorithm_and_policy() {
    for congestion in Algorithm::ALL {
        for buffer in BufferPolicy::ALL {
            let mut setup = Setup { name: "algorithm", ..Setup::default() };
            setup.offload.congestion = congestion;
            setup.offload.buffer = buffer;
            setup.to_peer.loss = 10;
            setup.to_peer.queue = 100_000;
            run(setup, MB / 2, 0);
        }
    }
}

/// A transfer whose path is cut for a while, or grows long.
fn disturbed(setup: Setup, disturb: impl Fn(&mut World, bool)) -> World {
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(100_000, 0);
    world.guest.write(MB, world.now);
    world.run_for(MS(5));
    disturb(&mut world, true);
    world.run_for(MS(800));
    disturb(&mut world, false);
    world.transfer(0, 0, SECONDS(60));
    world
}

#[test]
fn tail_probes_of_the_guest_are_absorbed() {
    let mut setup = Setup { name: "tlp", ..Setup::default() };
    setup.guest.tlp = true;
    setup.to_peer.rate = Some(20_000);
    setup.to_peer.queue = 1 << 24;
    let cut = |world: &mut World, on| world.to_peer.config.loss = if on { 1000 } else { 0 };
    let world = disturbed(setup, cut);
    let counters = world.switch.offload.counters();
    let counts = world.guest.tx.counts;
    assert!(counts.tail_probes > 0, "the guest had a reason to probe");
    let absorbed = counters.absorbed_stored + counters.absorbed_acknowledged;
    assert!(absorbed >= counts.tail_probes + counts.timeouts);
    assert_eq!(world.wire_repeats() as u64, counters.retransmitted);
}

#[test]
fn needless_timeouts_of_the_guest_are_absorbed() {
    let mut setup = Setup { name: "spurious-rto", ..Setup::default() };
    setup.offload.min_rto = SECONDS(2);
    setup.to_peer.rate = Some(20_000);
    setup.to_peer.queue = 1 << 24;
    let stretch = |world: &mut World, on| {
        world.to_peer.config.delay = if on { MS(700) } else { MS(1) };
    };
    let world = disturbed(setup, stretch);
    let counters = world.switch.offload.counters();
    assert!(world.guest.tx.counts.timeouts > 0);
    assert_eq!(counters.timeouts, 0);
    assert!(counters.absorbed_stored + counters.absorbed_acknowledged > 0);
    assert_eq!(world.wire_repeats() as u64, counters.retransmitted, "the guest's were absorbed");
}

#[test]
fn slow_bottlenecks_are_filled_without_timeouts() {
    // 10 and 50 Mbit/s, with queues of 20 ms and of 2 round trips of 20 ms.
    for (name, rate) in [("slow-10", 1_250), ("slow-50", 6_250)] {
        for queue_ms in [20, 60] {
            let mut setup = Setup { name, cpu: contended(), ..Setup::default() };
            setup.to_peer.rate = Some(rate);
            setup.to_peer.delay = MS(10);
            setup.to_guest.delay = MS(10);
            setup.to_peer.queue = rate * queue_ms;
            let mut world = World::new(setup);
            world.connect();
            let start = world.now;
            let bytes = rate as i64 * 4_000;
            world.transfer(bytes, 0, SECONDS(60));
            let took = world.now.since(start);
            assert!(took < SECONDS(6), "{name} {queue_ms}: {took:?}");
            assert_eq!(world.switch.offload.counters().timeouts, 0, "{name} {queue_ms}");
            world.check_i7();
        }
    }
}

#[test]
fn configuration_changes_in_mid_transfer() {
    let mut setup = Setup { name: "toggle", cpu: contended(), ..Setup::default() };
    setup.to_peer.loss = 5;
    let mut world = World::new(setup);
    world.connect();
    for n in 0..40 {
        let now = world.now;
        world.guest.write(MB / 10, now);
        world.peer.write(MB / 10, now);
        world.run_for(MS(100));
        world.configure(|c| (c.transmit, c.receive) = (n % 2 == 0, n % 3 == 0));
        if n == 20 {
            world.drain(true);
        }
        if n == 25 {
            world.drain(false);
        }
    }
    world.configure(|c| (c.transmit, c.receive) = (true, true));
    world.transfer(0, 0, SECONDS(60));
    let counters = world.switch.offload.counters();
    assert!(counters.went_online > 1 && counters.went_offline > 1, "{counters:?}");
}

#[test]
fn a_drained_port_has_nothing_left() {
    let mut setup = Setup { name: "drain", cpu: contended(), ..Setup::default() };
    setup.to_peer.rate = Some(5_000);
    let mut world = World::new(setup);
    world.connect();
    let now = world.now;
    world.guest.write(4 * MB, now);
    world.peer.write(4 * MB, now);
    world.run_for(MS(100));
    assert!(!world.switch.offload.is_drained());
    world.drain(true);
    world.run_until(SECONDS(20), |w| w.switch.offload.is_drained());
    assert_eq!(world.switch.offload.used(), (0, 0));
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Offline);
    assert!(!world.guest.tx.managed);
    world.transfer(0, 0, SECONDS(60));
    world.check_received(4 * MB, 4 * MB);
}

#[test]
fn what_is_stored_is_cut_when_the_path_takes_less() {
    for (sack, timestamps) in [(true, true), (false, true), (true, false)] {
        let mut setup = Setup { name: "path-mtu", cpu: contended(), ..Setup::default() };
        setup.peer.sack = sack;
        setup.guest.timestamps = timestamps;
        setup.to_peer.delay = MS(2);
        let mut world = World::new(setup);
        world.connect();
        world.guest.write(2 * MB, world.now);
        world.run_for(MS(12));
        let cwnd = world.switch.summary(&world.flow).unwrap().cwnd;
        world.to_peer.largest = Some(1000);
        world.run_for(MS(7));
        let counters = world.switch.offload.counters();
        assert_eq!(counters.mss_lowered, 1);
        assert!(counters.retransmitted > 0, "{counters:?}");
        assert!(world.switch.summary(&world.flow).unwrap().cwnd >= cwnd, "it is no congestion");
        world.transfer(0, 0, SECONDS(20));
        world.check_received(2 * MB, 0);
        assert_eq!(world.switch.offload.counters().timeouts, 0);
    }
}

#[test]
fn blind_words_about_the_path_are_ignored() {
    let mut world = World::new(Setup { name: "blind-mtu", ..Setup::default() });
    world.connect();
    world.transfer_some(100_000, 0);
    world.to_peer.config.loss = 1000;
    world.guest.write(100_000, world.now);
    world.run_for(MS(1));
    let sent = world.peer_segment(0).segment.ack;
    let summary = world.switch.summary(&world.flow).unwrap();
    let tell = |world: &mut World, seq, mtu| {
        let (now, flow) = (world.now, world.flow);
        world.switch.offload.too_big(now, &flow, seq, mtu, &mut world.switch.actions);
        let counters = world.switch.offload.counters();
        (counters.mss_lowered, counters.too_big_ignored)
    };
    assert_eq!(tell(&mut world, sent - 1, 1000), (0, 1), "acknowledged long ago");
    assert_eq!(tell(&mut world, sent + summary.in_flight, 1000), (0, 2), "never sent");
    assert_eq!(tell(&mut world, sent, 1500), (0, 3), "no smaller than it is");
    let before = world.switch.offload.counters().retransmitted;
    world.monitor.too_large(500);
    assert_eq!(tell(&mut world, sent, 0), (1, 3));
    let again = world.switch.offload.counters().retransmitted - before;
    assert!(again > 0);
    assert_eq!(tell(&mut world, sent, 1), (1, 4), "no path takes less than that");
    world.to_peer.config.loss = 0;
    world.transfer(0, 0, SECONDS(20));
}

#[test]
fn an_idle_flow_goes_offline_and_is_forgotten() {
    let mut setup = Setup { name: "idle", ..Setup::default() };
    setup.offload.idle = SECONDS(60);
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(200_000, 200_000);
    world.run_for(SECONDS(50));
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Active);
    world.run_for(SECONDS(15));
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Offline);
    assert!(!world.guest.tx.managed, "the guest was told");
    assert_eq!(world.switch.offload.used().0, 0);
    // It is used again, and goes back online.
    world.transfer_some(200_000, 200_000);
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Active);
    world.run_for(SECONDS(150));
    assert!(world.switch.offload.is_empty());
    // The guest knows nothing of that.
    world.transfer(200_000, 200_000, SECONDS(20));
    world.check_i7();
}

#[test]
fn a_flow_that_leaves_unused_stays_when_it_is_used() {
    let mut setup = Setup { name: "used-again", ..Setup::default() };
    (setup.offload.idle, setup.to_peer.queue) = (SECONDS(60), 1 << 24);
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(200_000, 200_000);
    let state = |w: &World| w.switch.summary(&w.flow).unwrap().tx;
    world.run_until(SECONDS(70), |w| state(w) == TxState::Leaving);
    assert!(!world.guest.tx.managed, "the guest was told");
    // More than was granted before: it waits for no grace.
    world.guest.write(4 * MB, world.now);
    world.run_until(MS(50), |w| w.peer.rx.bytes() > 200_000);
    let summary = world.switch.summary(&world.flow).unwrap();
    assert_eq!((summary.tx, summary.reason), (TxState::Active, Reason::UsedAgain));
    world.run_until(MS(250), |w| w.peer.rx.bytes() == 200_000 + 4 * MB);
    assert!(world.guest.tx.managed);
    assert_eq!(world.switch.offload.counters().went_offline, 0);
    world.transfer(0, 0, SECONDS(20));
    world.check_i7();
}

#[test]
fn a_guest_without_grant_waits_for_no_grace() {
    let mut setup = Setup { name: "no-grace", ..Setup::default() };
    (setup.to_peer.rate, setup.to_peer.queue) = (Some(50_000), 1 << 24);
    let mut world = World::new(setup);
    world.connect();
    world.guest.write(8 * MB, world.now);
    world.run_for(MS(100));
    world.configure(|c| c.transmit = false);
    let mut longest = MS(0);
    while world.peer.rx.bytes() < 8 * MB {
        let (came, since) = (world.peer.rx.bytes(), world.now);
        world.run_until(SECONDS(2), |w| w.peer.rx.bytes() > came);
        longest = longest.max(world.now.since(since));
    }
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Offline);
    assert!(longest < MS(50), "nothing came for {longest:?}");
    assert!(!world.guest.tx.managed);
    world.transfer(0, 0, SECONDS(20));
    world.check_i7();
}

#[test]
fn a_guest_hears_that_it_repeated_needlessly() {
    let mut setup = Setup { name: "dsack", ..Setup::default() };
    setup.guest.tlp = true;
    setup.to_peer.rate = Some(20_000);
    setup.to_peer.queue = 1 << 24;
    let cut = |world: &mut World, on| world.to_peer.config.loss = if on { 1000 } else { 0 };
    let world = disturbed(setup, cut);
    let counts = world.guest.tx.counts;
    assert!(counts.tail_probes > 0);
    let dsacks = world.dsacks_to_guest();
    assert!(dsacks > 0 && dsacks <= counts.tail_probes + counts.segments, "{dsacks} {counts:?}");
}

#[test]
fn kept_data_comes_again_under_a_header_of_now() {
    let mut world = World::new(Setup { name: "redelivered", ..Setup::default() });
    world.connect();
    world.transfer_some(50_000, 50_000);
    // The guest drops what the switch has acknowledged for it.
    world.guest_drops = 1000;
    world.peer.write(3_000, world.now);
    world.run_for(MS(5));
    assert_eq!(world.peer.rx.bytes(), 50_000);
    world.guest_drops = 0;
    // Meanwhile the other direction goes on, and so do both clocks.
    world.guest.write(200_000, world.now);
    world.run_for(SECONDS(2));
    assert_eq!(world.peer.rx.bytes(), 250_000);
    let (again, una) = world.redelivered.last().cloned().expect("it was delivered again");
    assert_eq!(again.segment.ack, una, "it acknowledges what is acknowledged now");
    assert!(again.segment.options.sack_blocks().is_empty());
    world.transfer(0, 0, SECONDS(20));
    world.check_received(250_000, 53_000);
}

#[test]
fn a_guest_that_takes_no_notice_is_given_up_after_a_quarter_of_an_hour() {
    let mut world = World::new(Setup { name: "deaf", ..Setup::default() });
    world.connect();
    world.transfer_some(50_000, 50_000);
    world.guest_drops = 1000;
    world.peer.write(3_000, world.now);
    world.run_for(SECONDS(600));
    assert!(world.switch.offload.used().1 > 0, "acknowledged means kept");
    world.run_for(SECONDS(600));
    assert_eq!(world.switch.offload.used().1, 0);
    assert_eq!(world.switch.offload.counters().redelivered, 20);
}
