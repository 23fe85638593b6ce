//! A worker without a thread: what it has done after so many rounds.

use std::path::PathBuf;

use floodway_core::l2::{NetworkId, Origin, PortId};

use super::schedule::QUANTUM;
use super::*;
use crate::config::Config;
use crate::frame;
use crate::pipeline::delivery::{Delivery, Flush};
use crate::queues::ring::Ring;
use crate::queues::tx::BATCH;
use crate::queues::virtqueue::Virtqueue;
use crate::stats::ledger::MODEL;
use crate::stats::{DropReason, Traffic};
use crate::testing::frames::{mac, numbered, partial, pattern, tcp};
use crate::testing::{Guest, GuestConfig, TxShape};
use crate::vhost::features;
use floodway_wire::vnet::VnetHdr;

/// A worker with a guest on each port, VM `i + 1` on port `i`.
struct Scene {
    worker: Worker,
    forwarder: Forwarder,
    batch: Batch,
    guests: Vec<Guest>,
}

impl Scene {
    fn new(guests: Vec<GuestConfig>) -> Self {
        let port = |(i, guest): (usize, &GuestConfig)| {
            format!(
                "[[port]]\nname = \"vm{i}\"\nsocket = \"/unused{i}\"\nmac = \"{}\"\nstorm_pps = 0\nqueue_pairs = {}\n",
                mac(i as u8 + 1),
                guest.queue_pairs,
            )
        };
        let text: String = guests.iter().enumerate().map(port).collect();
        let config = Config::parse(&text, &PathBuf::from("test")).expect("a good configuration");
        let shared = Shared::without_threads(&config).expect("a switch");
        let guests: Vec<_> = guests.into_iter().map(Guest::new).collect();
        shared.ports().iter().zip(&guests).for_each(|(port, guest)| attach(port, guest));
        let waker = Arc::clone(&shared.port_at(0).waker);
        let worker = Worker::new(Arc::clone(&shared), 0, waker, Polling::new(Duration::ZERO));
        let forwarder = Forwarder::new(shared);
        Self { worker, forwarder, batch: Batch::default(), guests }
    }

    fn poll(&mut self) -> bool {
        let now = self.worker.shared.now();
        self.worker.poll(&mut self.forwarder, &mut self.batch, now)
    }

    fn run_housekeeping(&mut self) {
        let now = self.worker.shared.now();
        self.worker.run_housekeeping(&mut self.forwarder, &mut self.batch, now);
    }

    /// Lets guest `i` transmit as much as it can.
    fn fill(&mut self, i: usize, vnet: &VnetHdr, frame: &[u8]) {
        for pair in 0..self.guests[i].pairs.len() {
            while self.guests[i].send_quietly(pair, vnet, frame) {}
        }
    }

    /// Chains of port `i` that were served.
    fn chains(&self, i: usize) -> u64 {
        self.worker.ports[i].pairs.iter().map(|pair| pair.tx().traffic.packets.get()).sum()
    }

    /// Frames that port `i` was given, those included that found no room.
    fn given(&self, i: usize) -> u64 {
        let given =
            |traffic: &Traffic| traffic.packets.get() + traffic.drops(DropReason::QueueFull);
        self.worker.ports[i].pairs.iter().map(|pair| given(&pair.rx().traffic)).sum()
    }
}

fn attach(port: &Port, guest: &Guest) {
    let memory = Arc::new(guest.memory.map());
    for (i, pair) in port.pairs.iter().enumerate() {
        let ring = |index: usize| {
            let driver = &guest.queue(index as u32).driver;
            let queue =
                Virtqueue::new(Arc::clone(&memory), driver.size(), driver.addresses(), true);
            Ring { queue: queue.expect("good rings"), call: None }
        };
        let negotiated = guest.config.features;
        pair.rx().start(ring(2 * i), features::rx(negotiated));
        pair.tx().start(ring(2 * i + 1), features::tx(negotiated));
        pair.tx().set_enabled(true);
    }
    port.update_rx_running();
}

