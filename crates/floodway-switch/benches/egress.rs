//! What the way into an uplink costs: from a guest's transmit ring into a real device, with the meter, the tags and the
//! queue discipline on as they are by default, and with the meter off.
//!
//! Both run in turns, batch by batch, so that a machine that slows down does so for both. The
//! figure is the ratio of the medians. "forged" is the worst case: each frame carries a code point that has to be changed.
//! Then the same for GSO packets that leave whole, and cut: what early segmentation costs, with the system calls and what
//! the kernel does with each frame.
//! Needs root (a TAP device and a veth pair in a network namespace of its own); without, it says so and ends.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floodway_core::l2::NetworkId;
use floodway_switch::config::Config;
use floodway_switch::pipeline::forward::Forwarder;
use floodway_switch::queues::ring::Ring;
use floodway_switch::queues::tx::{BATCH, Batch};
use floodway_switch::queues::virtqueue::Virtqueue;
use floodway_switch::state::shared::Shared;
use floodway_switch::testing::frames::{mac, numbered, partial, pattern, tcp};
use floodway_switch::testing::{Guest, GuestConfig};
use floodway_switch::vhost::features;
use floodway_wire::traffic_class::set_dscp;
use floodway_wire::vnet::VnetHdr;

const BATCHES: usize = 4000;
/// What all of it may cost.
const ALLOWED_PERCENT: f64 = 10.0;
/// Batches of GSO packets.
const SUPER_BATCHES: usize = 200;
/// Payload of a GSO packet: as many full segments as Linux makes of 64 KB.
const SEGMENTS: usize = 45;
const MSS: usize = 1448;
const METER: [&str; 2] = ["[meter]\nenabled = false", "[meter]\nenabled = true"];
const CUT: [&str; 2] = [
    "[uplink.queue]\nsegment = false\n[meter]\nenabled = false",
    "[uplink.queue]\nsegment = true\n[meter]\nenabled = false",
];

/// Kinds of uplink, and a device for each side of a comparison.
const DEVICES: [(&str, [&str; 2]); 2] = [("tap", ["fwb0", "fwb1"]), ("packet", ["v0", "v2"])];

/// A guest on a switch without threads, with an uplink.
struct Bench {
    shared: Arc<Shared>,
    forwarder: Forwarder,
    batch: Batch,
    guest: Guest,
}

impl Bench {
    /// `more` is the end of its configuration.
    fn new(kind: &str, device: &str, more: &str) -> Self {
        let text = format!(
            "[[port]]\nname = \"vm1\"\nsocket = \"/unused\"\nmac = \"{}\"\n\
             [[uplink]]\nname = \"up0\"\nkind = \"{kind}\"\ndevice = \"{device}\"\n{more}\n",
            mac(1)
        );
        let config = Config::parse(&text, Path::new("bench")).expect("a good configuration");
        let shared = Shared::without_threads(&config).expect("a switch");
        let mut guest = Guest::new(GuestConfig::default());
        guest.pairs.iter_mut().for_each(|pair| pair.tx.driver.disable_interrupts());
        let memory = Arc::new(guest.memory.map());
        let driver = &guest.queue(1).driver;
        let queue = Virtqueue::new(memory, driver.size(), driver.addresses(), true);
        let ring = Ring { queue: queue.expect("good rings"), call: None };
        let port = &shared.port_at(0);
        port.pairs[0].tx().start(ring, features::tx(guest.config.features));
        port.pairs[0].tx().set_enabled(true);
        let uplink = shared.uplinks()[0].id;
        shared.tables_mut().of_mut(NetworkId::DEFAULT).learn(mac(9), uplink, false, shared.now());
        let forwarder = Forwarder::new(Arc::clone(&shared));
        Self { forwarder, shared, batch: Batch::default(), guest }
    }

    /// Forwards a batch of `frame`; answers the time that the switch took.
    fn run(&mut self, vnet: &VnetHdr, frame: &[u8]) -> Duration {
        for _ in 0..BATCH {
            assert!(self.guest.send_quietly(0, vnet, frame), "room to transmit");
        }
        let port = &self.shared.port_at(0);
        let start = Instant::now();
        let now = self.shared.now();
        let mut tx = port.pairs[0].tx();
        tx.dequeue_burst(&mut self.batch);
        self.forwarder.forward_batch(port, &mut self.batch, now);
        tx.complete(&mut self.batch);
        // What had to wait leaves when the worker looks again.
        while self.shared.uplinks()[0].next_timeout() < floodway_core::time::Instant::NEVER {
            self.shared.uplinks()[0].run_timer(self.shared.now());
        }
        let took = start.elapsed();
        drop(tx);
        took
    }

