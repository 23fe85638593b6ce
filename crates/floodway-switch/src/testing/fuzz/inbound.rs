//! Frames of a VM and its peers through the inbound clamp, and settings of the division while they come.
//!
//! The network is behind another port, where what has waited arrives. Core's own target (`floodway_core::inbound::fuzz`) knows segments and time;
//! this one knows frames: parsing, editing, keeping them.
//!
//! - A frame that leaves is the VM's: as long, with a right checksum if it had one, and no larger window.
//! - Rates add up to the capacity after every change of the settings, and a refused one changes nothing.
//! - **Cost**: steps of core for a frame or a change of settings are bounded (in fuzz targets; core counts nothing in other builds).

use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;

use floodway_core::inbound::Policy;
use floodway_core::time::Duration;
use floodway_wire::checksum::{Verification, verify_transport};
use floodway_wire::tcp::Flags;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{Meta, ethernet, parse};

use super::cursor::Cursor;
use crate::api::control::InboundChange;
use crate::config::Config;
use crate::frame::vnet_offload::Offloads;
use crate::frame::{self, Frame, PREFIX_LEN};
use crate::operator::ControlApi;
use crate::pipeline::delivery::Delivery;
use crate::pipeline::inbound::{advance, from_network, handle_timeout, to_network};
use crate::queues::ring::Ring;
use crate::queues::virtqueue::Virtqueue;
use crate::state::shared::Shared;
use crate::testing::frames::{mac, numbered, partial, tcp};
use crate::testing::{Guest, GuestConfig};
use crate::vhost::features;

/// Ports that share the link.
const PORTS: usize = 2;
/// Most steps of a frame or a change of settings: the lines of a clamp are searched, connections are looked at, the link is divided.
const STEPS: u64 = 1 << 15;

/// Feeds frames and settings. A byte is an operation, what follows belongs to it.
///
/// # Panics
/// The module's rules do not hold.
pub fn inbound_frames(input: &[u8]) {
    let mut world = World::new();
    let mut input = Cursor(input);
    let _ = steps();
    while world.step(&mut input).is_some() {
        let steps = steps();
        assert!(steps <= STEPS, "{steps} steps");
        while let Some((_, bytes)) = world.network.recv(0) {
            assert!(parse(&bytes, bytes.len()).is_ok(), "what has waited is no frame any more");
        }
    }
}

/// Steps of core since this was last called.
fn steps() -> u64 {
    #[cfg(fuzzing)]
    return floodway_core::steps::take();
    #[cfg(not(fuzzing))]
    0
}

struct World {
    shared: Arc<Shared>,
    delivery: Delivery,
    network: Guest,
    /// Next sequence numbers of VM and peer on each connection.
    next: [(u32, u32); 4],
}

impl World {
    fn new() -> Self {
        let shared = Shared::without_threads(&config()).expect("a switch");
        let network = Guest::new(GuestConfig {
            ring_size: 32,
            tx_slots: 1,
            rx_buffer: 2048,
            two_regions: false,
            ..GuestConfig::default()
        });
        let memory = Arc::new(network.memory.map());
        let driver = &network.queue(0).driver;
        let queue = Virtqueue::new(memory, driver.size(), driver.addresses(), true);
        let ring = Ring { queue: queue.expect("a good ring"), call: None };
        shared.port_at(1).pairs[0].rx().start(ring, features::rx(network.config.features));
        shared.port_at(1).update_rx_running();
        let delivery = Delivery::new(Arc::clone(&shared));
        Self {
            shared,
            delivery,
            network,
            next: [(100, 1), (200, u32::MAX - 5000), (300, 1), (0, 0)],
        }
    }

