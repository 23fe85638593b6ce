//! Inbound rate of a port: its clamp behind its lock, and what is known of it without the lock. The theory of operation is that of
//! [`crate::pipeline::inbound`], which works on it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use floodway_core::inbound::WindowClamp;
use floodway_core::time::Instant;
use floodway_wire::vnet::VnetHdr;

use crate::frame::{Frame, PREFIX_LEN};
use crate::sync::deadline::Deadline;
use crate::sync::lock_order::{Ordered, Rank};

/// The clamp of one port, as the packet path sees it.
pub struct PortInbound {
    pub(crate) active: AtomicBool,
    /// When the clamp's next timeout is due.
    pub(crate) deadline: Deadline,
    /// What the division gives the port, in bytes per second.
    pub(crate) rate: AtomicU64,
    machine: Mutex<Machine>,
}

pub(crate) struct Machine {
    /// There is one once the mechanism was on.
    pub(crate) clamp: Option<WindowClamp<Kept>>,
    /// Words that it counts in, if they outlive this process.
    pub(crate) kept: Option<&'static [AtomicU64]>,
    pub(crate) frame_overhead: u64,
    /// Active connections that the division knows of.
    pub(crate) told: u32,
    /// The latest time that the clamp has heard.
    pub(crate) latest: Instant,
}

impl Default for PortInbound {
    fn default() -> Self {
        Self {
            active: AtomicBool::new(false),
            deadline: Deadline::default(),
            rate: AtomicU64::new(0),
            machine: Mutex::new(Machine {
                clamp: None,
                kept: None,
                frame_overhead: 0,
                told: 0,
                latest: Instant::ZERO,
            }),
        }
    }
}

impl PortInbound {
    /// Frames between the port and an uplink have to be shown to the clamp.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// When `pipeline::inbound::handle_timeout` is due.
    #[inline]
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        self.deadline.get()
    }

    pub(crate) fn machine(&self) -> Ordered<MutexGuard<'_, Machine>> {
        Ordered::lock(Rank::Clamp, &self.machine)
    }

    /// Forgets all connections: the guest is gone.
    pub fn reset(&self) {
        let mut machine = self.machine();
        let latest = machine.latest;
        if let Some(clamp) = &mut machine.clamp {
            clamp.reset(latest);
        }
        // The division hears of it with the next frame.
        self.deadline.set(Instant::NEVER);
    }

    /// The port's rate from now on; the clamp hears of it when it is next used.
    pub(crate) fn set_rate(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }
}

/// Longest frame that is kept: a request of one segment, at the largest MTU in use.
const LONGEST: usize = 9216;

/// A copy of a frame that waits.
pub(crate) struct Kept {
    pub(crate) vnet: VnetHdr,
    /// All of a frame without payload, as most are.
    headers: [u8; PREFIX_LEN],
    len: u8,
    /// All of any other.
    long: Vec<u8>,
}

impl Kept {
    /// Copies `frame`; `None` if it is longer than one that waits can be.
    pub(crate) fn copy(frame: &Frame<'_>) -> Option<Self> {
        let len = frame.len as usize;
        let mut kept =
            Self { vnet: frame.vnet, headers: [0; PREFIX_LEN], len: 0, long: Vec::new() };
        if len == frame.prefix.len() && len <= PREFIX_LEN {
            kept.headers[..len].copy_from_slice(frame.prefix);
            kept.len = len as u8;
            return Some(kept);
        }
        (len <= LONGEST).then(|| {
            frame.append_to(&mut kept.long);
            kept
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.headers[..usize::from(self.len)] } else { &self.long }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use crate::testing::frames::{pattern, tcp};

    #[test]
    fn what_waits_is_kept_whole_or_not_at_all() {
        for payload in [0, 1, 100, 1448, 9000] {
            let bytes = tcp(1, 9, false).build(&pattern(4, payload));
            frame::with_slice(VnetHdr::default(), &bytes, |frame| {
                assert_eq!(Kept::copy(frame).unwrap().bytes(), bytes, "{payload}");
            });
        }
        let long = tcp(1, 9, false).build(&pattern(4, LONGEST));
        frame::with_slice(VnetHdr::default(), &long, |frame| assert!(Kept::copy(frame).is_none()));
    }
}
