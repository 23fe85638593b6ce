//! What a trace says of a frame is what the pipeline then does with it, and a trace changes nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use floodway_core::l2::NetworkId;
use floodway_core::time::Duration;
use floodway_wire::build::{self, Link};
use floodway_wire::ethernet::{TYPE_QINQ, TYPE_VLAN};
use floodway_wire::tcp::Flags;
use floodway_wire::{arp, notice};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;
use crate::config::{Config, NetworkConfig, PortConfig, UplinkConfig, UplinkKind};
use crate::frame::iovec::GuestIoVec;
use crate::operator::{StatusSource, drops};
use crate::pipeline::forward::Forwarder;
use crate::queues::ring::Ring;
use crate::queues::tx::Batch;
use crate::queues::virtqueue::Virtqueue;
use crate::stats::Block;
use crate::testing::frames::{ipv4, ipv6, mac, numbered, pattern, tcp};
use crate::testing::{Guest, GuestConfig, TxShape};
use crate::uplink::{Capabilities, SendError, Sender};
use crate::vhost::features;

const PORTS: usize = 3;
const UPLINK: usize = PORTS;

/// A port and its guest.
#[derive(Clone, Debug)]
struct PortPlan {
    mac: bool,
    ips: bool,
    isolate: bool,
    network: u16,
    /// A trunk of networks 10 and 20, with a network without tags or without one.
    trunk: Option<bool>,
    mtu: u16,
    storm_pps: u32,
    offload: bool,
    /// Nobody, somebody, or somebody who has stopped.
    guest: u8,
    mergeable: bool,
    rx_buffer: u32,
    enabled: bool,
}

/// A frame, and where it comes by.
#[derive(Clone, Debug)]
struct FramePlan {
    ingress: usize,
    src: u8,
    dst: u8,
    kind: u8,
    len: usize,
    tag: u8,
}

fn port_plan() -> impl Strategy<Value = PortPlan> {
    let rules = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2));
    let sizes = (prop_oneof![4 => Just(0), 1 => Just(10_u16)], 0_u32..3, any::<bool>());
    let trunk = prop_oneof![3 => Just(None), 1 => any::<bool>().prop_map(Some)];
    let guest = (prop_oneof![1 => Just(0_u8), 4 => Just(1), 1 => Just(2)], any::<bool>(), trunk);
    let rest = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.9));
    (rules, sizes, guest, rest).prop_map(|(rules, sizes, guest, (small, offload, enabled))| {
        PortPlan {
            mac: rules.0,
            ips: rules.1,
            isolate: rules.2,
            network: sizes.0,
            trunk: guest.2,
            mtu: if small { 200 } else { 1500 },
            storm_pps: sizes.1,
            offload,
            guest: guest.0,
            mergeable: guest.1,
            rx_buffer: if sizes.2 { 128 } else { 1536 },
            enabled,
        }
    })
}

fn frame_plan() -> impl Strategy<Value = FramePlan> {
    let len = prop_oneof![4 => 0_usize..100, 1 => 100_usize..3000];
    (0..=PORTS, 0_u8..8, 0_u8..9, 0_u8..10, len, 0_u8..12).prop_map(
        |(ingress, src, dst, kind, len, tag)| FramePlan { ingress, src, dst, kind, len, tag },
    )
}

/// Hosts 1 to 3 are the guests', 4 and 5 others'.
fn address(n: u8) -> MacAddr {
    match n {
        0 => MacAddr::default(),
        6 => MacAddr([0x33, 0x33, 0, 0, 0, 1]),
        7.. => MacAddr::BROADCAST,
        n => mac(n),
    }
}