    /// Carries out the next operation; `None` at the end of the input.
    fn step(&mut self, input: &mut Cursor<'_>) -> Option<()> {
        match input.byte()? % 8 {
            0 | 1 => self.segment(input, false)?,
            2 | 3 => self.segment(input, true)?,
            4 => self.raw(input)?,
            5 => self.settings(input)?,
            6 => {
                let us = u64::from(input.u16()?) * 4;
                advance(&self.shared.port_at(0), Duration::from_micros(us));
                handle_timeout(&Arc::clone(&self.shared.port_at(0)), &mut self.delivery);
            }
            _ => match input.byte()? % 4 {
                0 => self.shared.port_at(0).inbound.reset(),
                1 => self.peer_sends(VnetHdr::default(), &numbered(2, 1, 7, 500)),
                _ => self.shared.tick_inbound(self.shared.inbound.next_tick()),
            },
        }
        self.delivery.flush();
        Some(())
    }

    /// A TCP segment, mostly as it should come next.
    fn segment(&mut self, input: &mut Cursor<'_>, of_peer: bool) -> Option<()> {
        let (what, flags, len) = (input.byte()?, input.byte()?, usize::from(input.u16()? % 3000));
        let connection = usize::from(what & 3);
        let (src, dst) = if of_peer { (2, 1) } else { (1, 2) };
        let mut tcp = tcp(src, dst, what & 4 != 0);
        let port = if of_peer { &mut tcp.src_port } else { &mut tcp.dst_port };
        *port = 6000 + connection as u16;
        let next = &mut self.next[connection];
        (tcp.sequence, tcp.acknowledgment) = if of_peer { (next.1, next.0) } else { *next };
        (tcp.flags, tcp.window) = (Flags(flags), 10_000);
        if tcp.flags.contains(Flags::SYN) {
            tcp.options = vec![2, 4, 5, 0xb4, 1, 3, 3, 7];
        } else if what & 8 != 0 {
            tcp.options = input.bytes::<8>()?.into();
        }
        if what & 16 != 0 {
            tcp.link = tcp.link.tagged(ethernet::TYPE_VLAN, 0x2064);
        }
        if what & 32 != 0 {
            tcp.acknowledgment = tcp.acknowledgment.wrapping_add(u32::from(input.u16()?));
        }
        let end = tcp
            .sequence
            .wrapping_add(len as u32 + u32::from(flags & 2 != 0) + u32::from(flags & 1));
        *(if of_peer { &mut next.1 } else { &mut next.0 }) = end;
        let payload = vec![7; len];
        let (vnet, bytes) = if what & 64 != 0 {
            let bytes = tcp.build_partial(&payload);
            (partial(&bytes, if len > 1448 { 1448 } else { 0 }), bytes)
        } else {
            (VnetHdr::default(), tcp.build(&payload))
        };
        match of_peer {
            true => self.peer_sends(vnet, &bytes),
            false => self.vm_sends(vnet, &bytes),
        }
        Some(())
    }

    /// Any bytes, behind any header that a port lets pass.
    fn raw(&mut self, input: &mut Cursor<'_>) -> Option<()> {
        let (how, len, hdr) = (input.byte()?, usize::from(input.byte()?), input.bytes::<12>()?);
        let mut bytes: Vec<_> = (0..len).map_while(|_| input.byte()).collect();
        if let Some(kind) = bytes.get_mut(12..14).filter(|_| how & 2 != 0) {
            kind.copy_from_slice(if how & 4 != 0 { &[8, 0] } else { &[0x86, 0xdd] });
        }
        bytes = bytes.repeat(1 + usize::from(how >> 4));
        let prefix = &bytes[..bytes.len().min(PREFIX_LEN)];
        let vnet = Offloads::ALL.check(VnetHdr::from_bytes(&hdr), prefix, bytes.len() as u32);
        let Ok(vnet) = vnet else { return Some(()) };
        match how & 1 {
            0 => self.peer_sends(vnet, &bytes),
            _ => self.vm_sends(vnet, &bytes),
        }
        Some(())
    }

    fn peer_sends(&mut self, vnet: VnetHdr, bytes: &[u8]) {
        let port = Arc::clone(&self.shared.port_at(0));
        frame::with_slice(vnet, bytes, |frame| {
            // Dropped if the settings say so.
            let _ = from_network(&port, &mut self.delivery, frame);
        });
    }

