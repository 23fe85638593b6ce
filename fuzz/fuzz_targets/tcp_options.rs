//! Any option list and any edits: no panic, and the checksum follows every edit.
//!
//! Cost: the walk takes no more steps than there are bytes.
#![no_main]

use arbitrary::Arbitrary;
use floodway_wire::checksum::{ChecksumState, Sum};
use floodway_wire::tcp::options::{TcpOption, Timestamps};
use floodway_wire::tcp::{Flags, Header, HeaderMut, OptionSummary, Options};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Edit {
    Sequence(u32),
    Acknowledgment(u32),
    Window(u16),
    Flags(u8),
    Timestamps(u32, u32),
    StripSack,
}

fuzz_target!(|input: (Vec<Edit>, &[u8])| {
    let (edits, bytes) = input;
    let summary = OptionSummary::parse(bytes);
    let walked: Result<Vec<_>, _> = Options::new(bytes).collect();
    assert_eq!(summary.is_ok(), walked.is_ok());
    assert!(Options::new(bytes).take(bytes.len() + 2).count() <= bytes.len() + 1);
    if let (Ok(summary), Ok(walked)) = (summary, &walked) {
        let unknown = walked.iter().any(|option| matches!(option, TcpOption::Unknown { .. }));
        assert_eq!(summary.unknown, unknown);
    }

    let mut header = bytes.to_vec();
    let Ok(view) = Header::parse(bytes) else { return };
    header.truncate(usize::from(view.header_len()));
    header[16..18].fill(0);
    let checksum = Sum::of(&header).checksum();
    header[16..18].copy_from_slice(&checksum.to_be_bytes());
    for edit in edits {
        apply(&mut header, &edit);
        assert!(matches!(Sum::of(&header).fold(), 0 | 0xffff), "{edit:?}");
    }
    Header::parse(&header).expect("edits keep the header well-formed");
});

fn apply(bytes: &mut [u8], edit: &Edit) {
    let mut header =
        HeaderMut::parse(bytes, ChecksumState::Unverified).expect("a well-formed header");
    match *edit {
        Edit::Sequence(n) => header.set_sequence(n),
        Edit::Acknowledgment(n) => header.set_acknowledgment(n),
        Edit::Window(n) => header.set_window(n),
        Edit::Flags(bits) => header.set_flags(Flags(bits)),
        Edit::Timestamps(value, echo) => {
            let _ = header.set_timestamps(Timestamps { value, echo });
        }
        Edit::StripSack => {
            if header.strip_sack_blocks().is_ok() {
                let view = Header::parse(bytes).expect("a well-formed header");
                let is_sack = |o: Result<_, _>| matches!(o, Ok(TcpOption::Sack(_)));
                assert!(!view.options().any(is_sack));
            }
        }
    }
}
