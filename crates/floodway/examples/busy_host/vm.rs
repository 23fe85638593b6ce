//! A VM: the kernel's TCP behind a tap, and virtqueues.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;

use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::testing::frames::{mac, numbered};
use floodway_switch::testing::{Frontend, Guest, GuestConfig, as_driver_sends};
use floodway_switch::uplink::tap::{self, TapReceiver, TapSender};
use floodway_switch::uplink::{Receiver, Sender};
use floodway_switch::vhost::features;
use floodway_wire::vnet::VnetHdr;

use crate::{apps, enter_namespace, ip};

const DEVICE: &str = "eth0";
/// Polls, of about 5 ms each, between two frames from an address that is not the VM's.
const SPOOFED_EVERY: u32 = 40;
/// The VM that sends such frames.
const SPOOFER: u8 = 6;

/// Runs the VM with this index at the port with this socket, until the process is ended.
pub fn run(socket: &Path, index: u8, connections: u32) {
    enter_namespace();
    let mut halves = tap::open(DEVICE).expect("open the tap");
    ip("link set dev lo up");
    ip(&format!("link set dev {DEVICE} address {}", mac(index + 1)));
    ip(&format!("link set dev {DEVICE} addrgenmode none"));
    // What the kernel sent by another address before.
    while halves.0.recv().expect("receive").is_some() {}
    ip(&format!("addr add {}/24 dev {DEVICE}", apps::address(index)));
    let guest = Guest::new(GuestConfig::default());
    let frontend = Frontend::attach(socket, &guest);
    let relay = move || relay(guest, halves, index);
    let vcpu = thread::Builder::new().name("CPU 0/KVM".to_owned()).spawn(relay);
    apps::run(index, connections);
    vcpu.expect("a thread").join().expect("the VM");
    drop(frontend);
}

/// Moves frames between the kernel's TCP and the virtqueues.
fn relay(mut guest: Guest, (mut receiver, mut sender): (TapReceiver, TapSender), index: u8) {
    let offloads = features::tx(guest.config.features).offloads;
    let mut waiting: VecDeque<(VnetHdr, Vec<u8>)> = VecDeque::new();
    for poll in 0_u32.. {
        while waiting.len() < 64
            && let Some(received) = receiver.recv().expect("receive")
        {
            as_driver_sends(offloads, received.vnet, received.frame, |vnet, frame| {
                waiting.push_back((vnet, frame.to_vec()));
            });
        }
        if index == SPOOFER && poll.is_multiple_of(SPOOFED_EVERY) {
            waiting.push_back((VnetHdr::default(), numbered(99, 1, poll, 200)));
        }
        while waiting.front().is_some_and(|(vnet, frame)| guest.send(0, vnet, frame)) {
            waiting.pop_front();
        }
        while let Some((vnet, frame)) = guest.recv(0) {
            let vnet = VnetHdr { num_buffers: 0, ..vnet };
            // Notices to a guest's module are for nobody here, and a tap that is full loses frames.
            let _ = sender.send(&vnet, &[GuestIoVec::from_slice(&frame)]);
        }
        let _ = guest.pairs[0].rx.take_interrupts();
        let fds = [receiver.fd(), guest.pairs[0].rx.call.as_raw_fd()];
        let mut list = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: the list is valid during the call. A short time-out, for what waits for room in a ring.
        unsafe { libc::poll(list.as_mut_ptr(), 2, 5) };
    }
}
