//! The Ethernet header of a flow in two words of its record in a [journal](super::journal): whoever resets a connection needs it.

use floodway_wire::ethernet::MacAddr;

use super::sink::Link;

/// Bits beside an address in a word.
const BESIDE: u32 = 16;
/// Beside the peer's address: there is a VLAN tag.
const TAGGED: u64 = 1;

/// Two words that say what `link` says.
pub(super) fn pack(link: &Link) -> [u64; 2] {
    let tag = link.vlan.map_or(0, u64::from);
    let tagged = if link.vlan.is_some() { TAGGED } else { 0 };
    [link.guest.to_u64() << BESIDE | tag, link.peer.to_u64() << BESIDE | tagged]
}

/// The reverse of [`pack`].
pub(super) fn unpack([guest, peer]: [u64; 2]) -> Link {
    let address = |word: u64| {
        let [a, b, c, d, e, f, ..] = word.to_be_bytes();
        MacAddr([a, b, c, d, e, f])
    };
    let vlan = (peer & TAGGED != 0).then_some(guest as u16);
    Link { guest: address(guest), peer: address(peer), vlan }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_what_it_was() {
        for vlan in [None, Some(0), Some(0xefff)] {
            let link = Link { guest: MacAddr([2, 1, 3, 4, 5, 255]), peer: MacAddr([254; 6]), vlan };
            assert_eq!(unpack(pack(&link)), link);
        }
    }
}
