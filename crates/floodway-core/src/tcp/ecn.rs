//! What two SYNs agree on of ECN (RFC 3168 section 6.1.1, RFC 9768 sections 3.1.2 and 3.1.3).
//!
//! AE, CWR and ECE of a SYN are a request, those of a SYN-ACK the response:
//!
//! | request | response | is |
//! |---|---|---|
//! | 111 | 010, 011, 100, 110, and 101 (reserved) | AccECN |
//! | 111 or 011 | 001 (and 101 to a request for classic ECN) | classic ECN |
//! | any | any other | none |
//!
//! A stack that gets no answer repeats its SYN with less, and which copy the other side answers is not known. So everything that was
//! said in any copy counts as said: a connection that is left alone without need has lost a gain, one that is misread
//! its congestion signal.

use floodway_wire::tcp::Flags;

use super::segment::Segment;

/// A set of values of the bits AE, CWR and ECE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Values(u8);

impl Values {
    const CLASSIC_REQUEST: Self = Self(1 << 0b011);
    const ACCURATE_REQUEST: Self = Self(1 << 0b111);
    const CLASSIC_RESPONSE: Self = Self(1 << 0b001);
    const ACCURATE_RESPONSES: Self = Self(0b0111_1100);
    /// Reserved in a response to a request for AccECN; ECN-nonce (RFC 3540) in one for classic ECN.
    const NONCE_RESPONSE: Self = Self(1 << 0b101);

    /// The value of a SYN.
    fn of(segment: &Segment) -> Self {
        let bit = |set, value| if set { value } else { 0 };
        let cwr = bit(segment.has(Flags::CWR), 0b010);
        Self(1 << (bit(segment.ae, 0b100) | cwr | bit(segment.has(Flags::ECE), 0b001)))
    }

    fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What one side's SYN said of ECN, in all copies that were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SynEcn {
    request: Values,
    response: Values,
}

impl SynEcn {
    /// Adds a copy of the SYN or SYN-ACK.
    pub fn add(&mut self, segment: &Segment) {
        let values = if segment.has(Flags::ACK) { &mut self.response } else { &mut self.request };
        values.0 |= Values::of(segment).0;
    }

    /// Returns `true` if the two sides agree on classic ECN.
    pub fn agrees_on_classic(self, other: Self) -> bool {
        self.gets_classic(other) || other.gets_classic(self)
    }

    /// Returns `true` if the two sides agree on AccECN; in a simultaneous open, if both ask for it.
    pub fn agrees_on_accurate(self, other: Self) -> bool {
        let (asks, other_asks) = (self.asks_for_accurate(), other.asks_for_accurate());
        let agrees = |side: Self| side.response.intersects(Values::ACCURATE_RESPONSES);
        (asks && (other_asks || agrees(other))) || (other_asks && agrees(self))
    }

    fn asks_for_accurate(self) -> bool {
        self.request.intersects(Values::ACCURATE_REQUEST)
    }

    /// Returns `true` if this side asked for ECN and `other` responded with classic ECN.
    fn gets_classic(self, other: Self) -> bool {
        let classic = self.request.intersects(Values::CLASSIC_REQUEST);
        let asks = classic || self.asks_for_accurate();
        (asks && other.response.intersects(Values::CLASSIC_RESPONSE))
            || (classic && other.response.intersects(Values::NONCE_RESPONSE))
    }
}
