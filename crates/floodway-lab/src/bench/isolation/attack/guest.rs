//! What a guest's kernel can do: frames and rings.

use anyhow::Result;
use floodway_switch::testing::RawDescriptor;
use floodway_switch::testing::driver::F_INDIRECT;
use floodway_switch::testing::frames::{ipv4, mac, numbered, partial, pattern, tcp};
use floodway_switch::vhost::features;
use floodway_wire::MacAddr;
use floodway_wire::build::{Ip, Link, udp};
use floodway_wire::checksum;
use floodway_wire::vnet::{self, VnetHdr};

use super::super::testbed::{ACCOMPLICE, ATTACKER, Testbed};
use super::super::victim::{PARTNER, VICTIM};
use super::super::vm::Spec;
use super::Flood;

/// Payload that makes a frame of 64 bytes.
pub const SMALL: usize = 22;
/// Of a GSO packet: nearly what an IP packet takes.
const SUPER: usize = 60_000;
/// The least that makes 1250 segments of it.
const SEGMENT: u16 = 48;
/// Descriptors of an indirect table.
const TABLE: u16 = 1023;
/// Regions that are asked for; the switch may take fewer.
const REGIONS: u64 = 255;
const PAGE: u64 = 4096;

/// Feature bits of VMs that take GSO packets.
const TAKES_TSO: u64 = features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_ECN;

/// 64-byte frames to an accomplice.
pub fn small_frames(bed: &Testbed, queue_pairs: u16) -> Result<Flood> {
    let multiple = if queue_pairs > 1 { features::MQ } else { 0 };
    let spec = Spec::default();
    let spec = Spec { queue_pairs, features: spec.features | multiple, ..spec };
    let mut attacker = bed.boot(ATTACKER, &spec)?;
    attacker.fill(&VnetHdr::default(), &numbered(ATTACKER, ACCOMPLICE, 0, SMALL));
    Ok(Flood::new(vec![attacker, bed.boot(ACCOMPLICE, &Spec::default())?], 1))
}

/// GSO packets to an accomplice for whom they have to be cut.
pub fn gso_packets(bed: &Testbed) -> Result<Flood> {
    let spec = Spec { ring_size: 64, tx_buffer: 65_536, ..Spec::default() };
    let mut attacker = bed.boot(ATTACKER, &spec)?;
    let frame = tcp(ATTACKER, ACCOMPLICE, false).build_partial(&pattern(1, SUPER));
    attacker.fill(&partial(&frame, SEGMENT), &frame);
    let plain = Spec::default();
    let plain = Spec { features: plain.features & !TAKES_TSO, ring_size: 1024, ..plain };
    Ok(Flood::new(vec![attacker, bed.boot(ACCOMPLICE, &plain)?], 1))
}

/// 64-byte broadcasts.
pub fn broadcasts(bed: &Testbed) -> Result<Flood> {
    let mut attacker = bed.boot(ATTACKER, &Spec::default())?;
    attacker.fill(&VnetHdr::default(), &broadcast(ATTACKER));
    Ok(Flood::new(vec![attacker, bed.boot(ACCOMPLICE, &Spec::default())?], 1))
}

/// A broadcast of 64 bytes from host `n`.
pub fn broadcast(n: u8) -> Vec<u8> {
    let to = "255.255.255.255:7".parse().expect("an address");
    udp(&Link::new(mac(n), MacAddr([0xff; 6])), (ipv4(n), 7).into(), to, &[0; SMALL])
}

/// Neighbour advertisements that say that the router is at the victim's MAC address.
pub fn forged_neighbours(bed: &Testbed) -> Result<Flood> {
    let mut attacker = bed.boot(ATTACKER, &Spec::default())?;
    attacker.fill(&VnetHdr::default(), &advertisement());
    Ok(Flood::new(vec![attacker, bed.boot(ACCOMPLICE, &Spec::default())?], 1))
}

/// `fe80::1` is at the victim's MAC address, to its partner.
fn advertisement() -> Vec<u8> {
    const ADVERTISEMENT: u8 = 136;
    const OVERRIDE: u8 = 0x20;
    const TARGET_LINK_LAYER: u8 = 2;
    const ICMPV6: u8 = 58;
    let router: std::net::Ipv6Addr = "fe80::1".parse().expect("an address");
    let victim = mac(VICTIM).0;
    let all_nodes: std::net::Ipv6Addr = "ff02::1".parse().expect("an address");
    let mut ip = Ip::new(router.into(), all_nodes.into());
    ip.ttl = 255;
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(router.octets());
    message.extend([TARGET_LINK_LAYER, 1]);
    message.extend(victim);
    let sum = ip.pseudo_header(ICMPV6, message.len()).plus(checksum::Sum::of(&message));
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    ip.frame(&Link::new(mac(ATTACKER), mac(PARTNER)), ICMPV6, &message)
}

/// Memory in as many regions as can be had, and chains that jump between them with each byte.
pub fn region_walk(bed: &Testbed) -> Result<Flood> {
    let spec = Spec { spare: 16 * PAGE, ring_size: 1024, ..Spec::default() };
    let regions = (0..REGIONS).map(|n| (spec.end() + (2 * n + 1) * PAGE, PAGE)).collect();
    let mut attacker = bed.boot(ATTACKER, &Spec { regions, ..spec })?;
    let table = attacker.spare_at;
    let head = table + u64::from(TABLE) * RawDescriptor::SIZE;
    let frame = numbered(ATTACKER, ACCOMPLICE, 0, SMALL);
    attacker.memory.write(head, &[&VnetHdr::default().to_bytes()[..], &frame].concat());
    let pages: Vec<u64> = attacker.memory.layouts().skip(1).map(|layout| layout.gpa).collect();
    let tx = attacker.tx(0);
    for index in 0..TABLE {
        // Far from the one before, so that no search starts at the right place.
        let page = pages.get(usize::from(index) * 101 % pages.len().max(1)).copied();
        let (addr, len) = match (index, page) {
            (0, _) | (_, None) => (head, vnet::LEN + frame.len()),
            (_, Some(page)) => (page, 1),
        };
        let flags = u16::from(index + 1 < TABLE);
        tx.driver.write_indirect(
            table,
            index,
            RawDescriptor { addr, len: len as u32, flags, next: index + 1 },
        );
    }
    let bytes = u32::from(TABLE) * RawDescriptor::SIZE as u32;
    (0..tx.driver.size()).for_each(|slot| tx.set(slot, table, bytes, F_INDIRECT));
    Ok(Flood::new(vec![attacker, bed.boot(ACCOMPLICE, &Spec::default())?], 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use floodway_wire::parse;

    #[test]
    fn frames_of_attackers_are_well_formed_so_that_they_cost_what_they_can() {
        for frame in [broadcast(ATTACKER), advertisement()] {
            let meta = parse(&frame, frame.len()).unwrap();
            let good = checksum::verify_transport(&frame, &meta);
            assert!(matches!(good, Ok(checksum::Verification::Good)), "{good:?}");
        }
        assert_eq!(broadcast(ATTACKER).len(), 64);
    }
}