fn plain() -> GuestConfig {
    GuestConfig { tx_shape: TxShape::Single, ..GuestConfig::default() }
}

/// A guest that takes no GSO packets.
fn without_tso() -> GuestConfig {
    let tso = features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_ECN;
    GuestConfig { features: GuestConfig::default().features & !tso, ..plain() }
}

/// One guest offers 16 queue pairs of 32 GSO packets of 1250 segments each to a guest that takes none, the other one 64-byte
/// frames. One of those costs less than three segments, so the other one has at least a third as many served.
#[test]
fn many_queue_pairs_of_gso_packets_to_be_cut_cost_others_no_more_than_their_share() {
    let attacker = GuestConfig { queue_pairs: 16, ring_size: 32, ..plain() };
    let victim = GuestConfig { ring_size: 512, tx_slots: 512, ..plain() };
    let mut scene = Scene::new(vec![attacker, victim, without_tso(), plain()]);
    let bulk = tcp(1, 3, false).build_partial(&pattern(1, 60_000));
    let vnet = partial(&bulk, 48);
    let small = numbered(2, 4, 0, 22);
    let mut before = (0, 0);
    scene.fill(0, &vnet, &bulk);
    for _ in 0..60 {
        scene.fill(0, &vnet, &bulk);
        scene.fill(1, &VnetHdr::default(), &small);
        assert!(scene.poll());
        while scene.guests[2].recv(0).is_some() {}
        let now = (scene.chains(1), scene.given(2));
        assert!(now.1 - before.1 <= 500, "a GSO packet is cut over several turns");
        before = now;
    }
    let (victim, segments) = before;
    assert!(segments >= 2 * 1250, "the attacker has its share, too: {segments}");
    assert!(3 * victim >= segments, "{victim} chains for {segments} segments");
    let ledger = &scene.worker.shared.ledger;
    let spent = [0, 1].map(|i| ledger.spent(PortId(i)));
    let bytes = 3 * bulk.len() as u64;
    let gso_packet =
        Work { chains: 1, descriptors: 3, copies: 2, bytes, segments: 1250, ..Work::default() };
    let bound = u64::from(QUANTUM) + 2 * MODEL.cost(&gso_packet);
    assert!(spent[0].abs_diff(spent[1]) <= bound, "{spent:?}");
}

#[test]
fn rounds_with_work_and_the_frames_of_batches_are_counted() {
    let mut scene = Scene::new(vec![plain(), plain()]);
    for n in 0..5 {
        assert!(scene.guests[0].send_quietly(0, &VnetHdr::default(), &numbered(1, 2, n, 22)));
    }
    let stats = Arc::clone(&scene.worker.stats);
    assert_eq!((stats.rounds.counts().count(), stats.batches.status().frames), (0, 0));
    let mut progress = scene.worker.begin();
    scene.worker.step(&mut progress);
    assert_eq!((stats.rounds.counts().count(), stats.busy_polls.get()), (1, 1));
    let batches = stats.batches.status();
    assert_eq!((&batches.buckets[..], batches.frames), (&[0, 0, 0, 1, 0, 0][..], 5));
}

/// Debug builds panic where the order is broken.
#[test]
fn housekeeping_takes_the_locks_of_a_port_in_order() {
    let mut scene = Scene::new(vec![plain(), GuestConfig { queue_pairs: 2, ..plain() }]);
    scene.run_housekeeping();
}

/// Polling, it may not sleep for hours.
#[test]
fn housekeeping_lets_go_of_the_memory_of_a_guest_that_has_gone() {
    let mut scene = Scene::new(vec![plain(), plain()]);
    scene.fill(0, &VnetHdr::default(), &numbered(1, 2, 0, 22));
    assert!(scene.poll());
    let pair = &scene.worker.ports[0].pairs[0];
    let ring = pair.tx().stop().expect("it runs");
    let memory = Arc::downgrade(ring.queue.memory());
    drop((ring, pair.rx().stop()));
    assert_eq!(memory.strong_count(), 1, "held by the batch");
    scene.run_housekeeping();
    assert_eq!(memory.strong_count(), 0);
}

