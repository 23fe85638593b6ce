//! A host that says what it likes.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use super::link::{Link, LinkError};
use super::protocol::{Answer, Request};
use super::tls::{Keys, Trust};
use crate::vm::Vm;

/// Far beyond what anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Where other hosts connect to it.
pub(crate) struct Peer {
    listener: TcpListener,
    keys: Keys,
}

/// A connection of it.
pub(crate) struct PeerLink(Link);

impl Peer {
    pub(crate) fn listen(trust: &Trust) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { listener, keys: Keys::load(trust).unwrap() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// The next connection to it.
    pub(crate) fn accept(&self) -> PeerLink {
        let (socket, _) = self.listener.accept().unwrap();
        let socket = Link::of(socket, Instant::now() + PATIENCE).unwrap();
        let mut link = self.keys.accept(socket).unwrap();
        link.greet().unwrap();
        PeerLink(link)
    }

    /// A connection of its own.
    pub(crate) fn connect(trust: &Trust, address: SocketAddr) -> PeerLink {
        let socket = Link::connect(&address, Instant::now() + PATIENCE).unwrap();
        let mut link = Keys::load(trust).unwrap().connect("127.0.0.1", socket).unwrap();
        link.greet().unwrap();
        PeerLink(link)
    }
}

impl PeerLink {
    pub(crate) fn of(link: Link) -> Self {
        Self(link)
    }

    pub(crate) fn hear(&mut self) -> Answer {
        self.0.recv(PATIENCE).unwrap()
    }

    pub(crate) fn say(&mut self, request: &Request) {
        self.0.send(request, PATIENCE).unwrap();
    }

    /// Returns `false` if the other host has hung up.
    pub(crate) fn try_say(&mut self, request: &Request) -> bool {
        self.0.send(request, PATIENCE).is_ok()
    }

    /// Returns `false` if the other host has hung up.
    pub(crate) fn is_answered(&mut self) -> bool {
        self.0.recv::<Answer>(PATIENCE).is_ok()
    }

    /// Waits to be asked for a VM.
    pub(crate) fn expect(&mut self, format: u32) {
        let asked = self.0.recv(PATIENCE).unwrap();
        assert!(matches!(asked, Request::Expect { flows, .. } if flows == format), "{asked:?}");
    }

    /// Says that a port waits.
    pub(crate) fn agree(&mut self) {
        self.answer(&Answer::Expected);
    }

    pub(crate) fn answer(&mut self, answer: &Answer) {
        self.0.send(answer, PATIENCE).unwrap();
    }

    /// Waits for `Cancel`. Only signs of life may come before it.
    pub(crate) fn hear_cancel(&mut self) {
        loop {
            match self.0.recv(PATIENCE).unwrap() {
                Request::StillThere => {}
                other => break assert_eq!(other, Request::Cancel),
            }
        }
    }

    pub(crate) fn ask(&mut self, vm: &Vm, flows: u32) {
        let asks = Request::Expect { vm: vm.clone(), flows };
        self.0.send(&asks, PATIENCE).unwrap();
    }

    /// Says that so many bytes of state follow, and sends these.
    pub(crate) fn send_state(&mut self, bytes: u64, state: &[u8]) {
        self.0.send(&Request::State { online: 1, bytes }, PATIENCE).unwrap();
        self.write(state);
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.write_raw(bytes).unwrap();
    }

    /// Returns `true` if it has been told that no port waits.
    pub(crate) fn is_refused(&mut self) -> bool {
        matches!(self.0.recv(PATIENCE), Ok(Answer::Refused { .. }))
    }

    /// Returns `true` if the other host hangs up, when this one has said that nothing follows if `ends`.
    pub(crate) fn is_closed_after(&mut self, ends: bool) -> bool {
        if ends {
            self.0.shut_down();
        }
        matches!(self.0.recv::<Answer>(PATIENCE), Err(LinkError::Closed | LinkError::System(_)))
    }
}
