//! An option that is appended to a SYN-ACK changes what it has to, and nothing else.

use crate::support::{payload, tcp};
use floodway_wire::build::Tcp;
use floodway_wire::checksum::{self, ChecksumState, Verification};
use floodway_wire::name::{Beginning, OPTION_LEN, append_option, has_room};
use floodway_wire::tcp::{Flags, Options};
use floodway_wire::{FlowName, Meta, ipv4, parse};
use proptest::prelude::*;

const BEGINNING: Beginning = Beginning { ack: 1, next: 2 };

/// Options of SYN-ACKs: padding, Linux's, and a list with an end and something behind it.
fn syn_ack_options() -> impl Strategy<Value = Vec<u8>> {
    let linux = vec![2, 4, 5, 0xb4, 4, 2, 8, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 3, 3, 7];
    let ended = |(words, behind): (usize, [u8; 3])| {
        [vec![2, 4, 5, 0xb4], vec![1; 4 * words], vec![0], behind.to_vec()].concat()
    };
    prop_oneof![
        (0usize..=10).prop_map(|words| vec![1; 4 * words]),
        Just(linux),
        (0usize..=8, any::<[u8; 3]>()).prop_map(ended),
    ]
}

fn syn_ack() -> impl Strategy<Value = Tcp> {
    (tcp(), syn_ack_options()).prop_map(|(mut tcp, options)| {
        tcp.flags = Flags::SYN.with(Flags::ACK);
        tcp.options = options;
        tcp
    })
}

/// The frame with the option appended, if there is room.
fn append(frame: &[u8], state: ChecksumState, option: &[u8; OPTION_LEN]) -> Option<Vec<u8>> {
    let meta = parse(frame, frame.len()).unwrap();
    let (headers, payload) = frame.split_at(meta.payload_offset.into());
    let mut buffer = [0xee; 160];
    buffer[..headers.len()].copy_from_slice(headers);
    let before = buffer;
    let len = append_option(&mut buffer, &meta, state, option);
    if len.is_none() {
        assert_eq!(buffer, before, "nothing changes where there is no room");
    }
    Some([&buffer[..len?], payload].concat())
}

fn list<'a>(frame: &'a [u8], meta: &Meta) -> &'a [u8] {
    &frame[usize::from(meta.transport_offset) + 20..meta.payload_offset.into()]
}

proptest! {
    #[test]
    fn an_option_is_appended_where_there_is_room(
        tcp in syn_ack(),
        nonce in 1u64..,
        partial: bool,
        len in 0usize..100,
        corrupt in proptest::option::of(1u16..),
    ) {
        let data = payload(len);
        let mut frame = if partial { tcp.build_partial(&data) } else { tcp.build(&data) };
        let before = parse(&frame, frame.len()).unwrap();
        let field = usize::from(before.transport_offset) + 16;
        if let (false, Some(error)) = (partial, corrupt) {
            let wrong = u16::from_be_bytes([frame[field], frame[field + 1]]) ^ error;
            frame[field..field + 2].copy_from_slice(&wrong.to_be_bytes());
        }
        let verify = |frame: &[u8]| checksum::verify_transport(frame, &parse(frame, frame.len()).unwrap());
        let option = FlowName::new(&before.flow.reversed(), nonce).option(nonce, 7, BEGINNING);
        let state = if partial { ChecksumState::Partial } else { ChecksumState::Unverified };
        let appended = append(&frame, state, &option);
        prop_assert_eq!(appended.is_some(), has_room(tcp.flags, &tcp.options));
        let Some(mut appended) = appended else { return Ok(()) };
        let after = parse(&appended, appended.len()).unwrap();

        let old: Vec<_> = Options::new(list(&frame, &before)).map(Result::unwrap).collect();
        let mut new: Vec<_> = Options::new(list(&appended, &after)).map(Result::unwrap).collect();
        let added = Options::new(&option).next().unwrap().unwrap();
        prop_assert_eq!(new.pop(), Some(added));
        prop_assert_eq!(new, old);
        let (end, start) = (after.packet_end as usize, usize::from(after.payload_offset));
        prop_assert_eq!(&appended[start..end], &data[..]);
        prop_assert_eq!((before.flow, before.payload_len), (after.flow, after.payload_len));
        let ip = &appended[after.network_offset.into()..];
        prop_assert!(ip[0] >> 4 == 6 || ipv4::Header::parse(ip).unwrap().checksum_ok());
        if partial {
            checksum::complete(&mut appended, after.transport_offset, checksum::TCP_OFFSET).unwrap();
            prop_assert_eq!(verify(&appended), Ok(Verification::Good));
        } else {
            // What was wrong stays wrong.
            prop_assert_eq!(verify(&appended), verify(&frame));
        }
    }

    #[test]
    fn appending_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..160), tcp in syn_ack(), cut in 0usize..160) {
        let frame = tcp.build(&[]);
        let meta = parse(&frame, frame.len()).unwrap();
        let option = FlowName::new(&meta.flow, 1).option(1, 7, BEGINNING);
        for bytes in [&bytes[..], &frame[..cut.min(frame.len())]] {
            let _ = append_option(&mut bytes.to_vec(), &meta, ChecksumState::Unverified, &option);
            let _ = has_room(tcp.flags, bytes);
        }
    }
}
