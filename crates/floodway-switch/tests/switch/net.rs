//! A switch with ports, and VMs on them.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use floodway_switch::api::status::{PortStatus, Status};
use floodway_switch::config::{Config, NetworkConfig, PortConfig, WorkerConfig};
use floodway_switch::switch::Switch;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait};
use floodway_wire::vnet::VnetHdr;
use tempfile::TempDir;

/// A port as the tests want it unless they say otherwise: address configured, no storm limit.
pub fn port(n: u8) -> PortConfig {
    PortConfig { mac: Some(mac(n)), storm_pps: 0, ..PortConfig::new(format!("vm{n}"), "") }
}

/// A switch in a directory of its own.
pub struct Net {
    pub config: Config,
    pub switch: Option<Switch>,
    _dir: TempDir,
}

impl Net {
    /// A running switch with `ports`; the sockets' paths are filled in.
    pub fn start(ports: Vec<PortConfig>) -> Self {
        Self::start_with(ports, Vec::new())
    }

    /// As [`start`](Self::start), with `networks`.
    pub fn start_with(ports: Vec<PortConfig>, networks: Vec<NetworkConfig>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let workers = 1 + ports.iter().map(|p| p.worker).max().unwrap_or(0);
        let worker = WorkerConfig { core: None, poll: Duration::from_micros(50) };
        let mut config = Config {
            control: dir.path().join("control.sock"),
            workers: vec![worker; workers],
            networks,
            ports,
            ..Config::default()
        };
        for port in &mut config.ports {
            port.socket = dir.path().join(format!("{}.sock", port.name));
        }
        let switch = Some(Switch::start(&config).unwrap());
        Self { config, switch, _dir: dir }
    }

    /// A running switch with ports for VMs 1 to `n`.
    pub fn of(n: u8) -> Self {
        Self::start((1..=n).map(port).collect())
    }

    /// Ends the switch and starts another one.
    pub fn restart(&mut self) {
        self.switch = None;
        self.switch = Some(Switch::start(&self.config).unwrap());
    }

    pub fn status(&self) -> Status {
        self.switch.as_ref().expect("the switch runs").status_source().status()
    }

    /// The status of VM `n`'s port; ports are in the order of their VMs.
    pub fn port(&self, n: u8) -> PortStatus {
        self.status().ports[usize::from(n) - 1].clone()
    }

    pub fn socket(&self, n: u8) -> PathBuf {
        self.config.ports[usize::from(n) - 1].socket.clone()
    }

    /// A socket that a port in client mode connects to.
    pub fn listen(&self, n: u8) -> UnixListener {
        let _ = std::fs::remove_file(self.socket(n));
        UnixListener::bind(self.socket(n)).unwrap()
    }

    /// Frames to VM `n` that were dropped for `reason`.
    pub fn rx_drops(&self, n: u8, reason: &str) -> u64 {
        self.port(n).rx().drops[reason]
    }

    /// Frames from VM `n` that were dropped for `reason`.
    pub fn tx_drops(&self, n: u8, reason: &str) -> u64 {
        self.port(n).tx().drops[reason]
    }

    /// A VM on port `n`.
    pub fn boot(&self, n: u8, config: GuestConfig) -> Vm {
        let guest = Guest::new(config);
        let frontend = Some(Frontend::attach(&self.socket(n), &guest));
        Vm { n, guest, frontend }
    }
}

/// A guest and its connection to the switch.
pub struct Vm {
    pub n: u8,
    pub guest: Guest,
    pub frontend: Option<Frontend>,
}

impl Vm {
    pub fn frontend(&mut self) -> &mut Frontend {
        self.frontend.as_mut().expect("a connection")
    }

    /// Connects the same guest anew.
    pub fn reconnect(&mut self, net: &Net) {
        self.frontend = None;
        self.frontend = Some(Frontend::attach(&net.socket(self.n), &self.guest));
    }

    /// Sends an ordinary frame on the first queue pair.
    pub fn send(&mut self, frame: &[u8]) {
        self.send_with(&VnetHdr::default(), frame);
    }

    /// Sends a frame as soon as there is room.
    pub fn send_with(&mut self, vnet: &VnetHdr, frame: &[u8]) {
        self.send_on(0, vnet, frame);
    }

    pub fn send_on(&mut self, pair: usize, vnet: &VnetHdr, frame: &[u8]) {
        wait("room to transmit", || self.guest.send(pair, vnet, frame).then_some(()));
    }

    /// The next frame on the first queue pair.
    pub fn recv(&mut self) -> (VnetHdr, Vec<u8>) {
        self.recv_on(0)
    }

    pub fn recv_on(&mut self, pair: usize) -> (VnetHdr, Vec<u8>) {
        let what = format!("a frame for VM {}", self.n);
        wait(&what, || self.guest.recv(pair))
    }

    /// The next frame must be `frame`, complete.
    pub fn expect(&mut self, frame: &[u8]) {
        let (vnet, got) = self.recv();
        assert!(got == frame, "VM {} got {} other bytes for {}", self.n, got.len(), frame.len());
        assert!(!vnet.needs_csum() && !vnet.is_gso(), "{vnet:?}");
    }

    /// All frames are sent and their descriptors back.
    pub fn wait_sent(&mut self) {
        wait("transmission", || (self.guest.transmitting(0) == 0).then_some(()));
    }
}
