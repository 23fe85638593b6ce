//! Any bytes, as a prefix of any frame: no panic, consistent offsets, and more bytes never
//! contradict fewer.
//!
//! Cost: extension headers and options are walked, and each step takes at least as many bytes as the smallest of them has. What the parser
//! does not return is covered by `source_policy`, which counts its own walk.
#![no_main]

use floodway_wire::checksum::{self, Verification};
use floodway_wire::{Error, announced_mac, ethernet, ipv4, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (cut, beyond, bytes) = input;
    let prefix = &bytes[..bytes.len().min(usize::from(cut))];
    let frame_len = bytes.len() + usize::from(beyond);
    let by_prefix = parse(prefix, frame_len);
    let by_more = parse(bytes, frame_len);
    match by_prefix {
        Ok(_) => assert_eq!(by_prefix, by_more),
        Err(Error::PrefixTooShort(_)) => assert!(prefix.len() < frame_len),
        Err(_) => assert!(by_more.is_err()),
    }
    let Ok(meta) = by_more else { return };
    assert!(meta.network_offset <= meta.transport_offset);
    assert!(meta.transport_offset <= meta.payload_offset);
    assert!(u32::from(meta.payload_offset) + meta.payload_len <= meta.packet_end);
    assert!(meta.packet_end as usize <= frame_len);

    let link = ethernet::Header::parse(bytes).expect("parsed before");
    assert_eq!((link.src, link.len), (meta.src_mac, meta.network_offset));
    let _ = announced_mac(bytes, &meta);
    if let Ok(ip) = ipv4::Header::parse(&bytes[usize::from(meta.network_offset)..]) {
        assert!(ip.options().count() <= 40);
        let _ = ip.checksum_ok();
    }
    if let Ok(Verification::Good) = checksum::verify_transport(bytes, &meta) {
        assert!(meta.transport_len() >= 8);
    }
    assert_eq!(meta.flow.hash(1), meta.flow.reversed().reversed().hash(1));
});
