//! Linux's TCP in a network namespace of its own, behind a TAP. In real time only.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;

use floodway_core::time::{Duration, Instant};
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::frame::vnet_offload::{self, Offloads};
use floodway_switch::frame::with_slice;
use floodway_switch::testing::frames::mac;
use floodway_switch::uplink::{Receiver, Sender, tap};
use floodway_wire::vnet::VnetHdr;

use super::netns;
use super::stack::{Addresses, PORT, Stack, Status};

/// How often the sockets are looked at.
const POLL: Duration = Duration::from_micros(500);

/// A listening Linux.
pub struct Linux {
    receiver: tap::TapReceiver,
    sender: tap::TapSender,
    listener: TcpListener,
    stream: Option<TcpStream>,
    now: Instant,
    status: Status,
}

impl Linux {
    /// Makes the namespace, and listens in it. Its MTU can be less than 1500.
    pub fn new(addresses: Addresses, mtu: usize) -> Self {
        let (halves, listener) = thread::scope(|scope| {
            let made = netns::spawn(scope, || {
                let halves = tap::open("peer0").expect("open the peer's tap");
                netns::ip(&format!("link set dev peer0 address {}", mac(addresses.own)));
                netns::ip(&format!("link set dev peer0 mtu {mtu}"));
                netns::ip(&format!("addr add 10.0.0.{}/24 dev peer0", addresses.own));
                let at = format!("10.0.0.{}:{PORT}", addresses.own);
                (halves, TcpListener::bind(at).expect("listen"))
            });
            made.join().expect("a namespace")
        });
        listener.set_nonblocking(true).expect("non-blocking");
        let (receiver, sender) = halves;
        let (now, status) = (Instant::ZERO, Status::default());
        Self { receiver, sender, listener, stream: None, now, status }
    }

    fn accept(&mut self) {
        if self.stream.is_none()
            && let Ok((stream, _)) = self.listener.accept()
        {
            stream.set_nonblocking(true).expect("non-blocking");
            self.stream = Some(stream);
            self.status.established = true;
        }
    }

    fn note(&mut self, error: &std::io::Error) {
        self.status.reset |= error.kind() != ErrorKind::WouldBlock;
    }
}

impl Stack for Linux {
    fn connect(&mut self) {
        panic!("this Linux only listens");
    }

    fn input(&mut self, now: Instant, frame: &[u8]) {
        self.now = now;
        // A queue that is full loses frames, as networks do.
        let _ = self.sender.send(&VnetHdr::default(), &[GuestIoVec::from_slice(frame)]);
    }

    fn poll(&mut self, now: Instant) {
        self.now = now;
        self.accept();
    }

    fn take_output(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(received) = self.receiver.recv().expect("receive") {
            complete(received.vnet, received.frame, &mut frames);
        }
        frames
    }

    fn next_timeout(&mut self) -> Instant {
        self.now + POLL
    }

    fn send(&mut self, data: &[u8]) -> usize {
        let Some(stream) = &mut self.stream else { return 0 };
        stream.write(data).inspect_err(|error| self.note(error)).unwrap_or(0)
    }

    fn is_all_acknowledged(&mut self) -> bool {
        let Some(stream) = &self.stream else { return false };
        let mut unacknowledged: libc::c_int = 0;
        // SAFETY: TIOCOUTQ (SIOCOUTQ) writes an int behind the pointer during the call.
        let rc =
            unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut unacknowledged) };
        rc == 0 && unacknowledged == 0
    }

    fn recv(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let Some(stream) = &mut self.stream else { return Vec::new() };
        let len = match stream.read(&mut bytes) {
            Ok(len) => len,
            Err(error) => {
                self.note(&error);
                return Vec::new();
            }
        };
        self.status.ended |= len == 0;
        bytes.truncate(len);
        bytes
    }

    fn close(&mut self) {
        if let Some(stream) = &self.stream {
            // An error means that the other side has reset the connection; reading tells.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    fn abort(&mut self) {
        panic!("this Linux does not reset");
    }

    fn status(&self) -> Status {
        self.status
    }
}

/// Appends `frame` as a receiver without offloads gets it: segmented, and with its checksum.
pub fn complete(vnet: VnetHdr, frame: &[u8], to: &mut Vec<Vec<u8>>) {
    if Offloads::default().allow(&vnet) {
        return to.push(frame.to_vec());
    }
    with_slice(vnet, frame, |frame| {
        vnet_offload::finish(frame, Offloads::default(), |_, bytes| to.push(bytes.to_vec()))
            .expect("a good frame");
    });
}
