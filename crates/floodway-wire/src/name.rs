//! Names of flows, and the TCP option that bears one in a SYN-ACK.
//!
//! # Theory of operation
//! A notice names a flow by its addresses on the wire ([`notice`]). A socket behind NAT inside its guest has
//! others, and to tell it anything the switch would need a frame of its own before the SYN-ACK. So the switch can put the name into the SYN-ACK
//! itself, which reaches the very socket that is meant, whatever translates its addresses on the way. That is a *managed* notice
//! that takes no frame.
//!
//! **The name** is 64 bits that both ends compute from the bytes that name a flow in notices: SipHash-2-4 of the bytes 12 to 51 of a notice, under the guest's
//! nonce. So neither the format of notices changes nor has the switch anything to keep; the guest's module knows flows by their names alone, and
//! a later notice finds the socket that has been given the name. Who does not know the nonce can neither compute a name nor look for two flows with the same one;
//! that two of 2^14 have the same by chance has a probability of 2^-37.
//!
//! **The option** is an experimental one (RFC 6994: kind 254 with a 16-bit `ExID`, which is not registered):
//!
//! ```text
//! offset  0      1      2      4      12
//!         254    16     ExID   name   tag
//!         u8     u8     u16    u64    u32
//! ```
//!
//! Nobody beyond the switch can forge it: *tag* is SipHash-2-4, under the nonce, of the name, the epoch, and the numbers with which the
//! connection begins, cut to 32 bits:
//!
//! ```text
//! offset  0      8       12                       16                             20
//!         name   epoch   acknowledgement number   sequence number behind SYN     zero
//!         u64    u32     u32                      u32                            u32
//! ```
//!
//! The numbers stay what they are where addresses are translated, and the socket has them when its handshake ends (`snd_una` and `rcv_nxt`). So an option
//! that was heard once is worth nothing for another connection, and the nonce itself is in no segment: one that the guest forwards betrays nothing.
//!
//! Numbers are in network byte order, but results of SipHash as it writes them, the lowest byte first; the tag is the first half of one. The key is the nonce as it is in
//! notices, then eight zero bytes.
//!
//! An option fits where [`has_room`] says so: all options of a segment have 40 bytes. Linux's SYN-ACK takes 20.

use siphasher::sip::SipHasher24;

use crate::bytes::put16;
use crate::flow::FiveTuple;
use crate::notice;
use crate::parse::{Meta, Network, TcpMeta};
use crate::sum::{ChecksumState, Sum, update, update_u16};
use crate::tcp::options::{KIND_END, KIND_EXPERIMENT};
use crate::tcp::{Flags, MAX_HEADER_LEN, MIN_HEADER_LEN, Options};

/// Bytes of the option.
pub const OPTION_LEN: usize = 16;
/// "FW".
const EXID: u16 = 0x4657;

/// What a guest's module knows a flow by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowName(pub [u8; 8]);

/// The numbers with which a connection begins, as its SYN-ACK has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// Acknowledgement number.
    pub ack: u32,
    /// Sequence number right behind the SYN.
    pub next: u32,
}

impl Beginning {
    /// Those of a SYN-ACK with these fields.
    #[must_use]
    pub const fn of(syn_ack: &TcpMeta) -> Self {
        Self { ack: syn_ack.acknowledgment, next: syn_ack.sequence.wrapping_add(1) }
    }
}

impl FlowName {
    /// The name of a flow, given as the guest transmits it, for a guest with this nonce.
    #[must_use]
    pub fn new(flow: &FiveTuple, nonce: u64) -> Self {
        Self(hash(nonce, &notice::flow_bytes(flow)))
    }

    /// The option that bears the name.
    #[must_use]
    pub fn option(self, nonce: u64, epoch: u32, beginning: Beginning) -> [u8; OPTION_LEN] {
        let mut option = [0; OPTION_LEN];
        (option[0], option[1]) = (KIND_EXPERIMENT, OPTION_LEN as u8);
        put16(&mut option, 2, EXID);
        option[4..12].copy_from_slice(&self.0);
        option[12..].copy_from_slice(&self.tag(nonce, epoch, beginning));
        option
    }

    fn tag(self, nonce: u64, epoch: u32, Beginning { ack, next }: Beginning) -> [u8; 4] {
        let mut message = [0; 24];
        message[..8].copy_from_slice(&self.0);
        let numbers = [epoch, ack, next].map(u32::to_be_bytes);
        message[8..20].copy_from_slice(numbers.as_flattened());
        let [a, b, c, d, ..] = hash(nonce, &message);
        [a, b, c, d]
    }
}

fn hash(nonce: u64, bytes: &[u8]) -> [u8; 8] {
    SipHasher24::new_with_keys(nonce.swap_bytes(), 0).hash(bytes).to_le_bytes()
}

/// Returns `true` if a segment with these control bits and options is a SYN-ACK in which a name has room.
#[must_use]
#[inline]
pub fn has_room(flags: Flags, options: &[u8]) -> bool {
    flags.contains(Flags::SYN.with(Flags::ACK))
        && used(options).is_some_and(|used| MIN_HEADER_LEN + used + OPTION_LEN <= MAX_HEADER_LEN)
}

/// Bytes of `options` before the end of the list; `None` if they are malformed.
fn used(options: &[u8]) -> Option<usize> {
    let mut list = Options::new(options);
    while let Some(option) = list.next_with_offset() {
        option.ok()?;
    }
    Some(list.walked())
}

