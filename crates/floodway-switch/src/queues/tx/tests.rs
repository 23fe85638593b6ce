//! What a batch says of its frames.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::frame::{Frame, Frames, WireSize};
use crate::queues::virtqueue::Virtqueue;
use crate::testing::frames::{numbered, partial, pattern, tcp};
use crate::testing::{Guest, GuestConfig};
use crate::vhost::features;
use floodway_wire::vnet::VnetHdr;

/// A transmit queue of `guest`.
fn queue_of(guest: &Guest) -> TxQueue {
    let driver = &guest.pairs[0].tx.driver;
    let memory = Arc::new(guest.memory.map());
    let queue = Virtqueue::new(memory, driver.size(), driver.addresses(), true).unwrap();
    let mut tx = TxQueue::default();
    tx.start(Ring { queue, call: None }, features::tx(guest.config.features));
    tx.set_enabled(true);
    tx
}

proptest! {
    #[test]
    fn a_batch_that_measures_itself_finds_what_its_frames_are_one_by_one(
        sent in proptest::collection::vec(prop_oneof![4 => Just(0), 8 => 60_usize..1600, 1 => 3000_usize..9000], 1..=BATCH),
        with_gso in prop::bool::weighted(0.3),
        drops in prop_oneof![Just(Vec::new()), proptest::collection::vec(0..BATCH, 1..3)],
        is_part in prop::bool::weighted(0.3),
        part in any::<u32>(),
        always in prop_oneof![Just(20_000_u32), 60_u32..2000],
    ) {
        let mut guest = Guest::new(GuestConfig::default());
        for &len in &sent {
            let gso_packet = tcp(1, 2, false).build_partial(&pattern(0, len));
            let (vnet, frame) = match len {
                3000.. if with_gso => (partial(&gso_packet, 1448), gso_packet),
                // A bare acknowledgement.
                0 => (VnetHdr::default(), tcp(1, 2, false).build(&[])),
                _ => (VnetHdr::default(), numbered(1, 2, 0, len - 42)),
            };
            prop_assert!(guest.send_quietly(0, &vnet, &frame));
        }
        let (mut tx, mut batch) = (queue_of(&guest), Batch::default());
        tx.dequeue_burst(&mut batch);
        prop_assert_eq!(batch.len(), sent.len());
        for i in drops.into_iter().filter(|&i| i < sent.len()) {
            batch.drop_frame(i, DropReason::RateLimit);
        }
        let mask = if is_part { part } else { u32::MAX >> (BATCH - sent.len()) };
        let fits = |frame: &Frame<'_>| frame.vnet.is_gso() || frame.len <= always;
        let selected = || {
            (0..sent.len()).filter(|&i| mask >> i & 1 == 1).filter_map(|i| batch.frame(i))
        };
        let expected: WireSize = selected().filter(fits).map(|frame| frame.wire_size()).sum();
        prop_assert_eq!(batch.select(mask).wire_size(always, fits), expected);
        let acks = selected().filter(Frame::is_pure_ack).count() as u64;
        prop_assert_eq!(batch.select(mask).pure_acks(), acks);
        tx.complete(&mut batch);
        prop_assert_eq!(batch.all().wire_size(always, fits), WireSize::default());
        prop_assert_eq!(batch.select(mask).pure_acks(), 0);
    }
}
