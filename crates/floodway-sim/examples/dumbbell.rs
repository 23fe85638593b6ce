//! A dumbbell: a CUBIC and a Reno sender share a bottleneck of 50 Mbit/s, 20 ms and one bandwidth-delay product of buffer.
//!
//! Prints what each has delivered in 60 s of virtual time. The same seed gives the same bytes.
//! `cargo run -p floodway-sim --example dumbbell [SEED]`

use floodway_core::congestion::Algorithm;
use floodway_sim::flow::Side;
use floodway_sim::net::{Builder, Link, NicConfig, QueueConfig, SwitchConfig};
use floodway_sim::tcp::TcpConfig;
use floodway_sim::traffic::{Bulk, BulkFlow};
use floodway_sim::world::World;
use floodway_sim::{Duration, Instant};

const MBIT: u64 = 1_000_000;
const RATE: u64 = 50 * MBIT;
const RTT: Duration = Duration::from_millis(20);
const TIME: Duration = Duration::from_secs(60);

fn main() {
    let seed = std::env::args().nth(1).map_or(1, |seed| seed.parse().expect("a seed"));
    let algorithms = [Algorithm::Cubic, Algorithm::Reno];

    // Host 0 receives. Access links vary by one packet time, or flows fall into step with the drops.
    let mut builder = Builder::new(seed);
    let bottleneck = Link::ethernet(RATE, RTT / 2);
    let buffer = RATE / 8 * RTT.as_millis() as u64 / 1000;
    let centre = builder.switch(SwitchConfig::new(QueueConfig::bytes(buffer)));
    let receiver = builder.host(NicConfig::default());
    builder.connect(receiver, centre, bottleneck);
    for _ in algorithms {
        let sender = builder.host(NicConfig::default());
        let access = Link::ethernet(20 * RATE, Duration::ZERO);
        builder.connect(sender, centre, access.with_jitter(bottleneck.transmission(1500, 1)));
    }

    let mut world = World::new(builder.build());
    let to = world.add_bare(0);
    let mut flows = Vec::new();
    for (host, algorithm) in (1..).zip(algorithms) {
        let stack = TcpConfig { algorithm, ..TcpConfig::linux() };
        let from = world.add_bare(host);
        flows.push(BulkFlow { from, to, bytes: None, start: Duration::ZERO, stack });
    }
    let app = world.add_app(Bulk::new(flows));
    world.run(Instant::ZERO + TIME);

    for (n, algorithm) in algorithms.into_iter().enumerate() {
        let flow = world.app::<Bulk>(app).and_then(|bulk| bulk.flow(n)).expect("it has started");
        let end = world.flows().get(flow).expect("it goes on").end(Side::Server);
        let connection = end.connection.as_ref().expect("it is open");
        let bits = connection.receiver().delivered() * 8;
        println!("{algorithm:<6} {:.1} Mbit/s", bits as f64 / TIME.as_secs_f64() / MBIT as f64);
    }
}