/// As many queue pairs as a guest has: together they have its share.
#[test]
fn queue_pairs_share_what_their_port_has() {
    let many = GuestConfig { queue_pairs: 16, ring_size: 64, tx_slots: 64, ..plain() };
    let one = GuestConfig { ring_size: 512, tx_slots: 512, ..plain() };
    let mut scene = Scene::new(vec![many, one, plain(), plain()]);
    for _ in 0..20 {
        scene.fill(0, &VnetHdr::default(), &numbered(1, 3, 0, 22));
        scene.fill(1, &VnetHdr::default(), &numbered(2, 4, 0, 22));
        assert!(scene.poll());
    }
    let [many, one] = [0, 1].map(|i| scene.chains(i));
    assert!(many.abs_diff(one) <= 2 * BATCH as u64, "{many} and {one}");
    let pairs = scene.worker.ports[0].pairs.iter();
    let served: Vec<_> = pairs.map(|pair| pair.tx().traffic.packets.get()).collect();
    // Batches that end with the credit are shorter, and may hit the same pair again and again.
    assert!(2 * served.iter().min().unwrap() >= *served.iter().max().unwrap(), "{served:?}");
}

/// A port in debt that is the only one with work goes on at once, and does not seem idle meanwhile.
#[test]
fn a_debt_does_not_keep_the_worker_from_its_only_port() {
    let mut scene = Scene::new(vec![plain(), without_tso()]);
    let bulk = tcp(1, 2, false).build_partial(&pattern(1, 60_000));
    scene.fill(0, &partial(&bulk, 48), &bulk);
    let mut rounds = 0;
    while scene.chains(0) < 32 {
        assert!(scene.poll(), "there is work");
        rounds += 1;
    }
    assert!(rounds <= 2 * 32, "{rounds} rounds for 32 GSO packets");
}

/// Shares of a second are noted for status.
#[test]
fn shares_show_who_the_work_was_done_for() {
    let mut scene = Scene::new(vec![plain(), plain(), plain()]);
    scene.fill(0, &VnetHdr::default(), &numbered(1, 3, 0, 22));
    while scene.poll() {}
    scene.fill(1, &VnetHdr::default(), &numbered(2, 3, 0, 22));
    while scene.poll() {}
    scene.run_housekeeping();
    let shares = [0, 1, 2].map(|i| scene.worker.shared.ledger.share(PortId(i)));
    assert_eq!(shares, [0.5, 0.5, 0.0]);
}

/// Two receive queues of two buffers each, all of them used up, and free but not posted again.
fn without_buffers() -> Scene {
    let receiver = GuestConfig { queue_pairs: 2, ring_size: 2, tx_slots: 2, ..plain() };
    let mut scene = Scene::new(vec![plain(), receiver]);
    let guest = &mut scene.guests[1];
    guest.auto_refill = false;
    let mut delivery = Delivery::new(Arc::clone(&scene.worker.shared));
    for pair in [0, 0, 1, 1] {
        deliver(&mut delivery, pair, Flush::Now);
        assert!(guest.recv(usize::from(pair)).is_some());
    }
    // The guest has arrived.
    scene.poll();
    scene
}

/// Delivers a frame of port 0 to receive queue `pair` of port 1.
fn deliver(delivery: &mut Delivery, pair: u16, flush: Flush) {
    let bytes = numbered(1, 2, 0, 22);
    frame::with_slice(VnetHdr::default(), &bytes, |frame| {
        let origin = Origin { port: PortId(0), network: NetworkId::DEFAULT };
        delivery.deliver(origin, PortId(1), pair, flush, frame);
    });
}