impl FramePlan {
    fn link(&self) -> Link {
        // Mostly from where it should be.
        let own = self.ingress as u8 + 1;
        let src = if self.src > 2 { address(own) } else { address(self.src + 2) };
        let link = Link::new(src, address(self.dst));
        match self.tag {
            0 => link.tagged(TYPE_VLAN, 10),
            1 => link.tagged(TYPE_VLAN, 20),
            2 => link.tagged(TYPE_VLAN, 0),
            3 => link.tagged(TYPE_QINQ, 10).tagged(TYPE_VLAN, 10),
            _ => link,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let (own, payload) = (self.ingress as u8 + 1, pattern(1, self.len));
        let end = |n, port| SocketAddr::new(ipv4(n), port);
        let mut segment = tcp(own, self.dst, false);
        segment.link = self.link();
        match self.kind {
            0 => payload,
            1 => self.link().arp(&arp::Packet {
                operation: arp::REQUEST,
                sender_mac: address(own),
                sender_ip: [10, 0, 0, own].into(),
                target_mac: MacAddr::default(),
                target_ip: [10, 0, 0, if self.len > 50 { own } else { self.dst }].into(),
            }),
            2 => build::udp(&self.link(), end(own, 67), end(self.dst, 68), &payload),
            3 => self.link().frame(notice::ETHERTYPE, &payload),
            4 => segment.build(&payload),
            5 => {
                segment.flags =
                    if self.len > 50 { Flags::SYN } else { Flags::SYN.with(Flags::ACK) };
                segment.options = vec![2, 4, 5, 0xb4];
                segment.build(&[])
            }
            6 => {
                segment.ip = tcp(own, self.dst, true).ip;
                segment.build(&payload)
            }
            7 => build::udp(
                &self.link(),
                SocketAddr::new(ipv6(9), 5),
                SocketAddr::new(ipv6(1), 6),
                &payload,
            ),
            _ => build::udp(&self.link(), end(own, 5), end(self.dst, 6), &payload),
        }
    }
}

/// A device that takes all.
struct Sink;

impl Sender for Sink {
    fn capabilities(&self) -> Capabilities {
        Capabilities { csum: true, tso: true }
    }

    fn send(&mut self, _: &VnetHdr, _: &[GuestIoVec<'_>]) -> Result<(), SendError> {
        Ok(())
    }
}

struct Scene {
    shared: Arc<Shared>,
    forwarder: Forwarder,
    guests: Vec<Option<Guest>>,
    /// Seconds go by, so that it is seen if an address is refreshed.
    now: Instant,
}

impl Scene {
    fn new(ports: &[PortPlan], has_device: bool) -> Self {
        let network = |vid: u16| {
            let mtu = (vid == 10).then_some(1000);
            NetworkConfig { mtu, ..NetworkConfig::new(format!("net{vid}"), vid) }
        };
        let config = |(i, plan): (usize, &PortPlan)| {
            let n = i as u8 + 1;
            let mut config = PortConfig::new(format!("vm{n}"), "unused");
            config.mac = plan.mac.then(|| mac(n));
            config.ips = if plan.ips { vec![ipv4(n), ipv6(n)] } else { Vec::new() };
            (config.allow_router, config.allow_dhcp_server) = (!plan.ips, !plan.ips);
            (config.isolate, config.mtu, config.storm_pps) =
                (plan.isolate, plan.mtu, plan.storm_pps);
            (config.network, config.queue_bytes) = (Some(network(plan.network)), 2048);
            if let Some(has_untagged) = plan.trunk {
                config.network = has_untagged.then(|| network(0));
                config.tagged = vec![network(10), network(20)];
            }
            (config.offload.transmit, config.offload.receive) = (plan.offload, plan.offload);
            config
        };
        let uplink = UplinkConfig {
            network: Some(network(0)),
            tagged: vec![network(10)],
            storm_pps: 2,
            multicast_pps: 1,
            gateway_macs: vec![mac(5)],
            ..UplinkConfig::new("up", UplinkKind::Tap, "unused")
        };
        let config = Config {
            ports: ports.iter().enumerate().map(config).collect(),
            uplinks: vec![uplink],
            ..Config::default()
        };
        let shared = Shared::without_devices(&config).unwrap();
        if has_device {
            shared.uplinks()[0].replace_sender(Box::new(Sink));
        }
        let guests = ports.iter().enumerate().map(|(i, plan)| attach(&shared.port_at(i), plan));
        let guests = guests.collect();
        let forwarder = Forwarder::new(Arc::clone(&shared));
        Self { shared, forwarder, guests, now: Instant::ZERO }
    }

    fn trace(&self, plan: &FramePlan, now: Instant) -> (Vec<TraceStep>, Vec<TraceEnd>) {
        let (tracer, bytes) = (Tracer::new(&self.shared, now), plan.bytes());
        match plan.ingress {
            UPLINK => tracer.from_uplink(&self.shared.uplinks()[0], &bytes),
            port => tracer.from_guest(&self.shared.port_at(port), &bytes),
        }
    }

