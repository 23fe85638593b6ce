//! Who unmaps guests' memory. Alone in its process, whose every mapping it counts.

#[path = "switch/net.rs"]
#[allow(dead_code)]
mod net;

use std::time::Duration;

use floodway_switch::memory::mapping::unmapped_by;
use floodway_switch::testing::frames::numbered;
use floodway_switch::testing::{GuestConfig, wait_until};

use net::Net;

/// Unmapping gigabytes takes milliseconds: a worker that did it would let everybody wait.
#[test]
fn memory_is_unmapped_by_its_ports_thread_and_never_by_a_worker() {
    const ROUNDS: u32 = 200;
    let mut net = Net::of(2);
    // A worker that does not sleep holds the memory that it forwarded from last.
    net.config.workers[0].poll = Duration::from_secs(1);
    net.restart();
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    for round in 0..ROUNDS {
        assert!(b.guest.send(0, &Default::default(), &numbered(2, 1, round, 1000)));
        a.recv();
        b.wait_sent();
        let memory = b.guest.memory.clone();
        b.frontend().set_mem_table(&memory).unwrap();
        // Until another guest sends.
        a.send(&numbered(1, 2, round, 100));
        b.recv();
    }
    drop(b);
    wait_until("all of the old memory to go", || {
        unmapped_by("vhost-vm2") == u64::from(ROUNDS + 1) * 2
    });
    assert_eq!(unmapped_by("worker-0"), 0);
}
