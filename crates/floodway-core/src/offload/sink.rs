//! What the machines ask of whoever owns the bytes.

use floodway_wire::FiveTuple;
use floodway_wire::ethernet::MacAddr;
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::{SackList, Timestamps};

use super::journal::Image;
use crate::seq::Seq;
use crate::tcp::{Ecn, Edit};

/// Fields of the Ethernet header that a frame of our own needs: those of the flow's latest frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The guest's address.
    pub guest: MacAddr,
    /// The address by which the guest reaches the peer: the peer's own or its router's.
    pub peer: MacAddr,
    /// VLAN tag (priority and number) if there is one tag; frames with more are not offloaded.
    pub vlan: Option<u16>,
}

/// A range of a kept frame that goes out to the network under a refreshed header. What is not named
/// here stays as the guest wrote it, except for lengths and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// First byte of the frame's payload that is sent.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Most payload of one segment: what is longer leaves as a GSO packet or is cut.
    pub mss: u16,
    /// Sequence number of the first byte.
    pub seq: Seq,
    /// Acknowledgement number.
    pub ack: Seq,
    /// Window as on the wire.
    pub window: u16,
    /// Control bits. FIN and PSH are set on the last range of a frame only.
    pub flags: Flags,
    /// Timestamps, if the connection uses them.
    pub timestamps: Option<Timestamps>,
    /// ECN bits.
    pub ecn: Ecn,
}

/// A segment without payload that the switch makes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthesizedSegment {
    /// Addresses and ports in the direction in which it is sent.
    pub flow: FiveTuple,
    /// Ethernet addresses.
    pub link: Link,
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgement number.
    pub ack: Seq,
    /// Window as on the wire.
    pub window: u16,
    /// Control bits: ACK, and ECE where congestion has to be echoed.
    pub flags: Flags,
    /// Timestamps, if the connection uses them.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks; what came twice (RFC 2883) comes first.
    pub sack: SackList,
}

/// What the guest's module is told of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowNotice {
    /// The switch controls the flow: the guest may send as far as the window says.
    Managed,
    /// It does not: the guest is back on its own congestion window.
    Offline,
}

/// Carries out what the machines decide. `B` is the bytes of a frame, opaque to the machines.
///
/// Calls come in the order in which frames have to leave; each direction must keep it.
pub trait Sink<B> {
    /// Sends a range of a frame that came from the guest to the network.
    fn release(&mut self, frame: &B, release: &Transmission);
    /// Sends a segment of our own to the network.
    fn to_network(&mut self, segment: &SynthesizedSegment);
    /// Sends a segment of our own to the guest.
    fn to_guest(&mut self, segment: &SynthesizedSegment);
    /// Delivers a kept frame to the guest once more, under a refreshed header.
    fn redeliver(&mut self, frame: &B, edit: &Edit);
    /// Sends a heartbeat to the guest's module: the switch is alive, for `lifetime_ms` from now.
    fn heartbeat(&mut self, link: &Link, lifetime_ms: u16);
    /// Tells the guest's module about a flow, given in the guest's direction. *Managed* is a heartbeat as well,
    /// for [`HEARTBEAT_LIFETIME_MS`](super::HEARTBEAT_LIFETIME_MS).
    fn notify_flow(&mut self, flow: &FiveTuple, link: &Link, naming: FlowNotice);
    /// What a journal is to keep of a frame; needed only where there is one ([`Offload::record_in`](super::Offload::record_in)).
    fn image<'f>(&self, _frame: &'f B) -> Image<'f> {
        Image::default()
    }
}

/// What becomes of the frame that was shown to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on, with these changes.
    Pass(Edit),
    /// It goes no further: it was stored, or says nothing that the other side has not heard.
    Absorb,
    /// It goes no further: it breaks a rule, and is counted under the given reason.
    Drop(Refusal),
}

impl Verdict {
    /// The frame goes on as it is.
    pub const PASS: Self = Self::Pass(Edit {
        seq: None,
        ack: None,
        window: None,
        flags: None,
        timestamps: None,
        strip_sack: false,
        append_name: false,
    });
}

/// Why a machine drops a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The guest sent beyond what it was granted.
    BeyondGrant,
    /// The peer acknowledged what was never sent to it.
    AcksUnsent,
}
