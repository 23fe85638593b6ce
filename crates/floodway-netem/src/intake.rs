//! From what a host hands over to what a wire carries.
//!
//! Hosts leave work to the network card: checksums that are not filled in, and GSO packets.
//! Both are finished here, in software, so that the model sees each packet by itself and a receiver
//! finds every checksum valid. UDP GSO packets (`UDP_SEGMENT`) are not cut; they are counted as
//! unusable.

use floodway_wire::checksum;
use floodway_wire::segmentation::Segmenter;
use floodway_wire::vnet::{GSO_TCPV4, GSO_TCPV6, VnetHdr};

use super::frame::{Frame, Pool};

/// Calls `emit` with each packet of a frame as a host has sent it; false if the frame makes no
/// sense and nothing (or nothing more) was emitted.
pub fn packets(vnet: &VnetHdr, bytes: &[u8], pool: &Pool, mut emit: impl FnMut(Frame)) -> bool {
    if !vnet.is_gso() {
        let frame = pool.frame(bytes.len(), |out| {
            out.copy_from_slice(bytes);
            complete(vnet, out).then_some(bytes.len())
        });
        return frame.map(emit).is_some();
    }
    if !matches!(vnet.gso_kind(), GSO_TCPV4 | GSO_TCPV6) {
        return false;
    }
    let Ok(mut segmenter) = Segmenter::new(bytes, vnet.gso_size) else { return false };
    while segmenter.remaining() > 0 {
        let max_len = segmenter.plan().max_frame_len();
        match pool.frame(max_len, |out| segmenter.write_next(out).ok().flatten()) {
            Some(frame) => emit(frame),
            None => return false,
        }
    }
    true
}

fn complete(vnet: &VnetHdr, frame: &mut [u8]) -> bool {
    !vnet.needs_csum() || checksum::complete(frame, vnet.csum_start, vnet.csum_offset).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use floodway_wire::build::{Link, Tcp};
    use floodway_wire::checksum::{Verification, verify_transport};
    use floodway_wire::ethernet::MacAddr;
    use floodway_wire::parse::parse;
    use floodway_wire::vnet::{F_NEEDS_CSUM, GSO_UDP_L4};

    fn partial(payload: &[u8]) -> Vec<u8> {
        let link = Link::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let addresses = ["10.0.0.1:1", "10.0.0.2:2"].map(|address| address.parse().unwrap());
        Tcp::new(link, addresses[0], addresses[1]).build_partial(payload)
    }

    fn needs_csum() -> VnetHdr {
        VnetHdr { flags: F_NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..VnetHdr::default() }
    }

    fn taken(vnet: &VnetHdr, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        packets(vnet, bytes, &Pool::default(), |frame| frames.push(frame.bytes().to_vec()))
            .then_some(frames)
    }

    fn assert_valid(frame: &[u8]) {
        let meta = parse(frame, frame.len()).unwrap();
        assert_eq!(verify_transport(frame, &meta), Ok(Verification::Good));
    }

    #[test]
    fn gso_packets_are_cut_and_every_checksum_is_complete() {
        let payload: Vec<u8> = (0..5000_u32).map(|n| n as u8).collect();
        let vnet = VnetHdr { gso_type: GSO_TCPV4, gso_size: 1448, ..needs_csum() };
        let frames = taken(&vnet, &partial(&payload)).unwrap();
        assert_eq!(frames.len(), 4);
        frames.iter().for_each(|frame| assert_valid(frame));
        let joined: Vec<u8> = frames
            .iter()
            .flat_map(|frame| {
                &frame[usize::from(parse(frame, frame.len()).unwrap().payload_offset)..]
            })
            .copied()
            .collect();
        assert_eq!(joined, payload);
    }

    #[test]
    fn a_checksum_that_was_left_is_filled_in() {
        let frames = taken(&needs_csum(), &partial(&[5; 77])).unwrap();
        assert_eq!(frames.len(), 1);
        assert_valid(&frames[0]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let frame = partial(&[0; 100]);
        let outside = VnetHdr { csum_start: 5000, ..needs_csum() };
        assert_eq!(taken(&outside, &frame), None);
        let udp = VnetHdr { gso_type: GSO_UDP_L4, gso_size: 100, ..needs_csum() };
        assert_eq!(taken(&udp, &frame), None);
        let tiny = VnetHdr { gso_type: GSO_TCPV4, gso_size: 0, ..needs_csum() };
        assert_eq!(taken(&tiny, &frame), None);
        assert_eq!(taken(&VnetHdr::default(), &[0; 5]), None);
    }
}
