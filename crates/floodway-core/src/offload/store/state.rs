//! What a store says of itself to another process, and what it believes of one ([`carried`](super::super::carried)).

use floodway_wire::tcp::Flags;
use serde::{Deserialize, Serialize};

use super::board::{Board, Sent};
use super::{Chunk, Store};
use crate::offload::frames::{Framed, Frames, Refused, Revived};
use crate::offload::state_pool::Pooled;
use crate::seq::Seq;
use crate::tcp::Ecn;

/// A stored frame of the guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ChunkState {
    frame: Framed,
    seq: Seq,
    offset: u32,
    len: u32,
    tsval: u32,
    flags: u8,
    ecn: Ecn,
    fin: bool,
}

/// All that is stored, and what became of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::offload) struct StoreState {
    una: Seq,
    nxt: Seq,
    chunks: Vec<ChunkState>,
    records: Vec<Sent>,
}

impl StoreState {
    /// What the peer has acknowledged.
    pub fn una(&self) -> Seq {
        self.una
    }
}

impl<B: 'static> Store<B> {
    /// What it is, with its frames in `frames`.
    pub fn export(&self, frames: &mut Frames<'_, B>) -> StoreState {
        let chunks = self.lists.chunks.iter().map(|chunk| {
            let &Chunk { ref frame, seq, offset, len, tsval, flags: Flags(flags), ecn, fin } =
                chunk;
            ChunkState { frame: frames.add(frame), seq, offset, len, tsval, flags, ecn, fin }
        });
        StoreState {
            una: self.una,
            nxt: self.nxt,
            chunks: chunks.collect(),
            records: self.lists.board.records().copied().collect(),
        }
    }

    /// A store that is as `state` says.
    ///
    /// # Errors
    /// It contradicts itself, or the frames do not hold what it says.
    pub fn import(state: StoreState, frames: &mut Revived<'_, B>) -> Result<Self, Refused> {
        let StoreState { una, nxt, chunks, records } = state;
        let mut store = Self::new(una);
        store.nxt = nxt;
        let board = Board::of_records(una, records).ok_or(Refused)?;
        let end = board.records().last().map_or(una, |last| last.end);
        if end != nxt {
            return Err(Refused);
        }
        if chunks.is_empty() && board.len() == 0 {
            return Ok(store);
        }
        let mut lists = Pooled::<super::Lists<B>>::EMPTY;
        lists.board = board;
        for state in chunks {
            lists.chunks.push_back(state.into_chunk(frames)?);
        }
        store.lists = lists;
        if store.is_whole() { Ok(store) } else { Err(Refused) }
    }

    /// Chunks lie in order; what was released is in them without a gap, and no record spans two.
    fn is_whole(&self) -> bool {
        let chunks = &self.lists.chunks;
        let in_order =
            chunks.iter().zip(chunks.iter().skip(1)).all(|(a, b)| !b.seq.before(a.end()));
        let first_needed = chunks.front().is_none_or(|first| first.end().after(self.una));
        let in_reach = chunks.iter().all(|chunk| {
            super::is_near(chunk.seq, self.una) && super::is_near(chunk.end(), self.una)
        });
        if !in_order || !first_needed || !in_reach {
            return false;
        }
        let (mut start, mut chunks) = (self.una, chunks.iter().peekable());
        self.lists.board.records().all(|record| {
            while chunks.next_if(|chunk| !chunk.end().after(start)).is_some() {}
            let begun = std::mem::replace(&mut start, record.end);
            chunks.peek().is_some_and(|c| !c.seq.after(begun) && !c.end().before(record.end))
        })
    }
}

impl ChunkState {
    fn into_chunk<B>(self, frames: &mut Revived<'_, B>) -> Result<Chunk<B>, Refused> {
        let Self { frame, seq, offset, len, tsval, flags, ecn, fin } = self;
        let (frame, segment) = frames.take(&frame)?;
        let whole = offset.checked_add(len).filter(|&end| end <= segment.len).ok_or(Refused)?;
        let ends = whole == segment.len && segment.has(Flags::FIN);
        let is_empty = len == 0 && !fin;
        if segment.seq + offset != seq || (fin && !ends) || is_empty {
            return Err(Refused);
        }
        Ok(Chunk { frame, seq, offset, len, tsval, flags: Flags(flags), ecn: Ecn(ecn.0 & 3), fin })
    }
}
