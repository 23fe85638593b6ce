//! The echo of CE: who says it, and what the switch may acknowledge beside it (R6).
//!
//! # Theory of operation
//! **Goal.** The peer hears of each CE mark what the guest's own stack would have told it. There are two ways to tell, and a
//! handshake does not say which is used: classic receivers set ECE from a mark on until CWR comes (RFC 3168 section 6.1.3); a DCTCP
//! receiver sets it in exactly those ACKs that acknowledge marked segments, and its peer counts those bytes (RFC 8257 sections 3.2, 3.3).
//!
//! So the guest echoes, and the switch follows:
//! - A data segment whose CE differs from that of the one before, or that has CWR, may change the echo. It is not acknowledged for the
//!   guest, nor is what comes behind it, until the guest has acknowledged all that came (state `UNEXPECTED_SEQ`).
//! - From there on CE is what it was, so a receiver of either kind would go on with the echo of its latest ACK. That is what
//!   the switch's own ACKs and released data carry.
//! - An ACK that is due belongs to the echo of before: it leaves before a segment of the guest with another is taken in.
//! - An ACK of the guest with another echo than before is news, whatever it acknowledges (R5).
//!
//! Where ECN was not agreed on, CE, ECE and CWR mean nothing.
//!
//! **Cost**: around each change, a mark or the CWR that answers it, the peer waits for the guest as it would without the switch.
//!
//! One byte, since a flow's state is full.

use floodway_wire::tcp::Flags;

use serde::{Deserialize, Serialize};

use crate::tcp::{Ecn, Segment};

/// What is known of CE in one direction.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Echo(u8);

impl Echo {
    /// ECN was agreed on.
    const ECN: u8 = 1;
    /// The latest data segment for the guest had CE.
    const MARKED: u8 = 2;
    /// The guest's latest ACK had ECE.
    const ECHOED: u8 = 4;

    /// `ecn` says that classic ECN was agreed on.
    pub fn new(ecn: bool) -> Self {
        Self(if ecn { Self::ECN } else { 0 })
    }

    /// Returns `true` if an acknowledgement in the guest's name has to carry ECE.
    #[inline]
    pub fn is_set(self) -> bool {
        self.0 & Self::ECHOED != 0
    }

    /// Returns `true` if a segment of the guest has another echo than its latest ACK.
    pub fn differs(self, segment: &Segment) -> bool {
        self.0 & Self::ECN != 0 && segment.has(Flags::ECE) != self.is_set()
    }

    /// Takes in an ACK of the guest. Returns `true` if its echo is another than before.
    pub fn on_guest(&mut self, segment: &Segment) -> bool {
        let differs = self.differs(segment);
        if differs {
            self.0 ^= Self::ECHOED;
        }
        differs
    }

    /// Takes in a data segment for the guest. Returns `true` if the echo may change with it.
    pub fn on_data(&mut self, segment: &Segment) -> bool {
        if self.0 & Self::ECN == 0 {
            return false;
        }
        let was_marked = self.0 & Self::MARKED != 0;
        let is_marked = segment.ecn == Ecn::CE;
        if is_marked != was_marked {
            self.0 ^= Self::MARKED;
        }
        is_marked != was_marked || segment.has(Flags::CWR)
    }
}
