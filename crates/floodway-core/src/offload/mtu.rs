//! What paths take at least, and what headers take of it.

/// Smallest MTU that is believed (Linux `net.ipv4.route.min_pmtu`; RFC 8200 section 5).
const MIN_MTU_V4: u32 = 552;
const MIN_MTU_V6: u32 = 1280;
/// Headers of IP and TCP without options.
const HEADERS_V4: u32 = 40;
const HEADERS_V6: u32 = 60;

/// Bytes of the headers of IP and TCP without options.
pub(super) const fn headers_len(is_ipv6: bool) -> u32 {
    if is_ipv6 { HEADERS_V6 } else { HEADERS_V4 }
}

/// Smallest MTU that is believed.
pub(super) const fn least_mtu(is_ipv6: bool) -> u32 {
    if is_ipv6 { MIN_MTU_V6 } else { MIN_MTU_V4 }
}
