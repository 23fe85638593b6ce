//! smoltcp as a [`Stack`].

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use floodway_core::time::Instant;
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use super::stack::{Addresses, PORT, Stack, Status};

/// What a user of smoltcp chooses.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub receive_buffer: usize,
    pub send_buffer: usize,
    /// The Timestamps option is used.
    pub timestamps: bool,
    pub nagle: bool,
    pub congestion: CongestionControl,
    /// Of IP packets.
    pub mtu: usize,
    /// The connection is over IPv6.
    pub v6: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            receive_buffer: 64 << 10,
            send_buffer: 64 << 10,
            timestamps: false,
            nagle: true,
            congestion: CongestionControl::None,
            mtu: 1500,
            v6: false,
        }
    }
}

thread_local! {
    /// The time of the stack that runs now, for its timestamps: smoltcp's generator has no argument.
    static CLOCK_MS: Cell<u32> = const { Cell::new(0) };
}

/// Frames that have arrived, and frames that were sent.
struct Wire {
    mtu: usize,
    input: VecDeque<Vec<u8>>,
    output: Vec<Vec<u8>>,
}

struct Received(Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Transmit<'a>(&'a mut Vec<Vec<u8>>);

impl phy::TxToken for Transmit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = Transmit<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received, Transmit<'_>)> {
        let frame = self.input.pop_front()?;
        Some((Received(frame), Transmit(&mut self.output)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Transmit<'_>> {
        Some(Transmit(&mut self.output))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + 14;
        capabilities
    }
}

/// An interface with one socket.
pub struct Smoltcp {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    addresses: Addresses,
    v6: bool,
    now: Instant,
    source_port: u16,
    established: bool,
    closing: bool,
    /// Received bytes that were taken out of the socket: it forgets them when TIME-WAIT ends.
    unread: VecDeque<u8>,
}

fn time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000) as i64)
}

fn ip(n: u8, v6: bool) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
    }
}

fn new_socket(options: Options) -> Socket<'static> {
    let buffer = |len| SocketBuffer::new(vec![0; len]);
    let mut socket = Socket::new(buffer(options.receive_buffer), buffer(options.send_buffer));
    socket.set_congestion_control(options.congestion);
    socket.set_nagle_enabled(options.nagle);
    if options.timestamps {
        socket.set_tsval_generator(Some(|| CLOCK_MS.get()));
    }
    socket
}

impl Smoltcp {
    pub fn new(addresses: Addresses, listens: bool, options: Options, seed: u64) -> Self {
        let mac = EthernetAddress([0x52, 0x54, 0, 0, 0, addresses.own]);
        let mut config = Config::new(HardwareAddress::Ethernet(mac));
        config.random_seed = seed;
        let mut wire = Wire { mtu: options.mtu, input: VecDeque::new(), output: Vec::new() };
        let mut interface = Interface::new(config, &mut wire, time(Instant::ZERO));
        interface.update_ip_addrs(|list| {
            let prefix_len = if options.v6 { 64 } else { 24 };
            let address = IpAddress::from(ip(addresses.own, options.v6));
            list.push(IpCidr::new(address, prefix_len)).expect("room");
        });
        let mut socket = new_socket(options);
        if listens {
            socket.listen(PORT).expect("listen");
        }
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Self {
            wire,
            interface,
            sockets,
            socket,
            addresses,
            v6: options.v6,
            now: Instant::ZERO,
            source_port: 49_152 + (seed % 16_000) as u16,
            established: false,
            closing: false,
            unread: VecDeque::new(),
        }
    }

    fn socket(&self) -> &Socket<'static> {
        self.sockets.get(self.socket)
    }

    fn socket_mut(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn note_state(&mut self) {
        self.established |= self.socket().may_send();
        if self.socket().state() == State::TimeWait {
            let len = self.socket().recv_queue();
            let bytes = self.read_socket(len);
            self.unread.extend(bytes);
        }
    }

    fn read_socket(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let len = self.socket_mut().recv_slice(&mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes
    }
}

impl Stack for Smoltcp {
    fn connect(&mut self) {
        let remote = (IpAddress::from(ip(self.addresses.peer, self.v6)), PORT);
        let local = self.source_port;
        let socket = self.sockets.get_mut::<Socket<'_>>(self.socket);
        socket.connect(self.interface.context(), remote, local).expect("connect");
    }

    fn input(&mut self, now: Instant, frame: &[u8]) {
        self.now = now;
        self.wire.input.push_back(frame.to_vec());
        CLOCK_MS.set((now.as_nanos() / 1_000_000) as u32);
        let (wire, sockets) = (&mut self.wire, &mut self.sockets);
        while self.interface.poll_ingress_single(time(now), wire, sockets)
            != PollIngressSingleResult::None
        {}
        self.note_state();
    }

    fn poll(&mut self, now: Instant) {
        self.now = now;
        CLOCK_MS.set((now.as_nanos() / 1_000_000) as u32);
        let (wire, sockets) = (&mut self.wire, &mut self.sockets);
        self.interface.poll(time(now), wire, sockets);
        self.note_state();
    }

    fn take_output(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wire.output)
    }

    fn next_timeout(&mut self) -> Instant {
        let at = self.interface.poll_at(time(self.now), &self.sockets);
        at.map_or(Instant::NEVER, |at| Instant::from_micros(at.total_micros() as u64))
    }

    fn send(&mut self, data: &[u8]) -> usize {
        self.socket_mut().send_slice(data).unwrap_or(0)
    }

    fn is_all_acknowledged(&mut self) -> bool {
        self.socket().send_queue() == 0
    }

    fn recv(&mut self, most: usize) -> Vec<u8> {
        if self.unread.is_empty() {
            return self.read_socket(most);
        }
        self.unread.drain(..most.min(self.unread.len())).collect()
    }

    fn close(&mut self) {
        self.closing = true;
        self.socket_mut().close();
    }

    fn abort(&mut self) {
        self.socket_mut().abort();
    }

    fn status(&self) -> Status {
        let socket = self.socket();
        let state = socket.state();
        let peer_closed = matches!(
            state,
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait | State::Closed
        );
        let closed = self.closing && matches!(state, State::TimeWait | State::Closed);
        Status {
            established: self.established,
            ended: self.established
                && peer_closed
                && socket.recv_queue() == 0
                && self.unread.is_empty(),
            closed,
            reset: self.established && !self.closing && state == State::Closed,
        }
    }

    fn detail(&self) -> String {
        let socket = self.socket();
        let queues = (socket.send_queue(), socket.recv_queue());
        format!("{:?}, {:?} queued to send and read", socket.state(), queues)
    }
}
