//! ACKs of the peer that are merged for the guest, and those that it may be waiting for.

use floodway_core::offload::Verdict;
use floodway_wire::tcp::Flags;

use crate::handshake::online;
use crate::harness::World;
use crate::harness::packet::Packet;

/// Segments of a first flight, by RFC 6928.
const FLIGHT: u32 = 10;
const MSS: u32 = 1448;

/// A flow whose peer has got nothing of `bytes` that the guest has sent.
fn sent(name: &'static str, bytes: i64) -> (World, Packet) {
    let mut world = online(name);
    world.to_peer.config.loss = 1000;
    world.guest.write(bytes, world.now);
    world.send_from_guest();
    let mut ack = world.blind(0);
    ack.segment.flags = Flags::ACK;
    (world, ack)
}

#[test]
fn a_guest_that_is_not_ahead_of_the_network_hears_of_every_ack_at_once() {
    let (mut world, mut ack) = sent("ack-clocked", i64::from(FLIGHT * MSS));
    for _ in 1..FLIGHT {
        ack.segment.ack += MSS;
        assert!(matches!(world.network_packet(&ack), Verdict::Pass(_)));
    }
}

#[test]
fn a_guest_that_sends_as_far_as_it_is_granted_hears_of_several_together() {
    let (mut world, mut ack) = sent("granted", 100_000);
    for _ in 0..FLIGHT {
        ack.segment.ack += MSS;
        assert_eq!(world.network_packet(&ack), Verdict::Absorb);
    }
}
