//! Whether a port has a front-end, and whether that has started rings: what the broker's loop may ask.

use std::sync::atomic::{AtomicU64, Ordering};

use super::FrontEnd;

/// `VHOST_USER_SET_VRING_KICK`: it starts a ring.
const SET_VRING_KICK: u32 = 12;
/// Rings were started.
const STARTED: u64 = 1 << 32;

/// The number of the front-end, with [`STARTED`]; zero without one.
#[derive(Debug, Default)]
pub(super) struct Presence(AtomicU64);

impl Presence {
    /// Front-end number `id` is there.
    pub(super) fn begin(&self, id: u32) {
        self.0.store(id.into(), Ordering::Release);
    }

    /// One that a broker of before had is there. What its record has of rings tells whether they run.
    pub(super) fn restore(&self, front_end: &FrontEnd) {
        self.begin(front_end.id);
        front_end.session.record().packets().for_each(|packet| self.on_message(&packet.bytes));
    }

    /// It has sent this message.
    pub(super) fn on_message(&self, bytes: &[u8]) {
        let request = bytes.first_chunk().map(|request| u32::from_ne_bytes(*request));
        if request == Some(SET_VRING_KICK) {
            self.0.fetch_or(STARTED, Ordering::AcqRel);
        }
    }

    /// It has gone.
    pub(super) fn leave(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Its number, and whether rings were started.
    pub(super) fn get(&self) -> Option<(u32, bool)> {
        let value = self.0.load(Ordering::Acquire);
        let id = u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default();
        (id != 0).then_some((id, value & STARTED != 0))
    }
}