    fn vm_sends(&mut self, vnet: VnetHdr, bytes: &[u8]) {
        let port = Arc::clone(&self.shared.port_at(0));
        frame::with_slice(vnet, bytes, |frame| {
            to_network(&port, &mut self.delivery, frame, |_, left| check_left(frame, left));
        });
    }

    fn settings(&mut self, input: &mut Cursor<'_>) -> Option<()> {
        let (which, number) = (input.byte()?, input.u16()?);
        let number = u64::from(number) << (which >> 4);
        let some = |bit: u8| (which & 7 == bit).then_some(number);
        let policy = Policy::ALL.get(number as usize % 4).map_or("none", |policy| policy.name());
        let change = InboundChange {
            capacity_mbit: some(0),
            minimum_kbit: some(1),
            policy: some(2).map(|_| policy.to_owned()),
            weight_cap: some(3).map(|n| n as u32),
            water_fill: some(4).map(|n| n % 2 == 0),
            idle_ms: some(5),
            burst_bytes: some(6).map(|n| n as u32),
            police_udp: some(7).map(|n| n % 2 == 0),
        };
        let before = self.rates();
        if let Err(error) = ControlApi::inbound(&self.shared, &change) {
            assert!(!error.to_string().is_empty());
            assert_eq!(self.rates(), before, "refused: {change:?}");
        }
        let (capacity, rates) = self.rates();
        assert_eq!(rates.iter().sum::<u64>(), capacity, "{change:?}");
        Some(())
    }

    /// Capacity and rates of the ports, in bits per second.
    fn rates(&self) -> (u64, Vec<u64>) {
        let status =
            ControlApi::inbound(&self.shared, &InboundChange::default()).expect("a status");
        let rates: Vec<_> = status.ports.iter().map(|port| port.rate_bps).collect();
        assert_eq!(rates.len(), PORTS);
        (status.capacity_bps, rates)
    }
}

/// What leaves of a frame is that frame, with no larger window.
fn check_left(frame: &Frame<'_>, left: &Frame<'_>) {
    assert_eq!((frame.len, frame.vnet), (left.len, left.vnet));
    let bytes = |frame: &Frame<'_>| {
        let mut bytes = Vec::new();
        frame.append_to(&mut bytes);
        bytes
    };
    let (before, after) = (bytes(frame), bytes(left));
    let Ok(meta) = parse(&before, before.len()) else { return assert_eq!(before, after) };
    let same = parse(&after, after.len()).expect("an edited frame parses");
    let window = |meta: &Meta| meta.tcp().map(|tcp| tcp.window);
    assert!(window(&same) <= window(&meta), "a larger window than the VM's");
    let good = |bytes: &[u8], meta: &Meta| verify_transport(bytes, meta) == Ok(Verification::Good);
    let is_whole = !frame.vnet.needs_csum() && good(&before, &meta);
    assert!(!is_whole || good(&after, &same), "a wrong checksum");
}

fn config() -> Config {
    thread_local! {
        static CONFIG: OnceCell<Config> = const { OnceCell::new() };
    }
    let port =
        |n| format!("[[port]]\nname = \"vm{n}\"\nsocket = \"/vm{n}\"\nmac = \"{}\"\n", mac(n));
    let inbound = "[inbound]\ncapacity_mbit = 8\nminimum_kbit = 0\nburst_bytes = 4096\n";
    let text = format!("{}{}{inbound}", port(1), port(2));
    CONFIG.with(|config| {
        config.get_or_init(|| Config::parse(&text, Path::new("fuzz")).expect("good")).clone()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::fuzz::replay;

    #[test]
    fn seeds_of_the_fuzz_target_hold() {
        replay("inbound_frames", inbound_frames);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_frames_and_settings_keep_the_rules(input in prop::collection::vec(any::<u8>(), 0..600)) {
            inbound_frames(&input);
        }
    }
}