/// A frame waits for buffers, the guest adds one before the worker knows what for, and then a frame waits in another queue.
#[test]
fn a_buffer_that_came_before_the_worker_was_told_is_used() {
    let mut scene = without_buffers();
    let mut delivery = Delivery::new(Arc::clone(&scene.worker.shared));
    deliver(&mut delivery, 0, Flush::Later);
    scene.guests[1].refill(0, 1);
    assert!(!scene.poll(), "it was woken, and there was nothing to do");
    deliver(&mut delivery, 1, Flush::Moderated(scene.worker.shared.now()));
    delivery.flush();
    assert!(scene.guests[1].recv(0).is_some());
    assert!(scene.guests[1].recv(1).is_none());
    scene.guests[1].refill(1, 1);
    scene.poll();
    assert!(scene.guests[1].recv(1).is_some());
}

/// The guest of port 1 has stopped and runs again, and that is not known beyond its receive queue yet.
fn come_back_unnoticed(scene: &Scene) {
    let port = &scene.worker.ports[1];
    let ring = port.pairs[0].rx().stop().expect("it runs");
    port.update_rx_running();
    assert_eq!(port.rx_running(), 0);
    port.pairs[0].rx().start(ring, features::rx(scene.guests[1].config.features));
}

/// A guest has come back, and who delivers does not know it yet.
#[test]
fn a_frame_to_a_guest_that_has_just_come_back_does_not_wait_beside_buffers() {
    let mut scene = without_buffers();
    come_back_unnoticed(&scene);
    let mut delivery = Delivery::new(Arc::clone(&scene.worker.shared));
    deliver(&mut delivery, 0, Flush::Later);
    scene.guests[1].refill(0, 1);
    assert!(scene.poll(), "the worker was told what waits");
    assert!(scene.guests[1].recv(0).is_some());
}

/// What a sender can have done for it costs it the same, whether the guest runs or not.
#[test]
fn frames_to_a_stopped_guest_are_charged_to_their_sender() {
    let scene = Scene::new(vec![plain(), plain()]);
    let (shared, port) = (&scene.worker.shared, &scene.worker.ports[1]);
    let mut delivery = Delivery::new(Arc::clone(shared));
    let spent = |delivery: &mut Delivery| {
        let before = shared.ledger.spent(PortId(0));
        deliver(delivery, 0, Flush::Later);
        delivery.flush();
        shared.ledger.spent(PortId(0)) - before
    };
    let running = spent(&mut delivery);
    come_back_unnoticed(&scene);
    assert_eq!(spent(&mut delivery), running, "it is back, and nobody knows yet");
    drop(port.pairs[0].rx().stop());
    assert_eq!(spent(&mut delivery), running, "it waits");
    assert_eq!(port.pairs[0].rx().pending().0, 1);
    assert_eq!(shared.traffic.iter().map(|pair| pair.packets).sum::<u64>(), 3);
}

/// `frames` frames of port 0 wait for a guest that has used up its buffers, and then it posts as many.
fn with_waiting(frames: u16) -> Scene {
    let receiver = GuestConfig { ring_size: 1024, two_regions: false, ..plain() };
    let mut scene = Scene::new(vec![plain(), receiver, plain()]);
    scene.guests[1].auto_refill = false;
    let mut delivery = Delivery::new(Arc::clone(&scene.worker.shared));
    for _ in 0..1024 {
        deliver(&mut delivery, 0, Flush::Later);
    }
    delivery.flush();
    while scene.guests[1].recv(0).is_some() {}
    for _ in 0..frames {
        deliver(&mut delivery, 0, Flush::Later);
    }
    delivery.flush();
    assert_eq!(scene.waiting(), usize::from(frames));
    scene.guests[1].refill(0, usize::MAX);
    scene
}

impl Scene {
    /// Frames that wait for the guest of port 1.
    fn waiting(&self) -> usize {
        self.worker.ports[1].pairs[0].rx().pending().0
    }
}

