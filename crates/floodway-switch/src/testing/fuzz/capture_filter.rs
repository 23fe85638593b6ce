//! A filter of who asks for a capture, and a frame that it is run on.

use floodway_core::time::Instant;
use floodway_wire::bpf::{Instruction, Program};
use floodway_wire::pcapng::{self, Direction, Packet};
use floodway_wire::vnet::VnetHdr;

use crate::api::capture::Stage;
use crate::capture::{Captures, Record, Seen, Tap};
use crate::frame;
use crate::testing::pcapng::File;

/// Instructions, 8 bytes each, as many as the first byte says, and a frame: a program that is accepted ends within its length; what is captured of the frame is
/// its beginning, and comes out of the file as it went in.
pub fn capture_filter(input: &[u8]) {
    let Some((&count, rest)) = input.split_first() else { return };
    let (program, frame) = rest.split_at(rest.len().min(8 * usize::from(count)));
    let instruction = |bytes: &[u8; 8]| {
        let [c0, c1, jt, jf, k @ ..] = *bytes;
        Instruction { code: u16::from_le_bytes([c0, c1]), jt, jf, k: u32::from_le_bytes(k) }
    };
    let program: Vec<_> = program.as_chunks().0.iter().map(instruction).collect();
    let frame = &frame[..frame.len().min(4096)];
    if let Ok(program) = Program::new(&program) {
        let (wanted, steps) = program.run(frame, frame.len() as u32);
        assert!(steps <= program.len());
        assert_eq!(program.accepts(frame, frame.len() as u32), wanted > 0);
    }
    write_and_read(frame, 14 + u32::from(count));
}

fn write_and_read(bytes: &[u8], snap_len: u32) {
    let captures = Captures::new(0);
    let capture = captures.begin("p", 0, snap_len).expect("the first of several");
    let tap = Tap::default();
    tap.set(&capture, &[Stage::In], false);
    frame::with_slice(VnetHdr::default(), bytes, |frame| {
        let seen = Seen::new(frame, Direction::Inbound, None);
        captures.record(tap.watch(), Stage::In, Instant::from_nanos(5), &seen);
    });
    let reader = captures.rings(capture.slot)[0].reader().expect("nobody else reads");
    let record = Record::read(reader.peek().expect("a record"));
    assert_eq!(record.bytes, &bytes[..bytes.len().min(snap_len as usize)]);
    let mut file = Vec::new();
    let Record { time, direction, original_len, comment, bytes, .. } = record;
    let packet = Packet { interface: 0, time_ns: time, original_len, bytes, direction, comment };
    pcapng::packet(&mut file, &packet);
    let file = File::read(&file);
    assert_eq!((file.packets.len(), &file.packets[0].bytes[..]), (1, bytes));
}

#[cfg(test)]
mod tests {
    use super::super::replay;
    use super::*;

    #[test]
    fn seeds_hold() {
        replay("capture_filter", capture_filter);
    }
}