    /// Lets the pipeline have the frame. Returns what its ingress has dropped it for; `None` if it cannot be sent.
    fn send(&mut self, plan: &FramePlan, now: Instant) -> Option<Option<&'static str>> {
        let bytes = plan.bytes();
        if plan.ingress == UPLINK {
            let uplink = Arc::clone(&self.shared.uplinks()[0]);
            let result = frame::with_slice(VnetHdr::default(), &bytes, |frame| {
                self.forwarder.forward_received(&uplink, frame, &bytes, now)
            });
            self.forwarder.finish();
            return Some(result.err().map(DropReason::name));
        }
        let guest = self.guests[plan.ingress].as_mut()?;
        if !guest.send_quietly(0, &VnetHdr::default(), &bytes) {
            return None;
        }
        let port = self.shared.port_at(plan.ingress);
        let (mut tx, mut batch) = (port.pairs[0].tx(), Batch::default());
        let before = counts(&tx.traffic);
        tx.dequeue_burst(&mut batch);
        self.forwarder.forward_batch(&port, &mut batch, now);
        tx.complete(&mut batch);
        Some(new_drop(&before, &tx.traffic))
    }

    /// What ports and the uplink have got: packets, waiting ones, drops by reason.
    fn received(&self) -> Vec<(String, u64, u64, Vec<u64>)> {
        let port = |port: &Arc<Port>| {
            let rx = port.pairs[0].rx();
            let mut drops = counts(&rx.traffic);
            let undelivered = counts(&port.undelivered());
            drops.iter_mut().zip(undelivered).for_each(|(sum, more)| *sum += more);
            (port.config.name.clone(), rx.traffic.packets.get(), rx.pending().0 as u64, drops)
        };
        let ports = self.shared.ports();
        let mut all: Vec<_> = ports.iter().map(port).collect();
        let uplink = &self.shared.uplinks()[0];
        let status = uplink.egress().with(|egress| egress.status());
        let waiting = status.high.packets + status.low.packets;
        let sent = &uplink.sent.traffic;
        all.push(("up".to_owned(), sent.packets.get(), waiting, counts(sent)));
        all
    }

    /// All that a trace must not change.
    fn state(&self) -> String {
        let (shared, late) = (&self.shared, Instant::from_millis(1_000_000));
        let mut status = StatusSource::status(shared);
        (status.switch.uptime_s, status.l2) = (0.0, Vec::new());
        let port = |port: &Arc<Port>| {
            let storm: Vec<_> = port.carried.values().map(|of| &of.storm).collect();
            let own: Vec<_> = (0..9).map(|n| port.owns(ipv4(n))).collect();
            let of_rx = {
                let mut rx = port.pairs[0].rx();
                let next = rx.ring_mut().map(|ring| ring.queue.position());
                (next, rx.pending(), drops(&rx.traffic))
            };
            let next = port.pairs[0].tx().ring_mut().map(|ring| ring.queue.position());
            let offload = (port.offload.next_timeout(), port.inbound.next_timeout());
            let nonce = port.nonce();
            format!("{storm:?} {own:?} {of_rx:?} {next:?} {offload:?} {nonce}")
        };
        let ports: Vec<_> = shared.ports().iter().map(port).collect();
        let uplink = &shared.uplinks()[0];
        let floods: Vec<_> = [0, 10]
            .into_iter()
            .flat_map(|vid| [7, 6].map(|n| uplink.flood_limit(NetworkId(vid), address(n))))
            .map(|limit| format!("{limit:?}"))
            .collect();
        let pairs: Vec<_> = (0..PORTS)
            .map(|n| uplink.egress().with(|egress| egress.pairs(n, 0, 1000, late)).0)
            .collect();
        let tables = shared.tables().entries(late);
        let activity = shared.ledger.spent(uplink.id);
        format!("{status:?}\n{ports:#?}\n{floods:?}\n{pairs:?}\n{tables:?}\n{activity}")
    }
}

fn attach(port: &Port, plan: &PortPlan) -> Option<Guest> {
    if plan.guest == 0 {
        return None;
    }
    let merge = if plan.mergeable { 0 } else { features::MRG_RXBUF };
    let guest = Guest::new(GuestConfig {
        features: GuestConfig::default().features & !merge,
        ring_size: 4,
        rx_buffer: plan.rx_buffer,
        tx_slots: 1,
        tx_shape: TxShape::Single,
        two_regions: false,
        ..GuestConfig::default()
    });
    let memory = Arc::new(guest.memory.map());
    let ring = |index: u32| {
        let driver = &guest.queue(index).driver;
        let queue = Virtqueue::new(Arc::clone(&memory), driver.size(), driver.addresses(), true);
        Ring { queue: queue.expect("a good ring"), call: None }
    };
    port.pairs[0].rx().start(ring(0), features::rx(guest.config.features));
    port.pairs[0].tx().start(ring(1), features::tx(guest.config.features));
    port.pairs[0].tx().set_enabled(plan.enabled);
    port.update_rx_running();
    if plan.guest == 2 {
        port.pairs[0].rx().stop();
        port.update_rx_running();
    }
    Some(guest)
}

fn counts(traffic: &Block) -> Vec<u64> {
    DropReason::ALL.iter().map(|&reason| traffic.drops(reason)).collect()
}

fn new_drop(before: &[u64], traffic: &Block) -> Option<&'static str> {
    let new = before.iter().zip(counts(traffic)).position(|(before, now)| *before != now);
    new.map(|reason| DropReason::ALL[reason].name())
}