#[test]
fn a_port_in_debt_is_given_nothing_that_waits_for_it() {
    let mut scene = with_waiting(3);
    let spend = Work { copies: 4 * u64::from(QUANTUM) * 1000 / MODEL.copy, ..Work::default() };
    scene.worker.shared.ledger.charge(PortId(1), &spend);
    for _ in 0..3 {
        // Another port has work, so that time does not skip rounds.
        scene.guests[2].send_quietly(0, &VnetHdr::default(), &numbered(3, 1, 0, 22));
        assert!(scene.poll());
        assert_eq!(scene.waiting(), 3);
    }
    while scene.poll() {}
    assert_eq!(scene.waiting(), 0, "it has paid");
}

#[test]
fn what_waits_for_a_guest_is_given_to_it_over_several_turns() {
    let mut scene = with_waiting(1000);
    let mut before = scene.waiting();
    let most = u64::from(QUANTUM) * 1000 / MODEL.copy;
    while before > 0 {
        assert!(scene.poll());
        let now = scene.waiting();
        assert!(now < before && before - now <= most as usize, "{} at once", before - now);
        before = now;
    }
}

/// Else who floods a guest would use up what its port may have done.
#[test]
fn what_waits_is_paid_by_its_sender() {
    let mut scene = with_waiting(100);
    let spent = |scene: &Scene| [0, 1].map(|i| scene.worker.shared.ledger.spent(PortId(i)));
    let before = spent(&scene);
    while scene.poll() {}
    assert_eq!((spent(&scene), scene.waiting()), (before, 0));
    let copies = 1024 + 2 * 100;
    assert!(before[0] >= copies * MODEL.copy / 1000, "each is copied twice: {before:?}");
}

/// A guest comes back, and wants no GSO packets: it gets none of those that have waited.
#[test]
fn a_gso_packet_that_waited_is_cut_for_a_guest_that_takes_none() {
    let mut scene = Scene::new(vec![plain(), without_tso()]);
    let ring = scene.worker.ports[1].pairs[0].rx().stop().expect("it runs");
    scene.worker.ports[1].update_rx_running();
    let bulk = tcp(1, 2, false).build_partial(&pattern(1, 6000));
    assert!(scene.guests[0].send_quietly(0, &partial(&bulk, 1000), &bulk));
    scene.poll();
    assert_eq!(scene.waiting(), 1);
    let features = features::rx(scene.guests[1].config.features);
    scene.worker.ports[1].pairs[0].rx().start(ring, features);
    scene.worker.ports[1].update_rx_running();
    while scene.poll() {}
    let received: Vec<_> = std::iter::from_fn(|| scene.guests[1].recv(0)).collect();
    assert_eq!(received.len(), 6);
    assert!(received.iter().all(|(vnet, bytes)| !vnet.is_gso() && bytes.len() < 1100));
}

/// 60 descriptors of a few bytes each, which could be anywhere in memory.
#[test]
fn a_frame_in_pieces_from_all_over_is_charged_for_each_of_them() {
    let scattered = GuestConfig { tx_shape: TxShape::Indirect(60), ..plain() };
    let mut scene = Scene::new(vec![scattered, plain(), plain()]);
    scene.guests[0].send_quietly(0, &VnetHdr::default(), &numbered(1, 3, 0, 400));
    scene.guests[1].send_quietly(0, &VnetHdr::default(), &numbered(2, 3, 0, 400));
    while scene.poll() {}
    let [pieces, one] = [0, 1].map(|i| scene.worker.shared.ledger.spent(PortId(i)));
    assert!(pieces >= one + 50 * MODEL.scattered / 1000, "{pieces} and {one}");
}

