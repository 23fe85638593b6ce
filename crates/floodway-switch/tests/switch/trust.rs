//! Front-ends that misuse what they share, descriptors and memory, beside guests that behave.

use std::fs::File;
use std::io::{PipeWriter, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use floodway_switch::api::status::PortState;
use floodway_switch::testing::frames::numbered;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, RequestError, message, wait_until};
use floodway_switch::vhost::features;
use vmm_sys_util::eventfd::EventFd;

use crate::net::{Net, Vm};

/// A frame each way.
fn exchange(a: &mut Vm, b: &mut Vm, number: u32) {
    let there = numbered(a.n, b.n, number, 500);
    a.send(&there);
    b.expect(&there);
    let back = numbered(b.n, a.n, number, 500);
    b.send(&back);
    a.expect(&back);
}

fn boot<const N: usize>(net: &Net) -> [Vm; N] {
    std::array::from_fn(|i| net.boot(i as u8 + 1, GuestConfig::default()))
}

fn set_descriptor(
    frontend: &mut Frontend,
    request: u32,
    ring: u64,
    fd: RawFd,
) -> Result<(), RequestError> {
    frontend.request(request, &ring.to_ne_bytes(), &[fd])
}

/// An eventfd to which any write blocks. Dropped, it blocks nobody any more, so that a test that fails can end.
struct FullEventFd(EventFd);

impl FullEventFd {
    fn new() -> Self {
        let event = EventFd::new(0).unwrap();
        event.write(u64::MAX - 1).unwrap();
        Self(event)
    }

    /// As large as a counter gets: a write blocks.
    fn fill(&self) {
        let _ = self.0.read();
        self.0.write(u64::MAX - 1).unwrap();
    }
}