/// Appends an option to those of a TCP segment. `buffer` begins with the segment's headers, up to the payload, as `meta` was parsed from them; they get
/// longer by a multiple of four bytes, and lengths and checksums follow. The payload, which is elsewhere, need not be read for that: what was wrong with
/// a checksum stays wrong. Returns the new length of all headers, or `None`, with nothing changed, if there is no room.
pub fn append_option(
    buffer: &mut [u8],
    meta: &Meta,
    state: ChecksumState,
    option: &[u8; OPTION_LEN],
) -> Option<usize> {
    meta.tcp()?;
    let (start, end) = (usize::from(meta.transport_offset), usize::from(meta.payload_offset));
    let used = used(buffer.get(start + MIN_HEADER_LEN..end)?)?;
    let header_len = (MIN_HEADER_LEN + used + OPTION_LEN).next_multiple_of(4).max(end - start);
    let (old_len, added) = (meta.transport_len(), start + header_len - end);
    let lengths = [old_len, old_len + added as u32].map(u16::try_from);
    let ([Ok(old_len), Ok(len)], true) = (lengths, header_len <= MAX_HEADER_LEN) else {
        return None;
    };
    let (front, tcp) = buffer.split_at_mut(start);
    let tcp = tcp.get_mut(..header_len)?;
    lengthen_ip(front, meta, added as u16)?;
    let before = covered(&tcp[..end - start]);
    tcp[12] = tcp[12] & 0x0f | (header_len as u8 / 4) << 4;
    let (_, free) = tcp.split_at_mut(MIN_HEADER_LEN + used);
    free.fill(KIND_END);
    free[..OPTION_LEN].copy_from_slice(option);
    let after = covered(tcp);
    let field = u16::from_be_bytes([tcp[16], tcp[17]]);
    let checksum = match state {
        // The pseudo-header's sum, not complemented: of it, only the length has changed.
        ChecksumState::Partial => !update_u16(!field, old_len, len),
        _ => update(field, before.plus_u16(old_len), after.plus_u16(len)),
    };
    put16(tcp, 16, checksum);
    Some(start + header_len)
}

/// The sum of what [`append_option`] changes of a TCP header, checksum apart.
fn covered(tcp: &[u8]) -> Sum {
    Sum::of(&tcp[12..14]).plus(Sum::of(&tcp[MIN_HEADER_LEN..]))
}

/// Adds to the length in an IP header. Returns `None`, with nothing changed, if it has no room for that.
fn lengthen_ip(front: &mut [u8], meta: &Meta, added: u16) -> Option<()> {
    let ip = front.get_mut(usize::from(meta.network_offset)..)?;
    let at = if meta.network == Network::Ipv4 { 2 } else { 4 };
    let field = |ip: &[u8], at: usize| Some(u16::from_be_bytes(*ip.get(at..)?.first_chunk()?));
    let old = field(ip, at)?;
    let new = old.checked_add(added)?;
    if meta.network == Network::Ipv4 {
        let checksum = field(ip, 10)?;
        put16(ip, 10, update_u16(checksum, old, new));
    }
    put16(ip, at, new);
    Some(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const NONCE: u64 = 0x0102_0304_0506_0708;
    const BEGINNING: Beginning = Beginning { ack: 0x1122_3344, next: 0x5566_7788 };

    fn flow() -> FiveTuple {
        FiveTuple::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 6)
            .with_ports(40_000, 80)
    }

    /// The guest's reader is another program, and so is its SipHash: the bytes themselves are the contract.
    #[test]
    fn bytes_of_an_option() {
        let name = FlowName::new(&flow(), NONCE);
        assert_eq!(name.0, [0x3e, 0xa3, 0xd7, 0x3a, 0xd5, 0x03, 0xaa, 0x00]);
        let option = name.option(NONCE, 0x0a0b_0c0d, BEGINNING);
        assert_eq!(option[..4], [254, 16, 0x46, 0x57]);
        assert_eq!(option[4..12], name.0);
        assert_eq!(option[12..], [0x36, 0x49, 0x63, 0xed]);
    }

    #[test]
    fn whatever_differs_makes_another_name_or_tag() {
        let name = FlowName::new(&flow(), NONCE);
        for other in [flow().reversed(), flow().with_ports(40_001, 80)] {
            assert_ne!(FlowName::new(&other, NONCE), name);
        }
        let option = name.option(NONCE, 7, BEGINNING);
        let (ack, next) = (BEGINNING.ack, BEGINNING.next);
        for other in [
            FlowName::new(&flow(), NONCE + 1).option(NONCE, 7, BEGINNING),
            name.option(NONCE + 1, 7, BEGINNING),
            name.option(NONCE, 8, BEGINNING),
            name.option(NONCE, 7, Beginning { ack: ack + 1, ..BEGINNING }),
            name.option(NONCE, 7, Beginning { next: next + 1, ..BEGINNING }),
            name.option(NONCE, 7, Beginning { ack: next, next: ack }),
        ] {
            assert_ne!(other[12..], option[12..]);
        }
    }

    #[test]
    fn there_is_room_beside_what_linux_puts_into_a_syn_ack() {
        let linux = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7];
        let syn_ack = Flags::SYN.with(Flags::ACK);
        assert!(has_room(syn_ack, &linux) && has_room(syn_ack, &[]));
        assert!(!has_room(Flags::SYN, &linux) && !has_room(Flags::ACK, &linux));
        assert!(has_room(syn_ack, &[1; 24]) && !has_room(syn_ack, &[1; 28]));
        // What is behind the end of a list is nothing.
        let ended = [&[1; 24][..], &[0; 8]].concat();
        assert!(has_room(syn_ack, &ended));
        assert!(!has_room(syn_ack, &[2, 0]), "malformed");
    }
}