/// Many small receive buffers, all of which a frame fills.
#[test]
fn small_receive_buffers_are_charged_to_who_sends_there() {
    let small = GuestConfig { rx_buffer: 128, ring_size: 64, ..plain() };
    let mut scene = Scene::new(vec![plain(), small, plain()]);
    let spent = |scene: &mut Scene, to: u8| {
        let before = scene.worker.shared.ledger.spent(PortId(0));
        scene.guests[0].send_quietly(0, &VnetHdr::default(), &numbered(1, to, 0, 1000));
        while scene.poll() {}
        scene.worker.shared.ledger.spent(PortId(0)) - before
    };
    let (large, small) = (spent(&mut scene, 3), spent(&mut scene, 2));
    assert!(small >= large + 8 * MODEL.buffer / 1000, "{small} and {large}");
}

/// A stream that nobody answers: both guests hear of it later, when no turn is on.
#[test]
fn interrupts_that_waited_are_charged_to_who_sent_the_frames() {
    let mut scene = Scene::new(vec![plain(), plain()]);
    let start = scene.worker.shared.now();
    for n in 0..8 {
        let tx = &mut scene.guests[0].pairs[0].tx.driver;
        while tx.reap().is_some() {}
        tx.enable_interrupts();
        scene.guests[1].pairs[0].rx.driver.enable_interrupts();
        scene.guests[0].send_quietly(0, &VnetHdr::default(), &numbered(1, 2, n, 22));
        let now = start + Duration::from_micros((10 * n).into());
        scene.worker.poll(&mut scene.forwarder, &mut scene.batch, now);
        while scene.guests[1].recv(0).is_some() {}
    }
    let interrupts = |scene: &Scene| {
        let pair = |i: usize| &scene.worker.ports[i].pairs[0];
        pair(0).tx().interrupts.sent.get() + pair(1).rx().interrupts.sent.get()
    };
    let spent = |scene: &Scene| [0, 1].map(|i| scene.worker.shared.ledger.spent(PortId(i)));
    let (before, sent) = (spent(&scene), interrupts(&scene));
    scene.worker.run_timers(&mut scene.forwarder, start + Duration::from_secs(1));
    assert_eq!(interrupts(&scene) - sent, 2, "one to each guest");
    assert_eq!(spent(&scene), [before[0] + 2 * MODEL.interrupt / 1000, before[1]]);
}

impl Scene {
    /// Has guest `i` send a frame to guest 1, and kick if that is wanted.
    fn send(&mut self, i: usize) {
        let frame = numbered(i as u8 + 1, 2, 0, 22);
        assert!(self.guests[i].send(0, &VnetHdr::default(), &frame));
    }

    /// Lets the worker hear of kicks.
    fn watch_kicks(&self) {
        for (port, guest) in self.worker.ports.iter().zip(&self.guests) {
            self.worker.waker.watch(&guest.pairs[0].tx.kick, port.id);
        }
    }

    /// Frames that guest 1 has been given since this was last called.
    fn received(&mut self) -> usize {
        std::iter::from_fn(|| self.guests[1].recv(0)).count()
    }
}

/// A port without frames is left out of rounds, and its guest kicks for the next one.
#[test]
fn a_parked_port_is_polled_again_after_a_kick() {
    let mut scene = Scene::new(vec![plain(), plain(), plain()]);
    scene.watch_kicks();
    let late = |us| Instant::ZERO + Duration::from_secs(100) + Duration::from_micros(us);
    scene.send(0);
    while scene.poll() {}
    scene.worker.take_events(Duration::ZERO);
    scene.worker.look_at_ports(late(0));
    assert_eq!((scene.received(), scene.worker.polled.list()), (1, &[0][..]), "it had a frame");
    scene.worker.look_at_ports(late(1000));
    assert!(scene.worker.polled.list().is_empty());
    scene.send(2);
    assert!(!scene.poll(), "it is parked");
    scene.worker.look_at_ports(late(1050));
    assert_eq!(scene.worker.polled.list(), [2], "it has kicked");
    assert!(scene.poll());
    assert_eq!(scene.received(), 1);
}

