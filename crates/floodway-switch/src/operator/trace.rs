//! Frames that an operator asks about: made from a request, and traced through the pipeline.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use floodway_core::l2::{NetworkId, PortId};
use floodway_wire::build::{self, Link, Tcp};
use floodway_wire::ethernet::TYPE_VLAN;
use floodway_wire::tcp::Flags;
use floodway_wire::{MacAddr, Network, arp, parse, tcp, udp};

use super::excerpt;
use crate::api::control::ControlError;
use crate::api::trace::{Ends, MAX_PAYLOAD, Trace, TraceRequest, TracedFrame};
use crate::frame::{MAX_FRAME_LEN, PREFIX_LEN};
use crate::operator::capture::unknown;
use crate::pipeline::trace::Tracer;
use crate::state::port::Port;
use crate::state::shared::Shared;
use crate::state::uplink::Uplink;

/// Who sends if nobody behind an uplink is known: locally administered, and no host's.
const STRANGER: MacAddr = MacAddr([0x02, b'F', b'W', 0, 0, 2]);
/// Size of a SYN's segments on Ethernet, as a TCP option.
const MSS: [u8; 4] = [2, 4, 5, 0xb4];

/// Where a frame is to come from.
enum Ingress {
    Port(Arc<Port>),
    Uplink(Arc<Uplink>),
}

/// Says what would become of a frame.
pub(super) fn trace(shared: &Arc<Shared>, request: &TraceRequest) -> Result<Trace, ControlError> {
    let name = &request.interface;
    let port = shared.ports().named(name).cloned().map(Ingress::Port);
    let uplink = || shared.uplinks().iter().find(|uplink| uplink.config.name == *name).cloned();
    let ingress = port.or_else(|| uplink().map(Ingress::Uplink));
    let ingress = ingress.ok_or_else(|| unknown(shared, name))?;
    let frame = Maker { shared, ingress: &ingress, request }.frame()?;
    let tracer = Tracer::new(shared, shared.now());
    let (steps, ends) = match &ingress {
        Ingress::Port(port) => tracer.from_guest(port, &frame),
        Ingress::Uplink(uplink) => tracer.from_uplink(uplink, &frame),
    };
    Ok(Trace { interface: name.clone(), summary: summary(&frame), frame: hex(&frame), steps, ends })
}

/// Makes the frame that a request describes.
struct Maker<'a> {
    shared: &'a Arc<Shared>,
    ingress: &'a Ingress,
    request: &'a TraceRequest,
}

impl Maker<'_> {
    fn frame(&self) -> Result<Vec<u8>, ControlError> {
        let TraceRequest { what, payload, .. } = self.request;
        if *payload > MAX_PAYLOAD {
            return Err(invalid(format!("payload = {payload}: must be 0 to {MAX_PAYLOAD}")));
        }
        match what {
            TracedFrame::Frame(text) => bytes(text),
            TracedFrame::Tcp(ends) => self.tcp(*ends),
            TracedFrame::Udp(ends) => {
                let link = self.link(*ends)?;
                Ok(build::udp(&link, ends.from, ends.to, &vec![0; *payload]))
            }
            TracedFrame::Arp(target) => self.arp(*target),
        }
    }

    fn tcp(&self, ends: Ends) -> Result<Vec<u8>, ControlError> {
        let mut segment = Tcp::new(self.link(ends)?, ends.from, ends.to);
        if self.request.syn {
            (segment.flags, segment.options) = (Flags::SYN, MSS.to_vec());
        }
        Ok(segment.build(&vec![0; self.request.payload]))
    }

    fn arp(&self, target_ip: Ipv4Addr) -> Result<Vec<u8>, ControlError> {
        let sender_mac = self.source()?;
        let own = match self.ingress {
            Ingress::Port(port) => port.config.ips.iter().find_map(|ip| match ip {
                IpAddr::V4(ip) => Some(*ip),
                IpAddr::V6(_) => None,
            }),
            Ingress::Uplink(_) => None,
        };
        let packet = arp::Packet {
            operation: arp::REQUEST,
            sender_mac,
            sender_ip: own.unwrap_or(Ipv4Addr::UNSPECIFIED),
            target_mac: MacAddr::default(),
            target_ip,
        };
        let dst = self.given("dst_mac", self.request.dst_mac.as_deref())?;
        Ok(self.tagged(sender_mac, dst.unwrap_or(MacAddr::BROADCAST)).arp(&packet))
    }

    fn link(&self, Ends { from, to }: Ends) -> Result<Link, ControlError> {
        if from.is_ipv4() != to.is_ipv4() {
            return Err(invalid(format!("{from} and {to} are not of one IP version")));
        }
        let src = self.source()?;
        let dst = match self.given("dst_mac", self.request.dst_mac.as_deref())? {
            Some(mac) => mac,
            None => self.destination(to.ip())?,
        };
        Ok(self.tagged(src, dst))
    }

    fn tagged(&self, src: MacAddr, dst: MacAddr) -> Link {
        let link = Link::new(src, dst);
        match self.request.vlan {
            Some(vid) => link.tagged(TYPE_VLAN, vid & 0xfff),
            None => link,
        }
    }

    fn given(&self, key: &str, text: Option<&str>) -> Result<Option<MacAddr>, ControlError> {
        let wrong = |error| invalid(format!("{key} = {:?}: {error}", text.map(excerpt)));
        text.map(|text| text.parse().map_err(wrong)).transpose()
    }

    /// The network that the frame is in.
    fn network(&self) -> NetworkId {
        let vid = self.request.vlan.unwrap_or(0);
        let known = match self.ingress {
            Ingress::Port(port) => port.carried.network_of(vid).or(Some(port.network)),
            Ingress::Uplink(uplink) => uplink.carried.network_of(vid),
        };
        known.unwrap_or(NetworkId(vid))
    }

    fn source(&self) -> Result<MacAddr, ControlError> {
        if let Some(mac) = self.given("src_mac", self.request.src_mac.as_deref())? {
            return Ok(mac);
        }
        match self.ingress {
            Ingress::Port(port) => self.address_of(port).ok_or_else(|| {
                let name = &port.config.name;
                invalid(format!("src_mac: the address of the guest of {name} is not known; say it"))
            }),
            Ingress::Uplink(uplink) => Ok(self.behind(uplink.id).unwrap_or(STRANGER)),
        }
    }

    /// Where frames to `ip` go: to the guest that has the address, or to the gateway.
    fn destination(&self, ip: IpAddr) -> Result<MacAddr, ControlError> {
        if ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Ok(MacAddr::BROADCAST);
        }
        let (network, ports) = (self.network(), self.shared.ports());
        let owner = ports.iter().find(|port| port.carried.carries(network) && port.owns(ip));
        let guest = owner.and_then(|port| self.address_of(port));
        let gateway = || {
            let known = self.shared.uplinks();
            let uplinks = known.iter().filter(|uplink| uplink.carried.carries(network));
            uplinks.flat_map(|uplink| &uplink.config.gateway_macs).next().copied()
        };
        guest.or_else(gateway).ok_or_else(|| {
            invalid(format!(
                "dst_mac: whose address {ip} is is not known; say it (in the guest: ip neigh)"
            ))
        })
    }

    /// The address of a port's guest, configured or seen.
    fn address_of(&self, port: &Port) -> Option<MacAddr> {
        port.config.mac.or_else(|| self.behind(port.id))
    }

    /// An address that is behind a port or uplink in the frame's network.
    fn behind(&self, id: PortId) -> Option<MacAddr> {
        let (network, now) = (self.network(), self.shared.now());
        let entries = self.shared.tables().entries(now);
        let mut there = entries.iter().filter(|(of, entry)| *of == network && entry.port == id);
        there.next().map(|(_, entry)| entry.mac)
    }
}

