//! Decisions about frames: what the pipeline does with one, asked without doing it.
//!
//! # Theory of operation
//! The packet path ([`forward`](crate::pipeline::forward)) decides and acts, a trace ([`trace`](crate::pipeline::trace)) decides and
//! reports. Both ask the functions here, which have no effect but that they take locks for reading: nothing is learned, counted or
//! taken from a budget. What does have an effect (a source is refreshed and learned, a storm limit is charged) is asked for a
//! verdict by the packet path, and as a copy or by a peek by a trace.
//!
//! **Invariant**: for the same frame and state a trace says what the packet path then does; the property test of
//! [`trace`](crate::pipeline::trace) compares them.

use floodway_core::l2::{MacTable, Observed, Origin, PortId, Refusal, Spoof};
use floodway_wire::notice::GuestNonce;
use floodway_wire::vnet::{self, VnetHdr};
use floodway_wire::{MacAddr, announced_mac, parse};

use crate::frame::Frame;
use crate::frame::describe::{Special, special};
use crate::frame::vnet_offload::Offloads;
use crate::pipeline::delivery::Delivery;
use crate::state::port::Port;
use crate::stats::DropReason;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// To a port, by one of its receive queues, or to an uplink (whose queue is always 0).
    To {
        dst: PortId,
        pair: u16,
    },
    Flood,
    Drop(DropReason),
}

/// What a port has against a frame of its guest, before anybody asks where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Objection {
    /// Of the type of notices.
    Notice,
    /// With a VLAN tag.
    Tagged,
    /// The Ethernet source.
    Source(Spoof),
    /// What is behind it.
    Inside(Spoof),
}

impl Objection {
    /// Returns as what the frame is counted, which begins with `prefix`.
    #[cold]
    pub(super) fn reason(self, prefix: &[u8]) -> DropReason {
        match self {
            Self::Notice if GuestNonce::parse(prefix).is_ok() => DropReason::GuestNonce,
            Self::Notice => DropReason::ForgedNotice,
            Self::Tagged => DropReason::VlanFiltered,
            Self::Source(spoof) | Self::Inside(spoof) => spoof.into(),
        }
    }
}

/// Checks a frame that comes from the guest of `ingress` by what the port is configured to let pass.
///
/// # Errors
/// It is dropped.
#[inline]
pub(super) fn check_source(ingress: &Port, prefix: &[u8]) -> Result<(), Objection> {
    check_type(prefix)?;
    let (_, src) = addresses(prefix);
    ingress.policy.check_mac(src).map_err(Objection::Source)?;
    check_inside(ingress, prefix)
}

/// As [`check_source`], for a frame whose Ethernet source has been checked.
#[inline]
pub(super) fn check_all_but_source(ingress: &Port, prefix: &[u8]) -> Result<(), Objection> {
    check_type(prefix)?;
    check_inside(ingress, prefix)
}

#[inline]
fn check_type(prefix: &[u8]) -> Result<(), Objection> {
    match special(prefix) {
        None => Ok(()),
        Some(Special::Notice) => Err(Objection::Notice),
        Some(Special::Tagged) => Err(Objection::Tagged),
    }
}

#[inline]
fn check_inside(ingress: &Port, prefix: &[u8]) -> Result<(), Objection> {
    if ingress.policy.looks_inside() {
        ingress.policy.check_inside(prefix).map_err(Objection::Inside)?;
    }
    Ok(())
}

/// The addresses of the last frame of a batch whose source is known and whose destination is one port or uplink. Most frames of a batch have those of the one
/// before, and nothing that the table says of them changes while it is held.
#[derive(Clone, Copy)]
pub(super) struct LastAddresses(Option<([u8; 12], PortId)>);

impl LastAddresses {
    /// No frame so far.
    pub(super) const NONE: Self = Self(None);

    /// Where a frame with `prefix` goes, if it has the same addresses.
    #[inline]
    pub(super) fn destination(&self, prefix: &[u8]) -> Option<PortId> {
        let (octets, dst) = self.0.as_ref()?;
        (prefix.first_chunk() == Some(octets)).then_some(*dst)
    }

    /// Notes what was found of a frame with `prefix`.
    #[inline]
    pub(super) fn note(&mut self, prefix: &[u8], source: Source, verdict: Verdict) {
        if let (Source::Known, Verdict::To { dst, .. }) = (source, verdict)
            && let Some(&octets) = prefix.first_chunk()
        {
            self.0 = Some((octets, dst));
        }
    }
}

/// What the table says of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Known,
    /// It has to be learned.
    Changed,
}

