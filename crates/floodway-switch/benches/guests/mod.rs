//! Guests that a bench runs itself, and switches without threads that they are attached to.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use floodway_switch::config::{Config, PortConfig, WorkerConfig};
use floodway_switch::queues::ring::Ring;
use floodway_switch::queues::virtqueue::Virtqueue;
use floodway_switch::state::shared::Shared;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::{Guest, GuestConfig};
use floodway_switch::vhost::features;
use rustix::thread::{CpuSet, sched_setaffinity};

/// The port of guest `n`, with no limit on floods.
pub fn port(n: u8) -> PortConfig {
    PortConfig { mac: Some(mac(n)), storm_pps: 0, ..PortConfig::new(format!("vm{n}"), "unused") }
}

/// A switch with these ports and so many workers, without threads.
pub fn shared_by(ports: Vec<PortConfig>, workers: usize) -> Arc<Shared> {
    let worker = WorkerConfig { core: None, poll: Duration::ZERO };
    let config = Config { workers: vec![worker; workers], ports, ..Config::default() };
    Shared::without_threads(&config).expect("a switch")
}

/// A guest that polls: it wants no interrupts.
pub fn polling_guest(config: GuestConfig) -> Guest {
    let mut guest = Guest::new(config);
    for pair in &mut guest.pairs {
        pair.rx.driver.disable_interrupts();
        pair.tx.driver.disable_interrupts();
    }
    guest
}

/// Starts the rings of `guest` at a port.
pub fn attach(shared: &Shared, port: usize, guest: &Guest) {
    let memory = Arc::new(guest.memory.map());
    let ring = |index| {
        let driver = &guest.queue(index).driver;
        let memory = Arc::clone(&memory);
        let queue = Virtqueue::new(memory, driver.size(), driver.addresses(), true);
        Ring { queue: queue.expect("good rings"), call: None }
    };
    let port = &shared.port_at(port);
    let negotiated = guest.config.features;
    port.pairs[0].rx().start(ring(0), features::rx(negotiated));
    port.pairs[0].tx().start(ring(1), features::tx(negotiated));
    port.pairs[0].tx().set_enabled(true);
    port.update_rx_running();
}

/// Keeps this thread on a core, if there is more than one.
pub fn pin(core: usize) {
    if thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
        let mut cores = CpuSet::new();
        cores.set(core);
        sched_setaffinity(None, &cores).expect("a core of this number");
    }
}

/// The median of some times.
pub fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}
