//! Frames on their way through the model: bytes from a pool, with what the model asks of them.

use std::cell::RefCell;
use std::rc::Rc;

use floodway_wire::ethernet::MacAddr;
use floodway_wire::parse::{Meta, Network, parse};
use floodway_wire::{ethernet, ipv4, ipv6};

use super::model::Packet;

/// ECN codepoint "congestion experienced" (RFC 3168).
const CE: u8 = 3;
/// Buffers that are kept for later; more are given back to the system.
const MAX_FREE: usize = 1 << 16;

/// Buffers that are not in use. One pool serves one thread.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    free: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Pool {
    /// A frame of `max_len` bytes at most, which `fill` writes and says the length of. `None` if
    /// `fill` refuses, or if the bytes have no Ethernet header.
    pub fn frame(
        &self,
        max_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<Frame> {
        let mut bytes = self.free.borrow_mut().pop().unwrap_or_default();
        // Zeroes only what the buffer never held before.
        if bytes.len() < max_len {
            bytes.resize(max_len, 0);
        }
        let mut frame = Frame { bytes, len: 0, info: Info::default(), pool: self.clone() };
        let len = fill(frame.bytes.get_mut(..max_len)?)?;
        frame.len = len.min(max_len);
        frame.info = Info::of(frame.bytes())?;
        Some(frame)
    }

    /// A frame of the same bytes as `source`.
    #[must_use]
    pub fn copy(&self, source: &[u8]) -> Option<Frame> {
        self.frame(source.len(), |bytes| {
            bytes.copy_from_slice(source);
            Some(source.len())
        })
    }

    fn give_back(&self, bytes: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        if free.len() < MAX_FREE {
            free.push(bytes);
        }
    }
}

/// What the model asks of a frame, decoded once.
#[derive(Clone, Copy, Debug)]
struct Info {
    destination: MacAddr,
    source: MacAddr,
    /// DSCP and ECN of an IP packet, and where its header starts.
    traffic_class: Option<u8>,
    network: Network,
    network_offset: u16,
}

impl Default for Info {
    fn default() -> Self {
        Self {
            destination: MacAddr::BROADCAST,
            source: MacAddr::BROADCAST,
            traffic_class: None,
            network: Network::Other,
            network_offset: 0,
        }
    }
}

impl Info {
    fn of(bytes: &[u8]) -> Option<Self> {
        let link = ethernet::Header::parse(bytes).ok()?;
        let info = Self { destination: link.dst, source: link.src, ..Self::default() };
        // Damaged packets travel, too: a network does not look inside.
        Some(parse(bytes, bytes.len()).map_or(info, |meta| info.with(&meta)))
    }

    fn with(self, meta: &Meta) -> Self {
        let is_ip = matches!(meta.network, Network::Ipv4 | Network::Ipv6);
        Self {
            traffic_class: is_ip.then_some(meta.traffic_class),
            network: meta.network,
            network_offset: meta.network_offset,
            ..self
        }
    }
}

/// A frame as a wire carries it: one segment, all checksums complete.
#[derive(Debug)]
pub struct Frame {
    /// At least `len` bytes; what is behind is left over from other frames.
    bytes: Vec<u8>,
    len: usize,
    info: Info,
    pool: Pool,
}

impl Frame {
    /// From the Ethernet header to the end of the payload.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn network_header(&mut self) -> &mut [u8] {
        let start = usize::from(self.info.network_offset);
        self.bytes.get_mut(start..self.len).unwrap_or_default()
    }

    fn set_ecn(&mut self, ecn: u8) {
        match self.info.network {
            Network::Ipv4 => {
                if let Ok(mut header) = ipv4::HeaderMut::parse(self.network_header()) {
                    header.set_ecn(ecn);
                }
            }
            Network::Ipv6 => {
                if let Ok(mut header) = ipv6::HeaderMut::parse(self.network_header()) {
                    header.set_ecn(ecn);
                }
            }
            Network::Arp | Network::Other => {}
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.bytes));
    }
}

impl Packet for Frame {
    fn frame_len(&self) -> u32 {
        self.len as u32
    }