    fn left(&self) -> u64 {
        self.shared.uplinks()[0].sent.packets.get()
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / BATCH as f64
}

/// What a guest sends.
struct Offered {
    vnet: VnetHdr,
    frame: Vec<u8>,
    batches: usize,
}

/// Nanoseconds a frame of the guest with the one configuration and the other, and how many frames leave for each of them.
fn compare(kind: &str, devices: [&str; 2], more: [&str; 2], offered: &Offered) -> [(f64, u64); 2] {
    let mut benches = [0, 1].map(|i| Bench::new(kind, devices[i], more[i]));
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..offered.batches {
        for i in [round % 2, 1 - round % 2] {
            let took = benches[i].run(&offered.vnet, &offered.frame);
            times[i].push(took);
        }
    }
    let sent = (offered.batches * BATCH) as u64;
    let left = benches.map(|bench| bench.left());
    assert!(left.iter().all(|left| left.is_multiple_of(sent)), "every frame leaves");
    let [off, on] = times.map(median);
    [(off, left[0] / sent), (on, left[1] / sent)]
}

/// A network namespace of our own with a veth pair for each side.
fn enter() -> Result<(), String> {
    // SAFETY: takes no pointers; there is one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("no network namespace: {}", std::io::Error::last_os_error()));
    }
    for pair in ["v0", "v2"] {
        let peer = if pair == "v0" { "v1" } else { "v3" };
        let mut commands = vec![format!("link add {pair} type veth peer name {peer}")];
        for name in [pair, peer] {
            commands.push(format!("link set {name} addrgenmode none"));
            commands.push(format!("link set {name} up"));
        }
        for command in commands {
            let status = Command::new("ip").args(command.split_whitespace()).status();
            if !status.is_ok_and(|status| status.success()) {
                return Err(format!("ip {command} failed"));
            }
        }
    }
    Ok(())
}

fn main() {
    let test = std::env::args().any(|arg| arg == "--test");
    if let Err(problem) = enter() {
        println!("egress: skipped: {problem} (run it as root)");
        return;
    }
    meter(if test { 10 } else { BATCHES });
    segmentation(if test { 2 } else { SUPER_BATCHES });
}

/// What meter, tags and queue cost.
fn meter(batches: usize) {
    let plain = |frame_len: usize| numbered(1, 9, 0, frame_len - 42);
    let forged = |frame_len: usize| {
        let mut frame = plain(frame_len);
        set_dscp(&mut frame, 46);
        frame
    };
    println!("egress: guest to device, ns a frame in batches of {BATCH}: meter off, all on");
    let mut worst = f64::NEG_INFINITY;
    for (kind, devices) in DEVICES {
        let cases = [
            ("64 B", plain(64)),
            ("64 B forged", forged(64)),
            ("1514 B", plain(1514)),
            ("1514 B forged", forged(1514)),
        ];
        for (name, frame) in cases {
            let offered = Offered { vnet: VnetHdr::default(), frame, batches };
            let [(off, one), (on, also_one)] = compare(kind, devices, METER, &offered);
            assert_eq!([one, also_one], [1, 1], "frames leave as they came");
            let cost = 100.0 * (1.0 - off / on);
            worst = worst.max(cost);
            println!(
                "egress: {kind:<6} {name:<14} {off:7.0} {on:7.0}   {cost:5.1} % of the packet rate"
            );
        }
    }
    let verdict = if worst <= ALLOWED_PERCENT { "within" } else { "ABOVE" };
    println!(
        "egress: all of it on costs at most {worst:.1} % of the packet rate, {verdict} {ALLOWED_PERCENT} %"
    );
}

/// What it costs to cut GSO packets.
fn segmentation(batches: usize) {
    println!("egress: GSO packets of {SEGMENTS} segments, us each: whole, cut");
    for (kind, devices) in DEVICES {
        let frame = tcp(1, 9, false).build_partial(&pattern(1, SEGMENTS * MSS));
        let offered = Offered { vnet: partial(&frame, MSS as u16), frame, batches };
        let [(whole, one), (cut, many)] = compare(kind, devices, CUT, &offered);
        assert_eq!([one, many], [1, SEGMENTS as u64], "whole, and cut");
        let segment = (cut - whole) / SEGMENTS as f64;
        // GSO packets in a second of a link of 1 Gbit/s.
        let rate = 1e9 / 8.0 / offered.frame.len() as f64;
        let core = (cut - whole) * rate * 1e-9 * 100.0;
        println!(
            "egress: {kind:<6} {:7.1} {:7.1}   {segment:.0} ns a segment more, {core:.1} % of a core at 1 Gbit/s",
            whole / 1e3,
            cut / 1e3
        );
    }
}
