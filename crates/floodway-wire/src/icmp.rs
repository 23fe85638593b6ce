//! ICMP (RFC 792), `ICMPv6` (RFC 4443), and neighbour advertisements (RFC 4861), by which IPv6
//! stations announce a move as IPv4 stations do by gratuitous ARP.

use std::net::Ipv6Addr;

use crate::bytes::{array, header, tail};
use crate::error::{Error, Layer};
use crate::ethernet::MacAddr;

/// IP protocol number of ICMP for IPv4.
pub const PROTOCOL_V4: u8 = 1;
/// IP protocol number of `ICMPv6`.
pub const PROTOCOL_V6: u8 = 58;
/// Bytes that every message has: type, code, checksum and four bytes that depend on the type.
pub const HEADER_LEN: usize = 8;

/// `ICMPv6` type: router solicitation.
pub const ROUTER_SOLICITATION: u8 = 133;
/// `ICMPv6` type: router advertisement.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// `ICMPv6` type: neighbour solicitation.
pub const NEIGHBOUR_SOLICITATION: u8 = 135;
/// `ICMPv6` type: neighbour advertisement.
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// `ICMPv6` type: redirect.
pub const REDIRECT: u8 = 137;

/// Option: the target's link-layer address.
const OPTION_TARGET_MAC: u8 = 2;

/// Type and code of the message at the start of `bytes`.
///
/// # Errors
/// [`Error::Truncated`] naming `layer`.
#[inline]
pub(crate) fn type_and_code(bytes: &[u8], layer: Layer) -> Result<(u8, u8), Error> {
    let b: &[u8; HEADER_LEN] = header(bytes, layer)?;
    Ok((b[0], b[1]))
}

/// A neighbour advertisement, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourAdvertisement {
    /// The address that is advertised.
    pub target: Ipv6Addr,
    /// Link-layer address of the target, if the message has it.
    pub target_mac: Option<MacAddr>,
    /// Sent by a router.
    pub router: bool,
    /// Answer to a solicitation.
    pub solicited: bool,
    /// Replaces what the receivers know.
    pub override_known: bool,
}

impl NeighbourAdvertisement {
    /// Decodes the advertisement that starts at `bytes` (the `ICMPv6` type) and ends with them.
    ///
    /// # Errors
    /// [`Error::Truncated`], or [`Error::BadField`] for another type or a bad option length.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let b: &[u8; 24] = header(bytes, Layer::Icmpv6)?;
        if b[0] != NEIGHBOUR_ADVERTISEMENT {
            return Err(Error::field(Layer::Icmpv6, "type", b[0]));
        }
        Ok(Self {
            target: Ipv6Addr::from(array::<16, _>(b, 8)),
            target_mac: target_mac(tail(bytes, 24))?,
            router: b[4] & 0x80 != 0,
            solicited: b[4] & 0x40 != 0,
            override_known: b[4] & 0x20 != 0,
        })
    }

    /// Nobody asked: the station has come up, has moved, or has changed its address.
    #[must_use]
    pub fn is_announcement(&self) -> bool {
        !self.solicited
    }
}

/// Finds the target link-layer address among neighbour discovery options.
fn target_mac(mut options: &[u8]) -> Result<Option<MacAddr>, Error> {
    while let [kind, units, ..] = *options {
        let len = usize::from(units) * 8;
        let option = options.get(..len).filter(|o| !o.is_empty()).ok_or(Error::field(
            Layer::Icmpv6,
            "option length",
            units,
        ))?;
        if let (OPTION_TARGET_MAC, Ok(o)) = (kind, <&[u8; 8]>::try_from(option)) {
            return Ok(Some(MacAddr(array(o, 2))));
        }
        options = tail(options, len);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advertisement(flags: u8, options: &[u8]) -> Vec<u8> {
        let mut b = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
        b.extend("fd00::1".parse::<Ipv6Addr>().unwrap().octets());
        b.extend(options);
        b
    }

    #[test]
    fn unsolicited_advertisement_with_mac() {
        let options = [14, 1, 0, 0, 0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 0, 9];
        let na = NeighbourAdvertisement::parse(&advertisement(0x20, &options)).unwrap();
        assert!(na.is_announcement() && na.override_known && !na.router);
        assert_eq!(na.target.to_string(), "fd00::1");
        assert_eq!(na.target_mac, Some(MacAddr([2, 0, 0, 0, 0, 9])));
    }

    #[test]
    fn solicited_or_broken() {
        let na = NeighbourAdvertisement::parse(&advertisement(0xc0, &[])).unwrap();
        assert!(!na.is_announcement() && na.router);
        assert_eq!(na.target_mac, None);
        for options in [[2, 0, 0, 0], [2, 1, 0, 0]] {
            assert!(NeighbourAdvertisement::parse(&advertisement(0, &options)).is_err());
        }
        let mut other = advertisement(0, &[]);
        assert!(NeighbourAdvertisement::parse(&other[..23]).is_err());
        other[0] = NEIGHBOUR_SOLICITATION;
        assert!(NeighbourAdvertisement::parse(&other).is_err());
    }
}
