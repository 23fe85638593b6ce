//! The paper's experiments, and what it leaves out: mixed round trips, slow guests, many workers.

use floodway_core::inbound::Policy;
use floodway_core::time::Instant;

use crate::network::{MSS, Network, Scene, jain, wire};

const MS: fn(u64) -> Instant = Instant::from_millis;

/// Runs `scene` with all connections from the start, and answers what each received between `from` and `to`, in
/// milliseconds; nothing may be dropped meanwhile.
fn steady(scene: Scene, from: u64, to: u64) -> (Vec<u64>, Network) {
    let mut network = Network::new(scene);
    for number in 0..network.connections.len() {
        network.open(number, MS(1 + number as u64 / 4));
    }
    network.run(MS(from));
    network.take_received();
    let drops = network.drops;
    network.run(MS(to));
    assert_eq!(network.drops, drops, "drops after convergence");
    (network.take_received(), network)
}

fn utilisation(received: &[u64], scene: &Scene, ms: u64) -> f64 {
    wire(received.iter().sum()) / (scene.link as f64 * ms as f64 / 1000.0)
}

fn connections(counts: &[usize], rtt_us: u64) -> Vec<(usize, u64)> {
    let each = counts.iter().enumerate();
    each.flat_map(|(vm, &count)| std::iter::repeat_n((vm, rtt_us), count)).collect()
}

#[test]
fn figure_2_dynamic() {
    let scene = Scene::gigabit(4, connections(&[1, 5, 12, 0], 100));
    let (received, network) = steady(scene.clone(), 200, 700);
    let used = utilisation(&received, &scene, 500);
    assert!(used > 0.97, "{used}");
    assert!(jain(&received) > 0.99, "{} {received:?}", jain(&received));
    assert_eq!(network.drops, 0);
    assert_eq!(network.allocator.rates().iter().sum::<u64>(), scene.config.capacity);
}

#[test]
fn figure_2_static_leaves_the_idle_share() {
    let mut scene = Scene::gigabit(4, connections(&[1, 5, 12, 0], 100));
    scene.config.policy = Policy::Share;
    let (received, _) = steady(scene.clone(), 200, 700);
    let used = utilisation(&received, &scene, 500);
    assert!((0.72..0.76).contains(&used), "{used}");
    let of_vm = |range: std::ops::Range<usize>| received[range].iter().sum::<u64>() as f64;
    assert!((of_vm(0..1) / of_vm(6..18) - 1.0).abs() < 0.03, "{received:?}");
}

#[test]
fn figure_3_rates_follow_the_counts_within_100_ms() {
    // VM 0 from 15 to 1, VM 1 stays at 2, VM 2 from 1 to 15.
    let scene = Scene::gigabit(3, connections(&[15, 2, 15], 150));
    let mut network = Network::new(scene.clone());
    (0..18).for_each(|number| network.open(number, MS(1)));
    let (mut ups, mut downs) = (18..32, 1..15);
    for step in 1..15 {
        let at = 200 * step;
        network.close(downs.next().unwrap(), MS(at));
        network.open(ups.next().unwrap(), MS(at));
        network.run(MS(at + 100));
        network.take_received();
        network.run(MS(at + 200));
        let received = network.take_received();
        let used = utilisation(&received, &scene, 100);
        assert!(used > 0.95, "{used} at {step}");
        let total: u64 = received.iter().sum();
        let counts = [15 - step, 2, 1 + step];
        for (vm, &count) in counts.iter().enumerate() {
            let got: u64 =
                (0..32).filter(|&n| scene.connections[n].0 == vm).map(|n| received[n]).sum();
            let share = total as f64 * count as f64 / 18.0;
            assert!(
                (got as f64 / share - 1.0).abs() < 0.1,
                "VM {vm} at step {step}: {got} {share}"
            );
        }
    }
    assert_eq!(network.drops, 0);
}

#[test]
fn long_and_short_round_trips_get_the_same() {
    let rtts = [80, 200, 1000, 5000, 20_000];
    let scene = Scene::gigabit(1, rtts.iter().map(|&rtt| (0, rtt)).collect());
    let (received, _) = steady(scene.clone(), 1000, 3000);
    assert!(jain(&received) > 0.98, "{received:?}");
    assert!(utilisation(&received, &scene, 2000) > 0.95, "{received:?}");
}

#[test]
fn guests_that_acknowledge_late_keep_their_rate() {
    let mut scene = Scene::gigabit(2, connections(&[3, 6], 200));
    scene.guest_us = 3000;
    let (received, _) = steady(scene.clone(), 1000, 3000);
    let used = utilisation(&received, &scene, 2000);
    assert!(used > 0.95, "{used}");
    assert!(jain(&received) > 0.98, "{received:?}");
}

#[test]
fn incast_of_128_workers_overflows_nothing() {
    let scene = Scene::gigabit(1, connections(&[128], 100));
    let (received, network) = steady(scene.clone(), 300, 800);
    assert!(utilisation(&received, &scene, 500) > 0.97);
    assert!(jain(&received) > 0.98, "{received:?}");
    assert!(network.ports[0].counters().held > 0);
    assert_eq!(network.drops, 0);
}

#[test]
fn many_who_call_at_once_are_let_in_one_after_the_other() {
    // Two segments each, 390 KB, are more than the buffer.
    let scene = Scene::gigabit(2, connections(&[128, 2], 100));
    let mut network = Network::new(scene.clone());
    (0..130).for_each(|number| network.open(number, MS(1)));
    network.run(MS(300));
    assert!(network.ports[0].counters().syn_acks_held > 80);
    assert_eq!(network.drops, 0);
    let received = network.take_received();
    assert!(received.iter().all(|&bytes| bytes > 0), "{received:?}");
}

#[test]
fn one_question_to_many_who_were_idle_overflows_nothing() {
    // Pauses within the round trip's reach and far beyond; two segments of each are more than the buffer.
    for (workers, pause) in [(64, 1), (64, 40), (128, 300)] {
        let scene = Scene::gigabit(2, connections(&[workers, 4], 150));
        let mut network = Network::new(scene.clone());
        (0..workers).for_each(|number| network.only_answers(number));
        (0..workers + 4).for_each(|number| network.open(number, MS(1 + number as u64 / 8)));
        let mut at = 50;
        for _ in 0..10 {
            (0..workers).for_each(|number| network.ask(number, 20 * MSS, MS(at)));
            network.run(MS(at + 100));
            let received = network.take_received();
            let all = received[..workers].iter().all(|&bytes| bytes == u64::from(20 * MSS));
            assert!(all, "{workers} after {pause} ms: {received:?}");
            at += 100 + pause;
        }
        assert_eq!(network.drops, 0, "{workers} after {pause} ms");
        assert!(network.ports[0].counters().requests_held > 100);
    }
}

#[test]
fn a_large_window_scale_does_not_leak() {
    let mut scene = Scene::gigabit(1, connections(&[16], 100));
    scene.scale = 12;
    let (received, network) = steady(scene.clone(), 300, 800);
    assert!(utilisation(&received, &scene, 500) > 0.95, "{received:?}");
    assert!(network.deepest <= scene.buffer);
}
