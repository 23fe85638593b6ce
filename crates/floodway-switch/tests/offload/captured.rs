//! Captures of what the offload does, and of an uplink.

use std::collections::BTreeMap;

use floodway_switch::api::capture::{CaptureRequest, Stage};
use floodway_switch::testing::capture::Running;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::wait_until;
use floodway_switch::vhost::features;
use floodway_wire::parse;
use floodway_wire::pcapng::Direction;

use crate::scene::with_scene;
use crate::{offload, transfer};

/// The words of a comment, by what is before their equals sign.
fn words(comment: &str) -> BTreeMap<&str, &str> {
    comment.split(' ').filter_map(|word| word.split_once('=')).collect()
}

#[test]
fn the_offload_shows_what_it_does_and_with_which_state() {
    with_scene(features::offered(1), offload(true, false), |scene| {
        let request = CaptureRequest {
            stages: vec![Stage::Offload],
            snap_len: 128,
            ..CaptureRequest::new("vm1")
        };
        let capture = Running::begin(&scene.operator, &request).unwrap();
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 1 << 20);
        transfer(&mut host, &mut guest, 1 << 20);
        // Notices say which guest's flow is managed; they are the switch's own.
        let is_notice = |comment: &&str| words(comment).get("offload") == Some(&"notice");
        wait_until("a notice", || capture.file().comments().iter().any(is_notice));
        let file = capture.end();
        let verdicts: Vec<_> = file.packets.iter().map(|p| words(&p.comment)).collect();
        assert!(verdicts.iter().all(|words| words.contains_key("offload")));
        let with_state = |words: &&BTreeMap<&str, &str>| {
            words.get("tx") == Some(&"ACTIVE") && words["cwnd"].parse::<u32>().unwrap() > 1000
        };
        assert!(verdicts.iter().filter(with_state).count() > 10, "the flow was online");
        for (packet, words) in file.packets.iter().zip(&verdicts) {
            let is_from_guest = packet.bytes[6..12] == mac(1).0;
            let is_to_guest = packet.bytes[..6] == mac(1).0;
            assert_ne!(is_from_guest, is_to_guest, "{words:?}");
            assert_eq!(is_from_guest, packet.direction == Direction::Inbound, "{words:?}");
        }
    });
}

#[test]
fn an_uplink_shows_what_arrives_and_what_leaves() {
    with_scene(features::offered(1), offload(false, false), |scene| {
        let capture = Running::begin(&scene.operator, &CaptureRequest::new("up0")).unwrap();
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 300_000);
        transfer(&mut host, &mut guest, 300_000);
        let file = capture.end();
        assert_eq!(&*file.interface, "up0");
        assert_eq!(file.packets.len() as u64 + file.lost(), file.seen());
        let payload = |direction| -> u64 {
            let packets = file.packets.iter().filter(|packet| packet.direction == direction);
            packets
                .filter_map(|p| parse(&p.bytes, p.bytes.len()).ok())
                .map(|meta| u64::from(meta.payload_len))
                .sum()
        };
        if file.lost() == 0 {
            // And what one of the stacks has repeated.
            assert!(payload(Direction::Outbound) >= 300_000);
            assert!(payload(Direction::Inbound) >= 300_000);
        }
    });
}
