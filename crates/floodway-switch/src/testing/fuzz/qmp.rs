//! What a peer says on a QMP socket.

use crate::runtime::qmp::MAX_BYTES;
use crate::runtime::vcpu::qmp::{Conversation, MAX_VCPUS};

/// What a peer says on a QMP socket, in pieces of the length that the first byte says or at once: the outcome is the same, the
/// threads are plausible, and each byte is looked at twice at most.
pub fn qmp(input: &[u8]) {
    let Some((&cut, said)) = input.split_first() else { return };
    let said = &said[..said.len().min(MAX_BYTES)];
    let whole = converse(&[said], said.len());
    let pieces: Vec<_> = said.chunks(usize::from(cut).max(1)).collect();
    assert_eq!(whole, converse(&pieces, said.len()));
    if let Some(threads) = whole {
        assert!(threads.len() <= MAX_VCPUS && threads.is_sorted_by(|a, b| a < b));
        assert!(threads.iter().all(|&thread| thread > 0));
    }
}

fn converse(pieces: &[&[u8]], len: usize) -> Option<Vec<i32>> {
    let (mut conversation, mut commands) = (Conversation::default(), Vec::new());
    let outcome =
        pieces.iter().find_map(|piece| conversation.receive(piece, &mut commands).transpose());
    assert!(conversation.work() <= 2 * len);
    // Two commands, whatever is said.
    assert!(commands.len() <= 64);
    outcome?.ok()
}
