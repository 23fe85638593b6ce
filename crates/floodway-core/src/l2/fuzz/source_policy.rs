//! The source policy on any frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use floodway_wire::ethernet::MacAddr;
use floodway_wire::parse::{Meta, Network, Transport};
use floodway_wire::{icmp, parse};

use crate::l2::SourcePolicy;
use crate::steps;

const MINE: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
const IPS: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4)),
];

/// The bits of the first byte choose the policy, the rest is a frame.
///
/// - The work is bounded by the frame's length and the number of addresses.
/// - A frame that is refused is refused wherever it is cut: nothing is hidden behind what the switch has read.
/// - What another parser finds in a frame that passes is the port's own, and no router's or server's.
pub fn source_policy(input: &[u8]) {
    let Some((&choice, frame)) = input.split_first() else { return };
    let policy = SourcePolicy {
        mac: (choice & 1 == 0).then_some(MINE),
        ips: if choice & 2 == 0 { IPS.to_vec() } else { Vec::new() },
        router_guard: choice & 4 == 0,
        dhcp_guard: choice & 8 == 0,
    };
    let _ = steps::take();
    let passes = policy.check(frame).is_ok();
    let limit = 4 * policy.ips.len() + frame.len() / 8 + 4;
    let steps = steps::take();
    assert!(steps <= limit as u64, "{steps} steps for {} bytes", frame.len());
    let cut = (0..frame.len()).filter(|&end| policy.check(&frame[..end]).is_ok()).min();
    if passes {
        check_honest(&policy, frame);
    } else if policy.looks_inside() {
        assert_eq!(cut, None, "refused whole, and passes when it is cut");
    }
}

fn check_honest(policy: &SourcePolicy, frame: &[u8]) {
    let Ok(meta) = parse(frame, frame.len()) else { return };
    assert!(policy.mac.is_none_or(|mac| mac == meta.src_mac));
    if policy.ips.is_empty() {
        return;
    }
    match meta.network {
        Network::Ipv4 => {
            let src = meta.flow.src.to_ipv4_mapped();
            assert!(
                src.is_some_and(|src| src.is_unspecified() || policy.ips.contains(&src.into()))
            );
        }
        Network::Ipv6 => {
            let src = meta.flow.src;
            let is_own = policy.ips.contains(&src.into()) || src == meta.src_mac.to_link_local();
            assert!(is_own || src.is_unspecified());
        }
        Network::Arp | Network::Other => {}
    }
    check_guards(policy, &meta);
}

fn check_guards(policy: &SourcePolicy, meta: &Meta) {
    match meta.transport {
        Transport::Icmpv6 { kind, .. } if policy.router_guard => {
            assert!(![icmp::ROUTER_ADVERTISEMENT, icmp::REDIRECT].contains(&kind));
        }
        Transport::Udp if policy.dhcp_guard => {
            let client = if meta.network == Network::Ipv6 { 546 } else { 68 };
            assert_ne!(meta.flow.dst_port, client);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::l2::fuzz::tests::{replay, seeds};

    #[test]
    fn seeds_of_the_fuzz_target_hold() {
        replay("source_policy", source_policy);
    }

    proptest! {
        /// Seeds with some bytes changed, and cut.
        #[test]
        fn any_frame_is_checked_at_a_bounded_cost_and_hides_nothing(
            which in any::<prop::sample::Index>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            end in 0_usize..200,
        ) {
            let seeds = seeds("source_policy");
            let mut input = which.get(&seeds).clone();
            for (at, value) in changes {
                let at = at.index(input.len());
                input[at] = value;
            }
            input.truncate(end.max(1));
            source_policy(&input);
        }
    }
}
