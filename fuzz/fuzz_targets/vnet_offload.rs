//! virtio-net headers that claim anything, over frames that are anything: what passes the check can
//! be finished, and what comes out is right.
//!
//! Cost: no more frames than a GSO packet has segments by its header, and no more bytes than its own and as many headers.

#![no_main]

use std::net::{IpAddr, SocketAddr};

use arbitrary::Arbitrary;
use floodway_switch::frame;
use floodway_switch::frame::vnet_offload::{self, Offloads};
use floodway_switch::testing::frames::partial;
use floodway_wire::build::{Link, Tcp};
use floodway_wire::checksum::{Verification, verify_transport};
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{MacAddr, parse};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    sender: [bool; 4],
    receiver: [bool; 4],
    hdr: Option<[u8; 12]>,
    frame: Frame<'a>,
}

#[derive(Arbitrary, Debug)]
enum Frame<'a> {
    Raw(&'a [u8]),
    /// A good TCP frame with a partial checksum, of which some bytes are changed afterwards.
    Tcp {
        v6: bool,
        vlan: Option<u16>,
        options: u8,
        sequence: u32,
        flags: u8,
        gso_size: u16,
        payload: &'a [u8],
        repeat: u8,
        changes: Vec<(u8, u8)>,
    },
}

impl Frame<'_> {
    /// The bytes, and the header that belongs to them if they are good.
    fn build(&self) -> (Vec<u8>, Option<VnetHdr>) {
        match self {
            Self::Raw(bytes) => (bytes.to_vec(), None),
            Self::Tcp {
                v6,
                vlan,
                options,
                sequence,
                flags,
                gso_size,
                payload,
                repeat,
                changes,
            } => {
                let ip = |n: u8| -> IpAddr {
                    if *v6 {
                        [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n].into()
                    } else {
                        [10, 0, 0, n].into()
                    }
                };
                let mut link = Link::new(MacAddr([2; 6]), MacAddr([4; 6]));
                if let Some(tci) = vlan {
                    link = link.tagged(0x8100, *tci);
                }
                let mut tcp = Tcp::new(link, SocketAddr::new(ip(1), 1), SocketAddr::new(ip(2), 2));
                tcp.options = vec![1; usize::from(options % 11) * 4];
                tcp.sequence = *sequence;
                tcp.flags.0 = *flags;
                let mut payload = payload.repeat(usize::from(*repeat) + 1);
                payload.truncate(60_000);
                let mut frame = tcp.build_partial(&payload);
                let hdr = partial(&frame, *gso_size);
                for &(at, byte) in changes {
                    if let Some(b) = frame.get_mut(usize::from(at)) {
                        *b = byte;
                    }
                }
                (frame, changes.is_empty().then_some(hdr))
            }
        }
    }
}

fn offloads([csum, tso4, tso6, ecn]: [bool; 4]) -> Offloads {
    Offloads { csum, tso4, tso6, ecn }
}

fuzz_target!(|input: Input<'_>| {
    let (sender, receiver) = (offloads(input.sender), offloads(input.receiver));
    let (bytes, own) = input.frame.build();
    let is_honest = own.is_some() && input.hdr.is_none();
    let hdr = match (input.hdr, own) {
        (Some(hdr), _) => VnetHdr::from_bytes(&hdr),
        (None, own) => own.unwrap_or_default(),
    };
    let prefix = &bytes[..bytes.len().min(frame::PREFIX_LEN)];
    let Ok(checked) = sender.check(hdr, prefix, bytes.len() as u32) else { return };
    assert!(sender.allow(&checked), "more than the sender negotiated");
    if receiver.allow(&checked) {
        return;
    }
    frame::with_slice(checked, &bytes, |frame| {
        let (mut count, mut written) = (0, 0);
        let finished = vnet_offload::finish(frame, receiver, |vnet, out| {
            count += 1;
            written += out.len();
            assert!(receiver.allow(&vnet));
            if checked.is_gso() || is_honest {
                let meta = parse(out, out.len()).expect("a finished frame parses");
                assert_eq!(verify_transport(out, &meta), Ok(Verification::Good));
            } else {
                assert_eq!(out.len(), bytes.len());
            }
        });
        let segments = bytes.len().div_ceil(usize::from(checked.gso_size).max(1));
        let allowed = if checked.is_gso() { segments } else { 1 };
        assert!(count <= allowed, "{count} frames, {allowed} allowed");
        assert!(written <= bytes.len() + count * frame::PREFIX_LEN, "{written} bytes in {count}");
        if finished.is_ok() {
            assert!(count > 0, "a frame vanished");
        }
    });
});
