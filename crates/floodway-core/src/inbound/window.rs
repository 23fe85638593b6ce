//! The right edge of one connection: what its VM said, and what its peer was told.

use crate::seq::Seq;

/// ACK number and right edge, as the VM has them and as they left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// Shift of the window field.
    scale: u8,
    /// Latest ACK number of the VM.
    pub guest_ack: Seq,
    /// Right edge of the VM's own window.
    guest_edge: Seq,
    /// Latest ACK number that left.
    pub advertised_ack: Seq,
    /// Right edge that left.
    pub advertised_edge: Seq,
}

impl Window {
    /// The window of a connection whose peer begins at `next`, and was told `told` bytes in a SYN of which the VM
    /// itself had offered `offered`.
    pub fn new(next: Seq, scale: u8, offered: u16, told: u16) -> Self {
        Self {
            scale,
            guest_ack: next,
            guest_edge: next + u32::from(offered),
            advertised_ack: next,
            advertised_edge: next + u32::from(told),
        }
    }

    /// Takes in what a segment of the VM says.
    pub fn note(&mut self, ack: Seq, field: u16) {
        self.guest_ack = self.guest_ack.max(ack);
        self.guest_edge = self.guest_edge.max(ack + self.bytes(field));
    }

    /// Bytes by which the told edge would have to advance for the peer to have `window` bytes beyond what has
    /// arrived from it (`highest`), as far as the VM's own window goes.
    pub fn missing(&self, highest: Seq, window: u32) -> u32 {
        let from = self.guest_ack.max(highest);
        self.guest_edge.min(from + window).since(self.advertised_edge)
    }

    /// Bytes by which [`Window::tell`] can advance the edge at most: the VM's window, rounded down to what a field says.
    pub fn tellable(&self) -> u32 {
        (self.guest_ack + self.bytes(self.own_field())).since(self.advertised_edge)
    }

    /// Bytes by which it would have to advance for the peer to have `window` bytes beyond the VM's ACK number.
    pub fn urgent(&self, window: u32) -> u32 {
        self.guest_edge.min(self.guest_ack + window).since(self.advertised_edge)
    }

    /// The field of a segment with `ack` that tells an edge of `advance` more than was told, and by how much the edge
    /// advances with it. Rounded up, so as to take nothing back, but never above `own`, the field of the VM.
    pub fn tell(&mut self, ack: Seq, own: u16, advance: u32) -> (u16, u32) {
        let field = self.field(ack, advance).min(own);
        let before = self.advertised_edge;
        self.advertised_ack = self.advertised_ack.max(ack);
        self.advertised_edge = before.max(ack + self.bytes(field));
        (field, self.advertised_edge.since(before))
    }

    /// By how much [`Window::tell`] would advance the edge by rounding alone.
    pub fn rounding(&self, ack: Seq) -> u32 {
        (ack + self.bytes(self.field(ack, 0))).since(self.advertised_edge)
    }

    /// The VM's own window as the field of a segment with its ACK number.
    pub fn own_field(&self) -> u16 {
        let bytes = self.guest_edge.since(self.guest_ack) >> self.scale;
        bytes.min(u32::from(u16::MAX)) as u16
    }

    fn field(&self, ack: Seq, advance: u32) -> u16 {
        let bytes = (self.advertised_edge + advance).since(ack);
        bytes.div_ceil(1 << self.scale).min(u32::from(u16::MAX)) as u16
    }

    fn bytes(&self, field: u16) -> u32 {
        u32::from(field) << self.scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rounded_up_but_not_beyond_the_guest() {
        let mut window = Window::new(Seq(1000), 7, 64_000, 2920);
        assert_eq!(window.advertised_edge, Seq(3920));
        // The VM acknowledges a segment and offers 500 units of 128.
        window.note(Seq(2448), 500);
        assert_eq!(window.urgent(5840), 2448 + 5840 - 3920);
        assert_eq!(window.missing(Seq(3908), 2920), 3908 + 2920 - 3920);
        let (field, advanced) = window.tell(Seq(2448), 500, 0);
        assert_eq!((field, advanced), (12, 2448 + 12 * 128 - 3920));
        let (field, _) = window.tell(Seq(2448), 500, 1 << 20);
        assert_eq!((field, window.advertised_edge), (500, Seq(2448 + 64_000)));
        assert_eq!(window.missing(Seq(2448), 1 << 20), 0);
    }

    proptest! {
        /// Whatever the VM says (its own edges never go back), told edges never do, and no field is larger than
        /// the VM's.
        #[test]
        fn edges_are_monotone(
            start in any::<u32>(), scale in 0_u8..15, offered in any::<u16>(),
            steps in proptest::collection::vec((0_u32..3000, 0_u32..60_000, 0_u32..100_000), 1..100),
        ) {
            let start = Seq(start);
            let mut window = Window::new(start, scale, offered, offered.min(2920));
            let (mut ack, mut edge) = (start, start + u32::from(offered));
            for (acked, opened, advance) in steps {
                ack = ack.max(ack + acked).min(window.advertised_edge);
                // As Linux: the field is rounded up, so that the edge stays, unless there is no such field.
                edge = edge.max(ack) + opened;
                let own = edge.since(ack).div_ceil(1 << scale).min(65_535) as u16;
                edge = ack + (u32::from(own) << scale);
                if edge.before(window.advertised_edge) {
                    break;
                }
                window.note(ack, own);
                let before = window.advertised_edge;
                let (field, advanced) = window.tell(ack, own, advance);
                prop_assert!(field <= own);
                let on_wire = ack + (u32::from(field) << scale);
                prop_assert!(!on_wire.before(before), "{on_wire:?} {before:?}");
                prop_assert_eq!(on_wire, window.advertised_edge);
                prop_assert_eq!(window.advertised_edge, before + advanced);
            }
        }
    }
}
