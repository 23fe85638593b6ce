//! Which slots are free, and which belong together, as this process knows it.
//!
//! Lists through one array: slots of a frame, first slots of a flow's frames, free slots. Nothing is allocated but that array.

use crate::tcp::Seq;

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Slots {
    /// Those that were in use at some time: those behind were not, and take no memory.
    slots: Vec<Slot>,
    /// The first free slot of these.
    first_free: u32,
    free: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The next one of its frame, or the next free one.
    next: u32,
    /// Of the first slot of a frame: that of the flow's next one.
    next_frame: u32,
    /// Of such a slot: behind the frame's last byte.
    end: Seq,
}

const UNUSED: Slot = Slot { next: NONE, next_frame: NONE, end: Seq(0) };

impl Slots {
    /// So many slots, of which the first `used` were in use at some time; of these, those are free that `is_free` says.
    pub fn new(slots: usize, used: usize, is_free: impl Fn(usize) -> bool) -> Self {
        let mut places = Vec::with_capacity(slots);
        places.resize(used, UNUSED);
        let mut all = Self { slots: places, first_free: NONE, free: slots - used };
        // So that the first are taken first.
        for slot in (0..used).rev().filter(|&slot| is_free(slot)) {
            all.slots[slot].next = all.first_free;
            all.first_free = slot as u32;
            all.free += 1;
        }
        all
    }

    pub fn free(&self) -> usize {
        self.free
    }

    /// Takes so many slots, at least one, for a frame. Returns the first; `None` if there are fewer.
    pub fn take(&mut self, slots: usize) -> Option<u32> {
        self.free = self.free.checked_sub(slots)?;
        let first = self.take_one();
        let mut last = first;
        for _ in 1..slots {
            let next = self.take_one();
            self.slots[last as usize].next = next;
            last = next;
        }
        Some(first)
    }

    /// Takes a slot; there is one.
    fn take_one(&mut self) -> u32 {
        if self.first_free == NONE {
            self.slots.push(UNUSED);
            return (self.slots.len() - 1) as u32;
        }
        let first = self.first_free;
        self.first_free = std::mem::replace(&mut self.slots[first as usize].next, NONE);
        first
    }

    /// Makes `slots`, which are not free, those of a frame. Returns the first; `None` if there is none.
    pub fn link(&mut self, slots: &[usize]) -> Option<u32> {
        for pair in slots.windows(2) {
            self.slots[pair[0]].next = pair[1] as u32;
        }
        slots.first().map(|&first| first as u32)
    }

    /// Frees the slots of the frame that begins in `first`.
    pub fn give_back(&mut self, first: u32) {
        let (mut last, mut count) = (first as usize, 1);
        while self.slots[last].next != NONE {
            (last, count) = (self.slots[last].next as usize, count + 1);
        }
        self.slots[last].next = std::mem::replace(&mut self.first_free, first);
        self.free += count;
    }

    /// The slots of the frame that begins in `first`.
    pub fn of_frame(&self, first: u32) -> impl Iterator<Item = usize> + Clone {
        let next = |&slot: &usize| Some(self.slots[slot].next).filter(|&next| next != NONE);
        std::iter::successors(Some(first as usize), move |slot| {
            next(slot).map(|next| next as usize)
        })
    }

    /// Appends the frame that begins in `first` and ends before `end` to a flow's. Returns its first and last one.
    pub fn append(&mut self, frames: Option<(u32, u32)>, first: u32, end: Seq) -> (u32, u32) {
        let slot = &mut self.slots[first as usize];
        (slot.end, slot.next_frame) = (end, NONE);
        let Some((head, last)) = frames else { return (first, first) };
        self.slots[last as usize].next_frame = first;
        (head, first)
    }

    /// Takes the last frame off a flow's list, which begins with `first`. Returns the one before it, if there is one.
    pub fn cut_last(&mut self, first: u32, last: u32) -> Option<u32> {
        let mut each = std::iter::successors(Some(first), |&frame| self.next_frame(frame));
        let before = each.find(|&frame| self.next_frame(frame) == Some(last))?;
        self.slots[before as usize].next_frame = NONE;
        Some(before)
    }

    /// The frame behind that in `first`.
    pub fn next_frame(&self, first: u32) -> Option<u32> {
        Some(self.slots[first as usize].next_frame).filter(|&next| next != NONE)
    }

    /// Behind the last byte of the frame in `first`.
    pub fn end(&self, first: u32) -> Seq {
        self.slots[first as usize].end
    }
}