/// A source that the table refuses is not served; one that it merely has no room for is.
#[inline]
pub(super) fn accept(observed: Observed) -> Result<Source, DropReason> {
    match observed {
        Observed::Known | Observed::Refused(Refusal::PortLimit | Refusal::UnknownPort) => {
            Ok(Source::Known)
        }
        Observed::Changed => Ok(Source::Changed),
        Observed::Refused(Refusal::Reflected) => Err(DropReason::Reflected),
        Observed::Refused(Refusal::InUse) => Err(DropReason::MacInUse),
        Observed::Refused(Refusal::Static) => Err(DropReason::SpoofedMac),
        Observed::Refused(Refusal::NotUnicast) => Err(DropReason::InvalidSource),
    }
}

/// Destination and source address; the caller knows that the frame has them.
#[inline]
pub(super) fn addresses(prefix: &[u8]) -> (MacAddr, MacAddr) {
    let mac = |at: usize| {
        let mut octets = [0; 6];
        octets.copy_from_slice(&prefix[at..at + 6]);
        MacAddr(octets)
    };
    (mac(0), mac(6))
}

/// A frame from the network announces its source. What it announces must be where it comes from; anything else is a lie or a mistake.
pub(super) fn is_announcement(frame: &Frame<'_>) -> bool {
    let (_, src) = addresses(frame.prefix);
    let meta = parse(frame.prefix, frame.len as usize);
    meta.is_ok_and(|meta| announced_mac(frame.prefix, &meta) == Some(src))
}

/// The header of a frame from the host's kernel: checked like a guest's, but the kernel may say
/// that it has validated the checksum.
pub(super) fn check_received(frame: &Frame<'_>) -> Result<VnetHdr, DropReason> {
    let validated = frame.vnet.flags & vnet::F_DATA_VALID;
    let checked = Offloads::ALL.check(frame.vnet, frame.prefix, frame.len)?;
    Ok(VnetHdr { flags: checked.flags | validated, ..checked })
}

impl Delivery {
    /// As [`look_up`](Self::look_up) of a frame that goes where an earlier one of its batch with the same addresses went. `frame` is called only where an MTU or the
    /// receive queue depends on the frame.
    #[inline]
    pub(super) fn look_up_again<'f>(
        &self,
        ingress: Origin,
        dst: PortId,
        frame: impl FnOnce() -> Option<Frame<'f>>,
    ) -> Verdict {
        let only = Verdict::To { dst, pair: 0 };
        if self.ports.fit_all() && self.rx_queues(dst) < 2 {
            return only;
        }
        match frame() {
            Some(frame) if !self.ports.fits(ingress.network, &frame) => {
                Verdict::Drop(DropReason::Oversize)
            }
            Some(frame) => Verdict::To { dst, pair: self.select_rx_queue(dst, &frame) },
            None => only,
        }
    }

    /// Where a frame goes by its destination.
    #[inline]
    pub(super) fn look_up(&self, table: &MacTable, ingress: Origin, frame: &Frame<'_>) -> Verdict {
        let (dst, _) = addresses(frame.prefix);
        if !self.ports.fits(ingress.network, frame) {
            return Verdict::Drop(DropReason::Oversize);
        }
        if dst.is_multicast() {
            return self.flood_from(ingress);
        }
        match table.lookup(dst) {
            None => self.flood_from(ingress),
            Some(dst) if dst == ingress.port => Verdict::Drop(DropReason::Hairpin),
            Some(dst) if !self.ports.connects(ingress, dst) => Verdict::Drop(DropReason::Isolated),
            Some(dst) => Verdict::To { dst, pair: self.select_rx_queue(dst, frame) },
        }
    }

    /// As [`look_up`](Self::look_up) of a frame from the network, whose source is behind `ingress` by the time that its destination is looked for.
    #[inline]
    pub(super) fn look_up_received(
        &self,
        table: &MacTable,
        ingress: Origin,
        source: Source,
        frame: &Frame<'_>,
    ) -> Verdict {
        let (dst, src) = addresses(frame.prefix);
        if source == Source::Changed && dst == src {
            return Verdict::Drop(DropReason::Hairpin);
        }
        self.look_up(table, ingress, frame)
    }

    /// The verdict for a frame that goes to everybody else, if there is anybody.
    #[cold]
    fn flood_from(&self, ingress: Origin) -> Verdict {
        let ports = &self.ports;
        let port = ports.flooded(ingress).next().is_some();
        if port || ports.flooded_uplinks(ingress).next().is_some() {
            Verdict::Flood
        } else {
            Verdict::Drop(DropReason::NoDestination)
        }
    }
}
