//! How many descriptors front-ends can make the switch hold. Alone in its process, whose limits it changes.

#[path = "switch/net.rs"]
#[allow(dead_code)]
mod net;

use std::fs;
use std::os::fd::AsRawFd;

use floodway_switch::Switch;
use floodway_switch::host::descriptors::needed;
use floodway_switch::testing::frames::numbered;
use floodway_switch::testing::{Frontend, GuestConfig, TestMemory, message};
use floodway_switch::vhost::features;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vmm_sys_util::eventfd::EventFd;

use net::Net;

const PAGE: u64 = 4096;

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn set_limit(current: u64, maximum: Option<u64>) {
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap();
}

/// Sends descriptors in messages of all kinds, also more than they have a use for.
fn litter(frontend: &mut Frontend) {
    let events: Vec<_> = (0..32).map(|_| EventFd::new(0).unwrap()).collect();
    let fds: Vec<_> = events.iter().map(AsRawFd::as_raw_fd).collect();
    for request in [message::SET_VRING_CALL, message::SET_VRING_KICK, message::SET_VRING_ERR] {
        for ring in (0u64..2).cycle().take(100) {
            // Kicks start rings that have no addresses yet; whether that is refused does not matter here.
            let _ = frontend.request(request, &ring.to_ne_bytes(), &fds[..1]);
        }
    }
    // The connection may end at this.
    let _ = frontend.request(message::SET_VRING_CALL, &0u64.to_ne_bytes(), &fds);
}

/// Shares as many regions as a front-end may.
fn flood(frontend: &mut Frontend, memory: &TestMemory) {
    frontend.negotiate(GuestConfig::default().features | features::PROTOCOL_FEATURES).unwrap();
    for region in 0..256 {
        frontend.add_mem_region(memory, region).unwrap();
    }
    assert!(frontend.add_mem_region(memory, 256).is_err(), "one more than there may be");
}

#[test]
fn regions_of_memory_cost_no_descriptors_and_the_limit_is_raised_to_what_ports_can_need() {
    let before = getrlimit(Resource::Nofile);
    // As few as a shell might allow, and enough for the files of this test.
    set_limit(80, before.maximum);
    let net = Net::of(6);
    let enough = needed(&net.config);
    assert_eq!(getrlimit(Resource::Nofile).current, Some(enough));
    set_limit(before.current.unwrap_or(4096).max(4096), before.maximum);

    let regions: Vec<_> = (0..257).map(|i| (2 * i * PAGE, PAGE)).collect();
    let memory = TestMemory::new(&regions);
    let mut frontends = [1, 2, 3, 4].map(|n| Frontend::connect(&net.socket(n)));
    for frontend in &mut frontends {
        frontend.get(message::GET_FEATURES).unwrap();
    }
    let held = open_descriptors();
    frontends.iter_mut().for_each(|frontend| flood(frontend, &memory));
    assert_eq!(open_descriptors(), held);
    frontends.iter_mut().for_each(litter);
    // A kick and a call for each of four ports' two rings.
    assert!(open_descriptors() <= held + 16, "{} {held}", open_descriptors());

    let [mut a, mut b] = [5, 6].map(|n| net.boot(n, GuestConfig::default()));
    let frame = numbered(5, 6, 1, 100);
    a.send(&frame);
    b.expect(&frame);
    drop((a, b, frontends));

    let mut net = net;
    net.switch = None;
    // The hard limit cannot be raised again: this comes last.
    set_limit(enough - 1, Some(enough - 1));
    let error = Switch::start(&net.config).err().expect("too few").to_string();
    let start = format!("this configuration can need {enough} file descriptors");
    assert!(error.starts_with(&start), "{error}");
}
