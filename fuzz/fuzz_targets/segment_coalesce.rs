//! Any frame and segment size: what segmentation accepts comes out as finished frames that
//! parse, verify, and add up; what coalescing then joins segments back to the same frames.
//!
//! Cost: as many segments as the payload has pieces, and no more bytes written than the payload and as many headers.
#![no_main]

use floodway_wire::checksum::{self, ChecksumState, Verification};
use floodway_wire::coalescing::{Coalescer, Offer};
use floodway_wire::segmentation::Segmenter;
use floodway_wire::{ipv4, parse};
use libfuzzer_sys::fuzz_target;

fn segments(frame: &[u8], gso_size: u16) -> Option<Vec<Vec<u8>>> {
    let mut segmenter = Segmenter::new(frame, gso_size).ok()?;
    let mut out = vec![0; segmenter.plan().max_frame_len()];
    let mut frames = Vec::with_capacity(segmenter.remaining());
    while let Some(len) = segmenter.write_next(&mut out).expect("the buffer is large enough") {
        frames.push(out[..len].to_vec());
    }
    Some(frames)
}

/// Offers frames until one is refused; gives the result and how many it holds.
fn coalesce(frames: &[Vec<u8>]) -> (u16, Vec<u8>, usize) {
    let mut coalescer = Coalescer::new(vec![0; 70_000]);
    let taken = frames.iter().take_while(|frame| {
        let meta = parse(frame, frame.len()).expect("a finished frame parses");
        coalescer.offer(frame, &meta, ChecksumState::Unverified) != Offer::Refused
    });
    let taken = taken.count();
    coalescer
        .finish()
        .map_or((0, Vec::new(), 0), |(hdr, frame)| (hdr.gso_size, frame.to_vec(), taken))
}

fuzz_target!(|input: (u16, &[u8])| {
    let (gso_size, frame) = input;
    let Some(frames) = segments(frame, gso_size) else { return };
    let whole = parse(frame, frame.len()).expect("segmentation parsed it");
    let mut payload = Vec::new();
    for frame in &frames {
        let meta = parse(frame, frame.len()).expect("a finished frame parses");
        assert_eq!(checksum::verify_transport(frame, &meta), Ok(Verification::Good));
        assert_eq!(meta.flow, whole.flow);
        if !meta.flow.is_ipv6 {
            let ip = ipv4::Header::parse(&frame[usize::from(meta.network_offset)..]);
            assert!(ip.expect("it parsed").checksum_ok());
        }
        payload.extend_from_slice(&frame[usize::from(meta.payload_offset)..]);
    }
    let start = usize::from(whole.payload_offset);
    let count = (whole.payload_len as usize).div_ceil(usize::from(gso_size)).max(1);
    let written: usize = frames.iter().map(Vec::len).sum();
    assert!(frames.len() <= count && written <= payload.len() + count * start);
    assert_eq!(payload, frame[start..start + whole.payload_len as usize]);

    let (joined_size, joined, taken) = coalesce(&frames);
    if taken > 1 {
        assert_eq!(joined_size, gso_size);
        assert_eq!(segments(&joined, joined_size).as_deref(), Some(&frames[..taken]));
    } else if taken == 1 {
        assert_eq!(joined, frames[0]);
    }
});
