//! Guests and front-ends that mean harm, beside guests that do not.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::thread;

use floodway_switch::Switch;
use floodway_switch::api::status::PortState;
use floodway_switch::config::{PortConfig, SocketMode};
use floodway_switch::testing::driver::{F_INDIRECT, F_NEXT, F_WRITE};
use floodway_switch::testing::frames::{numbered, pattern};
use floodway_switch::testing::message::{self, encode};
use floodway_switch::testing::{Frontend, Guest, GuestConfig, HANG, RawDescriptor, wait_until};

use crate::net::{Net, Vm, port};

/// A reproducible source of bad ideas.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn descriptor(&mut self) -> RawDescriptor {
        let flags = [0, F_NEXT, F_WRITE, F_INDIRECT, F_NEXT | F_WRITE, 0xffff];
        let lens = [0, 1, 11, 12, 64, 1514, 70_000, u32::MAX];
        RawDescriptor {
            addr: [self.next() % 8_000_000, self.next(), 0, u64::MAX - 8][self.next() as usize % 4],
            len: lens[self.next() as usize % lens.len()],
            flags: flags[self.next() as usize % flags.len()],
            next: (self.next() % 300) as u16,
        }
    }
}

fn exchange(a: &mut Vm, b: &mut Vm, number: u32) {
    let len = 10 + number as usize * 37 % 1400;
    let there = numbered(a.n, b.n, number, len);
    a.send(&there);
    b.expect(&there);
    let back = numbered(b.n, a.n, number, len);
    b.send(&back);
    a.expect(&back);
}

/// Writes garbage into a ring and kicks.
fn attack(guest: &mut Guest, ring: usize, rng: &mut Rng) {
    let pair = &mut guest.pairs[0];
    let queue = if ring == 0 { &mut pair.rx } else { &mut pair.tx };
    for _ in 0..16 {
        queue.driver.write_descriptor((rng.next() % 256) as u16, rng.descriptor());
    }
    match rng.next() % 8 {
        0 => queue.driver.scribble(&pattern(rng.next() as u32, 257)),
        1 => queue.driver.set_avail_idx(rng.next() as u16),
        2 => queue.driver.set_used_idx(rng.next() as u16),
        3 => queue.driver.offer_raw(rng.next() as u16),
        _ => (0..rng.next() % 64).for_each(|_| queue.driver.offer_raw((rng.next() % 256) as u16)),
    }
    queue.kick.write(1).unwrap();
}

#[test]
fn garbage_in_one_guests_rings_does_not_touch_the_others() {
    let net = Net::of(3);
    let [mut a, mut b, mut evil] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    let mut rng = Rng(0x5eed);
    for round in 0..600 {
        attack(&mut evil.guest, (round % 2) as usize, &mut rng);
        // Frames on their way to the attacker, too.
        a.send(&numbered(1, 3, round, 600));
        exchange(&mut a, &mut b, round);
        if round % 3 == 0 {
            evil = Vm { n: 3, guest: Guest::new(GuestConfig::default()), frontend: evil.frontend };
            evil.reconnect(&net);
        }
    }
    assert_eq!(net.port(1).rx().dropped() + net.port(2).rx().dropped(), 0);
    assert_eq!(net.port(1).tx().dropped() + net.port(2).tx().dropped(), 0);
    // And the attacker's port still works, for a guest that behaves.
    evil.frontend = None;
    let mut good = net.boot(3, GuestConfig::default());
    exchange(&mut a, &mut good, 1);
}

#[test]
fn memory_that_goes_under_traffic_costs_only_its_guest() {
    let net = Net::of(3);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    let memory = c.guest.memory.clone();
    for round in 0..100 {
        for number in 0..8 {
            a.send(&numbered(1, 3, number, 1000));
            let _ = c.guest.send(0, &Default::default(), &numbered(3, 1, number, 1000));
        }
        let region = (round % 2) as usize;
        c.frontend().remove_mem_region(&memory, region).unwrap();
        let there = numbered(1, 2, round, 1000);
        a.send(&there);
        // Among frames to a guest that cannot be reached, which come to everyone.
        while b.recv().1 != there {}
        c.frontend().add_mem_region(&memory, region).unwrap();
        while c.guest.recv(0).is_some() {}
        while a.guest.recv(0).is_some() {}
    }
    // All of its memory is back: so is all of its traffic.
    let frame = numbered(1, 3, 77, 100);
    a.send(&frame);
    wait_until("the guest to receive", || {
        std::iter::from_fn(|| c.guest.recv(0)).any(|(_, got)| got == frame)
    });
}