impl Drop for FullEventFd {
    fn drop(&mut self) {
        self.0.read().unwrap();
        // For whoever is still to write.
        // SAFETY: a descriptor of ours; takes no pointers.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    }
}

#[test]
fn a_full_call_descriptor_blocks_no_worker_and_no_lock() {
    let net = Net::of(3);
    let [mut a, mut b, mut evil] = boot(&net);
    let full = FullEventFd::new();
    for ring in 0..2 {
        let frontend = evil.frontend.as_ref().unwrap();
        let payload = u64::from(ring as u32).to_ne_bytes();
        // Not waited for: the answer may never come.
        let bytes = message::encode(message::SET_VRING_CALL, message::VERSION, 8, &payload);
        frontend.send_raw(&bytes, &[full.0.as_raw_fd()]).unwrap();
    }
    for round in 0..50 {
        a.send(&numbered(1, 3, round, 100));
        assert!(evil.guest.send(0, &Default::default(), &numbered(3, 1, round, 100)));
        a.expect(&numbered(3, 1, round, 100));
        exchange(&mut a, &mut b, round);
        while evil.guest.recv(0).is_some() {}
        full.fill();
    }
    assert_eq!(net.port(3).state, PortState::Running);
    assert!(evil.frontend().get(message::GET_FEATURES).is_ok(), "its socket is served");
}

#[test]
fn a_call_descriptor_still_interrupts_after_it_overflowed() {
    let net = Net::of(2);
    let [mut a, mut b] = boot(&net);
    let full = FullEventFd::new();
    set_descriptor(b.frontend(), message::SET_VRING_CALL, 0, full.0.as_raw_fd()).unwrap();
    full.0.read().unwrap();
    let frame = numbered(1, 2, 1, 100);
    a.send(&frame);
    b.expect(&frame);
    wait_until("an interrupt", || {
        let mut poll = libc::pollfd { fd: full.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer leads to one pollfd.
        (unsafe { libc::poll(&raw mut poll, 1, 0) }) == 1
    });
}

/// A pipe that takes no more bytes.
fn full_pipe() -> (std::io::PipeReader, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    // SAFETY: descriptors of ours; no pointers but to the page that is written.
    unsafe {
        libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        while libc::write(writer.as_raw_fd(), [0u8; 4096].as_ptr().cast(), 4096) > 0 {}
        libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, 0);
    }
    (reader, writer)
}

#[test]
fn descriptors_that_are_no_eventfds_are_refused_for_calls_and_kicks() {
    let net = Net::of(3);
    let [mut a, mut b, mut evil] = boot(&net);
    let (_reader, writer) = full_pipe();
    let file = tempfile::tempfile().unwrap();
    let epoll = vmm_sys_util::epoll::Epoll::new().unwrap();
    for fd in [writer.as_raw_fd(), file.as_raw_fd(), epoll.as_raw_fd()] {
        for request in [message::SET_VRING_CALL, message::SET_VRING_KICK] {
            for ring in 0..2 {
                let answer = set_descriptor(evil.frontend(), request, ring, fd);
                assert!(matches!(answer, Err(RequestError::Refused(_))), "{answer:?}");
            }
        }
    }
    exchange(&mut a, &mut b, 1);
}

/// VM 3's memory ends where it began.
fn truncate(guest: &Guest) {
    for region in 0..guest.memory.layouts().count() {
        guest.memory.file(region).set_len(0).unwrap();
    }
}

fn is_quarantined(net: &Net, n: u8, reason: &str) -> bool {
    net.port(n).quarantine.is_some_and(|text| text.contains(reason))
}

#[test]
fn memory_that_shrinks_quarantines_its_port_and_harms_nobody_else() {
    let net = Net::of(3);
    let [mut a, mut b, mut evil] = boot(&net);
    for round in 0..3 {
        truncate(&evil.guest);
        a.send(&numbered(1, 3, round, 1000));
        evil.guest.pairs[0].tx.kick.write(1).unwrap();
        wait_until("the port to be quarantined", || is_quarantined(&net, 3, "memory"));
        wait_until("the connection to be closed", || evil.frontend().is_closed());
        assert_eq!(net.port(3).queue_pairs_enabled, 0);
        exchange(&mut a, &mut b, round);
        // Another guest may come, with memory of its own. What has waited for its address comes first.
        evil = net.boot(3, GuestConfig::default());
        assert_eq!(net.port(3).quarantine, None);
        let frame = numbered(1, 3, 100 + round, 1000);
        a.send(&frame);
        while evil.recv().1 != frame {}
        let answer = numbered(3, 1, 100 + round, 1000);
        evil.send(&answer);
        while a.recv().1 != answer {}
    }
    let counts = net.port(3).quarantines;
    assert_eq!((counts["guest_memory"], counts["dirty_log"]), (3, 0), "times that it was cut off");
}

#[test]
fn memory_that_shrinks_while_frames_are_copied_harms_nobody_else() {
    let net = Net::of(3);
    let [mut a, mut b, mut evil] = boot(&net);
    for number in 0..8 {
        // Frames come and go while it goes.
        for _ in 0..8 {
            let _ = a.guest.send(0, &Default::default(), &numbered(1, 3, number, 1400));
            let _ = evil.guest.send(0, &Default::default(), &numbered(3, 1, number, 1400));
        }
        truncate(&evil.guest);
        wait_until("the port to be quarantined", || is_quarantined(&net, 3, "memory"));
        drop(evil);
        while a.guest.recv(0).is_some() {}
        a.wait_sent();
        let there = numbered(1, 2, number, 1000);
        a.send(&there);
        // Among frames to a guest that is not there, which come to everyone.
        while b.recv().1 != there {}
        while a.guest.recv(0).is_some() {}
        evil = net.boot(3, GuestConfig::default());
    }
}

#[test]
fn memory_that_shrinks_inside_a_message_harms_nobody_else() {
    let net = Net::of(3);
    let [mut a, mut b, mut evil] = boot(&net);
    // Its port's thread waits for the rest, and cannot see to anything else.
    let half = message::encode(message::SET_FEATURES, message::VERSION, 8, &[1, 2, 3]);
    evil.frontend().send_raw(&half, &[]).unwrap();
    wait_until("the message to be read", || evil.frontend().is_read());
    truncate(&evil.guest);
    for round in 0..100 {
        a.send(&numbered(1, 3, round, 1000));
        evil.guest.pairs[0].tx.kick.write(1).unwrap();
        exchange(&mut a, &mut b, round);
    }
}

#[test]
fn memory_that_goes_while_a_header_is_unfinished_quarantines_its_port() {
    let net = Net::of(3);
    let [mut a, mut b, mut evil] = boot(&net);
    evil.frontend().send_raw(&[1, 2, 3], &[]).unwrap();
    // Time for a thread that would read them to wait for the rest.
    std::thread::sleep(Duration::from_millis(200));
    truncate(&evil.guest);
    a.send(&numbered(1, 3, 1, 1000));
    evil.guest.pairs[0].tx.kick.write(1).unwrap();
    wait_until("the port to be quarantined", || is_quarantined(&net, 3, "memory"));
    exchange(&mut a, &mut b, 1);
}

#[test]
fn a_message_with_too_many_descriptors_ends_the_connection() {
    let net = Net::of(1);
    let mut evil = net.boot(1, GuestConfig::default());
    let file = File::open("/dev/null").unwrap();
    let fds = vec![file.as_raw_fd(); 33];
    let message = message::encode(message::GET_FEATURES, message::VERSION, 0, &[]);
    evil.frontend().send_raw(&message, &fds).unwrap();
    wait_until("the connection to end", || net.port(1).state == PortState::Down);
}

fn migrating(net: &Net, vm: &mut Vm) -> File {
    // A bit for each page of a guest of 64 MiB.
    let log = floodway_switch::testing::memory::memfd(4096);
    vm.frontend().set_log_base(&log, 2048).unwrap();
    let features = vm.guest.config.features | features::LOG_ALL;
    vm.frontend().request(message::SET_FEATURES, &features.to_ne_bytes(), &[]).unwrap();
    wait_until("the guest to run", || net.port(vm.n).state == PortState::Running);
    log
}

#[test]
fn a_dirty_log_that_shrinks_quarantines_its_port_and_harms_nobody_else() {
    let net = Net::of(3);
    let [mut a, mut b, mut evil] = boot(&net);
    let log = migrating(&net, &mut evil);
    log.set_len(0).unwrap();
    a.send(&numbered(1, 3, 1, 1000));
    wait_until("the port to be quarantined", || is_quarantined(&net, 3, "dirty log"));
    assert_eq!(net.port(3).quarantines["dirty_log"], 1);
    exchange(&mut a, &mut b, 1);
}