/// A kick waits for a worker's other ports, but not for one that has nothing to poll.
#[test]
fn with_all_ports_parked_each_look_at_the_clock_is_one_for_kicks() {
    let mut scene = Scene::new(vec![plain(), plain()]);
    let late = |us| Instant::ZERO + Duration::from_secs(100) + Duration::from_micros(us);
    while scene.poll() {}
    assert!(scene.worker.polled.begin_look(late(0), true));
    assert!(!scene.worker.polled.begin_look(late(1), true));
    scene.worker.look_at_ports(late(1000));
    assert!(scene.worker.polled.list().is_empty());
    let mut is_look = |us, is_idle| scene.worker.polled.begin_look(late(us), is_idle);
    assert!(is_look(1000, true) && is_look(1001, true));
    assert!(!is_look(1002, false), "an uplink has work");
    scene.worker.poll_port(1, late(1002));
    assert!(!scene.worker.polled.begin_look(late(1003), true));
}

/// Frames that came between the last look and the wish for kicks bring none.
#[test]
fn a_port_with_frames_is_not_parked_nor_one_that_owes_an_interrupt_or_is_in_debt() {
    let mut scene = Scene::new(vec![plain(), plain(), plain(), plain()]);
    let late = Instant::ZERO + Duration::from_secs(100);
    while scene.poll() {}
    scene.guests[0].send_quietly(0, &VnetHdr::default(), &numbered(1, 2, 0, 22));
    let spend = Work { copies: 4 * u64::from(QUANTUM) * 1000 / MODEL.copy, ..Work::default() };
    scene.worker.shared.ledger.charge(PortId(2), &spend);
    scene.worker.schedule.begin(2, &scene.worker.shared.ledger);
    scene.worker.look_at_ports(late);
    assert_eq!(scene.worker.polled.list(), [0, 2]);
    while scene.poll() {}
    assert_eq!(scene.received(), 1);
}

/// Work for a port that is parked was left for its turns, or a timer of its is due.
#[test]
fn a_parked_port_with_work_that_was_left_is_polled_again() {
    let mut scene = Scene::new(vec![plain(), plain()]);
    let late = Instant::ZERO + Duration::from_secs(100);
    while scene.poll() {}
    scene.worker.run_timers(&mut scene.forwarder, late);
    scene.worker.look_at_ports(late);
    assert!(scene.worker.polled.list().is_empty());
    scene.worker.run_timers(&mut scene.forwarder, late);
    assert!(scene.worker.polled.list().is_empty());
    scene.worker.ports[1].resume_soon();
    scene.worker.run_timers(&mut scene.forwarder, late);
    assert_eq!(scene.worker.polled.list(), [1]);
    scene.worker.waker.wake();
    scene.worker.take_events(Duration::ZERO);
    assert_eq!(scene.worker.polled.list(), [0, 1], "a ring was set up perhaps");
}

/// What others do for a port is paid by the rounds that pass without it, too.
#[test]
fn a_port_that_was_parked_has_paid_for_what_was_done_meanwhile() {
    let mut scene = Scene::new(vec![plain(), plain(), plain()]);
    let late = Instant::ZERO + Duration::from_secs(100);
    while scene.poll() {}
    scene.worker.look_at_ports(late);
    assert!(scene.worker.polled.list().is_empty());
    let spend = Work { copies: 4 * u64::from(QUANTUM) * 1000 / MODEL.copy, ..Work::default() };
    for (port, rounds) in [(0, 3), (2, 5)] {
        scene.worker.shared.ledger.charge(PortId(port), &spend);
        (0..rounds).for_each(|_| assert!(!scene.poll()));
        scene.worker.poll_port(usize::from(port), late);
    }
    // The first one still owes a round, and the next one pays that.
    let ledger = &scene.worker.shared.ledger;
    let begun = [0, 2].map(|port| scene.worker.schedule.begin(port, ledger).is_some());
    assert_eq!(begun, [true, true]);
}