/// Messages that no front-end sends, or not like this.
fn malformed() -> Vec<Vec<u8>> {
    let v = message::VERSION;
    let need = v | message::NEED_REPLY;
    vec![
        vec![0; 12],
        vec![0xff; 64],
        encode(message::GET_FEATURES, 0, 0, &[]),
        encode(message::GET_FEATURES, v, 8, &[0; 8]),
        encode(message::GET_FEATURES, v | message::REPLY, 0, &[]),
        encode(message::SET_FEATURES, v, 8, &[0xff; 8]),
        encode(message::SET_FEATURES, v, 4, &[0; 4]),
        encode(message::SET_FEATURES, v, u32::MAX, &[0; 4]),
        encode(message::SET_PROTOCOL_FEATURES, v, 8, &[0xff; 8]),
        encode(message::SET_MEM_TABLE, v, 8, &[1, 0, 0, 0, 0, 0, 0, 0]),
        encode(message::SET_MEM_TABLE, v, 8, &[0xff; 8]),
        encode(message::SET_VRING_NUM, need, 8, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        encode(message::SET_VRING_NUM, need, 8, &[0xff; 8]),
        encode(message::SET_VRING_ADDR, need, 40, &[0xf0; 40]),
        encode(message::SET_VRING_ADDR, v, 40, &[0; 40]),
        encode(message::SET_VRING_BASE, v, 8, &[0xff; 8]),
        encode(message::SET_VRING_KICK, v, 8, &[0; 8]),
        encode(message::SET_VRING_KICK, v, 8, &[0xff, 1, 0, 0, 0, 0, 0, 0]),
        encode(message::SET_VRING_KICK, v, 8, &[0, 1, 0, 0, 0, 0, 0, 0]),
        encode(message::SET_VRING_CALL, v, 8, &[0xff; 8]),
        encode(message::GET_VRING_BASE, v, 8, &[0; 8]),
        encode(message::GET_VRING_BASE, v, 8, &[9; 8]),
        encode(message::SET_VRING_ENABLE, v, 8, &[9; 8]),
        encode(message::ADD_MEM_REG, v, 40, &[0xff; 40]),
        encode(message::REM_MEM_REG, v, 40, &[0; 40]),
        encode(message::RESET_DEVICE, v, 0, &[]),
        encode(message::RESET_OWNER, v, 0, &[]),
        encode(39, v, 8, &[0xff; 8]),
        encode(20, v, 8, &[0xff; 8]),
        encode(41, v, 0, &[]),
        encode(u32::MAX, v, 0, &[]),
    ]
}

#[test]
fn malformed_messages_cost_at_most_the_connection() {
    let net = Net::of(3);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    for (i, bytes) in malformed().iter().enumerate() {
        // Fresh, negotiated, and with a running guest.
        for depth in 0..3 {
            let guest = Guest::new(GuestConfig::default());
            let mut frontend = Frontend::connect(&net.socket(3));
            match depth {
                0 => {}
                1 => frontend.negotiate(guest.config.features).unwrap(),
                _ => frontend.set_up(&guest).unwrap(),
            }
            // The switch may close the connection while we write: that is its right.
            let _ = frontend.send_raw(bytes, &[]);
            let _ = frontend.send_raw(bytes, &[0, 1, 2]);
        }
        exchange(&mut a, &mut b, i as u32);
    }
    let mut c = net.boot(3, GuestConfig::default());
    exchange(&mut a, &mut c, 0);
}

/// A switch must stop whatever its front-ends do.
fn stops(switch: Option<Switch>) {
    let (done, stopped) = mpsc::channel();
    let thread = thread::spawn(move || {
        drop(switch);
        done.send(()).unwrap();
    });
    stopped.recv_timeout(HANG).expect("the switch stops");
    thread.join().unwrap();
}

#[test]
fn a_message_that_never_ends_does_not_hold_up_a_stop() {
    for bytes in [
        encode(message::SET_FEATURES, message::VERSION, 8, &[])[..3].to_vec(),
        encode(message::SET_FEATURES, message::VERSION, 8, &[1, 2, 3]),
        encode(message::SET_VRING_ENABLE, message::VERSION, 8, &[1, 2, 3]),
        encode(message::SET_MEM_TABLE, message::VERSION, 4000, &[0; 8]),
    ] {
        let mut net = Net::of(1);
        let mut vm = net.boot(1, GuestConfig::default());
        vm.frontend().send_raw(&bytes, &[]).unwrap();
        wait_until("the message to be read", || vm.frontend().is_read());
        stops(net.switch.take());
    }
}

#[test]
fn a_frontend_that_says_nothing_does_not_hold_up_a_stop() {
    let mut net = Net::of(1);
    let _silent = Frontend::connect(&net.socket(1));
    let _waiting = Frontend::connect(&net.socket(1));
    wait_until("the port", || net.port(1).state == PortState::Connected);
    stops(net.switch.take());
}

#[test]
fn a_listener_that_never_accepts_does_not_hold_up_a_stop() {
    let client = PortConfig { mode: SocketMode::Client, ..port(1) };
    let mut net = Net::start(vec![client]);
    // Its backlog is filled by others before the switch can get in.
    let full = net.config.ports[0].socket.with_extension("full");
    let listener = UnixListener::bind(&full).unwrap();
    // SAFETY: a listening socket of ours; its backlog becomes as small as it gets.
    assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) }, 0);
    let _first = UnixStream::connect(&full).unwrap();
    std::fs::rename(&full, net.socket(1)).unwrap();
    // The switch tries every 100 ms; give it time to be stuck, if it can be.
    thread::sleep(std::time::Duration::from_millis(300));
    stops(net.switch.take());
}