/// Ends of a frame, from what was counted before and after it.
fn ends(
    ingress: (&str, Option<&'static str>),
    before: &[(String, u64, u64, Vec<u64>)],
    after: &[(String, u64, u64, Vec<u64>)],
) -> Vec<(String, Outcome, Option<String>)> {
    let dropped = ingress.1.map(|why| (ingress.0.to_owned(), Outcome::Drop, Some(why.to_owned())));
    let mut ends: Vec<_> = dropped.into_iter().collect();
    for (before, after) in before.iter().zip(after) {
        let name = || after.0.clone();
        ends.extend((before.1..after.1).map(|_| (name(), Outcome::Deliver, None)));
        ends.extend((before.2..after.2).map(|_| (name(), Outcome::Wait, None)));
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            let drop = || (name(), Outcome::Drop, Some(reason.name().to_owned()));
            ends.extend((before.3[i]..after.3[i]).map(|_| drop()));
        }
    }
    ends.sort_by(|a, b| (&a.0, &a.2).cmp(&(&b.0, &b.2)));
    ends
}

/// Traces a frame, sends it, and compares. Returns the steps; none if there was nothing to compare.
fn check(scene: &mut Scene, plan: &FramePlan) -> Result<Vec<TraceStep>, TestCaseError> {
    scene.now += Duration::from_secs(u64::from(plan.tag % 3));
    let (now, state) = (scene.now, scene.state());
    let (steps, said) = scene.trace(plan, now);
    prop_assert_eq!(scene.state(), state, "a trace has changed something: {:?}", plan);
    let before = scene.received();
    let Some(dropped) = scene.send(plan, now) else { return Ok(Vec::new()) };
    let after = scene.received();
    for port in scene.shared.ports().iter().filter(|port| port.is_departed()) {
        // Else it goes where the address is used next, with the frame that is looked at.
        port.pairs[0].rx().take_all_waiting();
    }
    if steps.iter().any(|step| step.outcome == Outcome::Decide) {
        return Ok(Vec::new());
    }
    let name = before.get(plan.ingress).map_or("up", |(name, ..)| name);
    let expected = ends((name, dropped), &before, &after);
    let mut said: Vec<_> = said.into_iter().map(|end| (end.at, end.outcome, end.drop)).collect();
    said.sort_by(|a, b| (&a.0, &a.2).cmp(&(&b.0, &b.2)));
    prop_assert_eq!(said, expected, "{:?}: {:#?}", plan, steps);
    prop_assert!(!steps.is_empty() && steps.iter().all(|step| !step.reason.is_empty()));
    Ok(steps)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn what_a_trace_says_is_what_happens(
        ports in prop::collection::vec(port_plan(), PORTS),
        has_device in prop::bool::weighted(0.9),
        frames in prop::collection::vec(frame_plan(), 1..40),
    ) {
        let mut scene = Scene::new(&ports, has_device);
        for plan in &frames {
            check(&mut scene, plan)?;
        }
    }
}