    fn dscp(&self) -> Option<u8> {
        self.info.traffic_class.map(|class| class >> 2)
    }

    fn destination(&self) -> MacAddr {
        self.info.destination
    }

    fn source(&self) -> MacAddr {
        self.info.source
    }

    fn mark_congestion(&mut self) -> bool {
        let Some(class) = self.info.traffic_class.filter(|class| class & CE != 0) else {
            return false;
        };
        self.info.traffic_class = Some(class | CE);
        self.set_ecn(CE);
        true
    }

    fn flip_bit(&mut self, choice: u64) {
        let Some(body) = self.bytes.get_mut(ethernet::HEADER_LEN..self.len) else { return };
        let bits = body.len() as u64 * 8;
        if let Some(at) = choice.checked_rem(bits)
            && let Some(byte) = body.get_mut((at / 8) as usize)
        {
            *byte ^= 1 << (at % 8);
        }
    }

    fn duplicate(&self) -> Self {
        let pool = self.pool.clone();
        let mut bytes = pool.free.borrow_mut().pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(self.bytes());
        Self { bytes, len: self.len, info: self.info, pool }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floodway_wire::build::{Ip, Link, Tcp};
    use floodway_wire::checksum::{Verification, verify_transport};

    fn tcp(payload: &[u8], traffic_class: u8) -> Vec<u8> {
        let link = Link::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let addresses = ["10.0.0.1:1", "10.0.0.2:2"].map(|address| address.parse().unwrap());
        let mut builder = Tcp::new(link, addresses[0], addresses[1]);
        builder.ip = Ip { traffic_class, ..builder.ip };
        builder.build(payload)
    }

    #[test]
    fn the_model_sees_addresses_and_classes() {
        let frame = Pool::default().copy(&tcp(&[1; 100], 46 << 2)).unwrap();
        assert_eq!(frame.dscp(), Some(46));
        assert_eq!(frame.source(), MacAddr([2, 0, 0, 0, 0, 1]));
        assert_eq!(frame.destination(), MacAddr([2, 0, 0, 0, 0, 2]));
        assert!(Pool::default().copy(&[0; 13]).is_none());
    }

    #[test]
    fn marks_keep_the_packet_valid_and_spare_who_does_not_take_part() {
        for (before, marked, after) in [(0, false, 0), (1, true, 3), (2, true, 3), (3, true, 3)] {
            let mut frame = Pool::default().copy(&tcp(&[7; 100], 10 << 2 | before)).unwrap();
            assert_eq!(frame.mark_congestion(), marked);
            let meta = parse(frame.bytes(), frame.bytes().len()).unwrap();
            assert_eq!(meta.traffic_class, 10 << 2 | after);
            assert!(ipv4::Header::parse(&frame.bytes()[14..]).unwrap().checksum_ok());
            assert_eq!(verify_transport(frame.bytes(), &meta), Ok(Verification::Good));
        }
    }

    #[test]
    fn one_bit_is_flipped_behind_the_ethernet_header() {
        let original = tcp(&[7; 10], 0);
        for choice in (0..5000).chain([u64::MAX]) {
            let mut frame = Pool::default().copy(&original).unwrap();
            frame.flip_bit(choice);
            let pairs = || original.iter().zip(frame.bytes());
            let flipped: u32 = pairs().map(|(a, b)| (a ^ b).count_ones()).sum();
            assert_eq!(flipped, 1);
            assert!(pairs().take(14).all(|(a, b)| a == b));
        }
    }

    #[test]
    fn buffers_are_used_again_and_old_bytes_are_not_seen() {
        let pool = Pool::default();
        let long = pool.copy(&tcp(&[9; 1000], 0)).unwrap();
        let copy = long.duplicate();
        assert_eq!(copy.bytes(), long.bytes());
        drop((long, copy));
        assert_eq!(pool.free.borrow().len(), 2);
        let short = tcp(&[1; 10], 0);
        assert_eq!(pool.copy(&short).unwrap().bytes(), short);
        assert_eq!(pool.copy(&short).unwrap().duplicate().bytes(), short);
        assert_eq!(pool.free.borrow().len(), 2);
    }
}