fn invalid(problem: String) -> ControlError {
    ControlError::Invalid(problem)
}

/// The bytes that a text of hexadecimal digits says; colons, spaces and line ends do not count.
fn bytes(text: &str) -> Result<Vec<u8>, ControlError> {
    let wrong = || invalid("frame: must be bytes as pairs of hexadecimal digits".to_owned());
    let is_digit = |c: &char| !(c.is_whitespace() || *c == ':');
    let digits: Option<Vec<_>> = text.chars().filter(is_digit).map(|c| c.to_digit(16)).collect();
    let digits = digits.ok_or_else(wrong)?;
    let (pairs, []) = digits.as_chunks::<2>() else { return Err(wrong()) };
    if pairs.len() > MAX_FRAME_LEN as usize + 1 {
        return Err(invalid(format!("frame: {} bytes are more than any frame has", pairs.len())));
    }
    Ok(pairs.iter().map(|&[high, low]| (high * 16 + low) as u8).collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A frame in a line.
fn summary(frame: &[u8]) -> String {
    let Ok(meta) = parse(&frame[..frame.len().min(PREFIX_LEN)], frame.len()) else {
        return format!("{} bytes, no frame that can be read", frame.len());
    };
    let mut text = format!("{} bytes, {} > {}", frame.len(), meta.src_mac, meta.dst_mac);
    for tag in meta.vlan.as_slice() {
        let _ = write!(text, ", VLAN {}", tag & 0xfff);
    }
    let flow = &meta.flow;
    let _ = match (meta.network, flow.protocol) {
        (Network::Arp, _) => write!(text, ", ARP"),
        (Network::Other, _) => write!(text, ", type {:#06x}", meta.ethertype),
        (_, protocol @ (tcp::PROTOCOL | udp::PROTOCOL)) => {
            let name = if protocol == tcp::PROTOCOL { "TCP" } else { "UDP" };
            let end = |ip, port| std::net::SocketAddr::new(ip, port);
            let (from, to) = (end(flow.src_ip(), flow.src_port), end(flow.dst_ip(), flow.dst_port));
            write!(text, ", {name} {from} > {to}")
        }
        (_, protocol) => {
            write!(text, ", IP protocol {protocol} {} > {}", flow.src_ip(), flow.dst_ip())
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_they_are_written() {
        let frame: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes(&hex(&frame)).unwrap(), frame);
        assert_eq!(bytes("52:54 00\n0a").unwrap(), [0x52, 0x54, 0, 10]);
        for wrong in ["5", "5g", "0x52", "\u{e9}\u{e9}"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_frame_is_told_in_a_line() {
        use crate::testing::frames::{numbered, tcp};
        let text = summary(&numbered(1, 2, 7, 60));
        let expected =
            "102 bytes, 52:54:00:00:00:01 > 52:54:00:00:00:02, UDP 10.0.0.1:1001 > 10.0.0.2:7";
        assert_eq!(text, expected);
        assert!(
            summary(&tcp(1, 2, true).build(&[])).contains("TCP [fd00::1]:5001 > [fd00::2]:5002")
        );
        assert_eq!(summary(&[1; 5]), "5 bytes, no frame that can be read");
    }
}