/// The comparison is worth something: all that can happen to a frame happens in it.
#[test]
fn what_is_compared_has_everything_in_it() {
    let mut runner = TestRunner::deterministic();
    let plans = (prop::collection::vec(port_plan(), PORTS), prop::bool::weighted(0.8));
    let frames = prop::collection::vec(frame_plan(), 40);
    let mut seen = BTreeSet::new();
    for _ in 0..150 {
        let (ports, has_device) = plans.new_tree(&mut runner).unwrap().current();
        let mut scene = Scene::new(&ports, has_device);
        for plan in frames.new_tree(&mut runner).unwrap().current() {
            for step in check(&mut scene, &plan).unwrap() {
                seen.insert(match step.drop {
                    Some(reason) => reason,
                    None => format!("{} {}", step.stage, step.outcome.name()),
                });
            }
        }
    }
    let expected = [
        "runt",
        "spoofed_mac",
        "spoofed_ip",
        "dhcp_guard",
        "invalid_source",
        "mac_in_use",
        "reflected",
        "vlan_filtered",
        "vlan pass",
        "forged_notice",
        "storm",
        "isolated",
        "hairpin",
        "no_destination",
        "port_down",
        "oversize",
        "no_large_buffer",
        "queue_full",
        "uplink_error",
        "queue deliver",
        "queue wait",
        "offload pass",
        "storm pass",
    ];
    let missing: Vec<_> = expected.into_iter().filter(|what| !seen.contains(*what)).collect();
    assert_eq!(missing, [""; 0], "{seen:?}");
}

fn plain() -> PortPlan {
    PortPlan {
        mac: true,
        ips: false,
        isolate: false,
        network: 0,
        trunk: None,
        mtu: 1500,
        storm_pps: 0,
        offload: false,
        guest: 1,
        mergeable: true,
        rx_buffer: 1536,
        enabled: true,
    }
}

/// The last step of a frame's trace.
fn last(scene: &Scene, port: usize, bytes: &[u8]) -> TraceStep {
    let tracer = Tracer::new(&scene.shared, scene.shared.now());
    tracer.from_guest(&scene.shared.port_at(port), bytes).0.pop().expect("a step")
}

#[test]
fn every_stage_says_why() {
    let mut scene = Scene::new(&[plain(), PortPlan { mtu: 200, ..plain() }, plain()], true);
    let step = last(&scene, 0, &numbered(1, 3, 1, 60));
    assert_eq!((&*step.at, step.outcome), ("vm3", Outcome::Deliver));
    assert_eq!(
        step.reason,
        "placed in 1 of the guest's receive buffers; 4 buffers are free, nothing waits"
    );
    let step = last(&scene, 0, &numbered(1, 2, 1, 600));
    assert_eq!((&*step.at, step.drop.as_deref()), ("vm2", Some("oversize")));
    assert_eq!(step.reason, "642 bytes: larger than the port's mtu = 200 allows");
    let step = last(&scene, 0, &numbered(3, 2, 1, 60));
    assert_eq!((&*step.stage, step.drop.as_deref()), ("source", Some("spoofed_mac")));
    assert_eq!(step.reason, "the guest may send from 52:54:00:00:00:01 only (mac of the port)");
    let step = last(&scene, 0, &numbered(1, 5, 1, 60));
    assert_eq!((&*step.at, step.outcome), ("up", Outcome::Deliver));
    assert_eq!(step.reason, "nothing waits: goes to device unused at once");
    let to_three = FramePlan { ingress: 0, src: 9, dst: 3, kind: 9, len: 60, tag: 9 };
    while scene.shared.port_at(2).pairs[0].rx().pending().0 < 2 {
        assert!(!check(&mut scene, &to_three).unwrap().is_empty());
    }
    let step = last(&scene, 0, &numbered(1, 3, 1, 60));
    assert_eq!(step.drop.as_deref(), Some("queue_full"));
    assert!(step.reason.contains("0 buffers are free, 2 frames"), "{}", step.reason);
}

#[test]
fn a_ring_that_the_guest_has_broken_is_named_and_breaks_when_a_frame_comes() {
    let mut scene = Scene::new(&[plain(), plain(), plain()], true);
    let guest = scene.guests[1].as_mut().expect("a guest");
    guest.pairs[0].rx.driver.set_avail_idx(1000);
    let frame = FramePlan { ingress: 0, src: 9, dst: 2, kind: 9, len: 60, tag: 9 };
    for _ in 0..2 {
        let step = last(&scene, 0, &frame.bytes());
        assert_eq!((&*step.at, step.drop.as_deref()), ("vm2", Some("bad_descriptor")));
    }
    assert!(scene.shared.port_at(1).pairs[0].rx().is_running(), "a trace breaks nothing");
    assert!(!check(&mut scene, &frame).unwrap().is_empty());
    assert!(!scene.shared.port_at(1).pairs[0].rx().is_running());
}
