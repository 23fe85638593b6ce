//! Notices: the frames in which the switch speaks to the congestion control inside a guest.
//!
//! # Theory of operation
//!
//! A guest may send beyond its own congestion window only for flows that the switch holds back for it, and
//! only while the switch is alive. Notices say so:
//!
//! - **heartbeat**, repeated: the switch is here, in its incarnation `epoch`. It is valid for `lifetime` after its
//!   arrival. A guest that hears none, or one of another epoch, is on its own for every flow. A lifetime of zero
//!   is a farewell.
//! - **managed**: the switch holds back this flow, under this epoch. With a `lifetime` it is a heartbeat as well.
//! - **offline**: it does so no longer.
//!
//! Flows are named in the direction in which the guest transmits. Notices may be lost, repeated and overtaken:
//! each says all that it means.
//!
//! **Who says so.** Anybody on a network can send such frames to a guest that is not behind Floodway. So each guest has a random
//! *nonce*, and believes only notices that bear it. A notice without it is answered with a frame of the kind *nonce*, sent to
//! [`NEAREST_BRIDGE`]: bridges never forward that address (IEEE 802.1Q), and the switch takes what comes from a guest with this type for itself,
//! notes the nonce for that guest's port, and puts it into each later notice. The nonce is the last field, and a guest that knows of none ignores it.
//! That frame says as well what the module can do: bit 0 of `features` is that it reads names in SYN-ACKs ([`name`](crate::name)).
//!
//! ```text
//! offset  0       2         3      4       8             10         12       13         16      32     48       50
//!         magic   version   kind   epoch   lifetime_ms   features   family   reserved   guest   peer   guest    peer
//!         u16     u8        u8     u32     u16           u16        u8       3 bytes    address address port    port
//! offset  52
//!         nonce
//!         u64
//! ```
//!
//! Offsets count from the end of an untagged Ethernet header with [`ETHERTYPE`]; everything is in network byte order. In a
//! heartbeat and a nonce, bytes 12 to 51 are reserved; in what the switch sends, so is `features`. Addresses take 16 bytes, IPv4 as
//! `::ffff:a.b.c.d`. A nonce of zero is none. Reserved bytes are sent as zero and ignored. The format is Floodway's own; the type is
//! the first of the two that IEEE Std 802 sets aside for local experiments.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::bytes::{array, be16, be32, header, put16, tail};
use crate::error::{Error, Layer};
use crate::ethernet::{self, MacAddr};
use crate::flow::FiveTuple;

/// `EtherType` of notices: local experimental 1.
pub const ETHERTYPE: u16 = 0x88b5;
/// Length of a frame, in bytes.
pub const MAX_FRAME_LEN: usize = ethernet::HEADER_LEN + NONCE_END;
/// Where guests send their nonce: the group address of the nearest bridge, which none forwards.
pub const NEAREST_BRIDGE: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x0e]);

/// "FW".
const MAGIC: u16 = 0x4657;
const VERSION: u8 = 1;
/// Ends of the part that all kinds have, and of the part that names a flow.
const COMMON_END: usize = 12;
const FLOW_END: usize = 52;
/// End of the nonce, and of a notice.
const NONCE_END: usize = 60;

const KIND_HEARTBEAT: u8 = 1;
const KIND_MANAGED: u8 = 2;
const KIND_OFFLINE: u8 = 3;
/// From the guest: its nonce.
const KIND_NONCE: u8 = 4;
const PROTOCOL_TCP: u8 = 6;
/// Feature: names in SYN-ACKs are read.
const READS_NAMES: u16 = 1;

/// One notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The switch is alive.
    Heartbeat {
        /// Incarnation of the switch, never 0.
        epoch: u32,
        /// How long the notice is valid after its arrival: whole milliseconds up to 65 535, rounded down.
        lifetime: Duration,
    },
    /// The switch holds back this flow.
    Managed {
        /// Incarnation of the switch, never 0.
        epoch: u32,
        /// As in a heartbeat; zero says nothing of that.
        lifetime: Duration,
        /// The flow as the guest transmits it: `src` is the guest.
        flow: FiveTuple,
    },
    /// The switch does not hold back this flow (any more).
    Offline {
        /// Incarnation of the switch, never 0.
        epoch: u32,
        /// The flow as the guest transmits it: `src` is the guest.
        flow: FiveTuple,
    },
}

impl Notice {
    /// Writes the frame from the switch (`src`) to a guest's interface (`dst`), whose `nonce` it bears, or zero.
    pub fn write_frame(
        &self,
        src: MacAddr,
        dst: MacAddr,
        nonce: u64,
        frame: &mut [u8; MAX_FRAME_LEN],
    ) {
        write_common(src, dst, self.kind(), nonce, frame);
        let (_, notice) = frame.split_at_mut(ethernet::HEADER_LEN);
        notice[4..8].copy_from_slice(&self.epoch().to_be_bytes());
        if let Self::Heartbeat { lifetime, .. } | Self::Managed { lifetime, .. } = self {
            put16(notice, 8, u16::try_from(lifetime.as_millis()).unwrap_or(u16::MAX));
        }
        if let Self::Managed { flow, .. } | Self::Offline { flow, .. } = self {
            write_flow(flow, notice);
        }
    }

    /// Reads a whole frame of the switch, which may be padded. The nonce is not looked at.
    ///
    /// # Errors
    /// [`Error::Truncated`], or [`Error::BadField`] for another `EtherType` or version, an unknown kind, epoch 0, or an
    /// address that is not of its family.
    pub fn parse(frame: &[u8]) -> Result<Self, Error> {
        let body = body(frame)?;
        let common: &[u8; COMMON_END] = header(body, Layer::Notice)?;
        let epoch = be32(common, 4);
        if epoch == 0 {
            return Err(Error::field(Layer::Notice, "epoch", epoch));
        }
        let lifetime = Duration::from_millis(be16(common, 8).into());
        match common[3] {
            KIND_HEARTBEAT => Ok(Self::Heartbeat { epoch, lifetime }),
            KIND_MANAGED => Ok(Self::Managed { epoch, lifetime, flow: parse_flow(body)? }),
            KIND_OFFLINE => Ok(Self::Offline { epoch, flow: parse_flow(body)? }),
            kind => Err(Error::field(Layer::Notice, "kind", kind)),
        }
    }

    /// Incarnation of the switch.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        match self {
            Self::Heartbeat { epoch, .. }
            | Self::Managed { epoch, .. }
            | Self::Offline { epoch, .. } => *epoch,
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Heartbeat { .. } => KIND_HEARTBEAT,
            Self::Managed { .. } => KIND_MANAGED,
            Self::Offline { .. } => KIND_OFFLINE,
        }
    }
}

/// The nonce that a notice of the switch bears; `None` if it bears none.
#[must_use]
pub fn nonce(frame: &[u8]) -> Option<u64> {
    let body: &[u8; NONCE_END] = header(body(frame).ok()?, Layer::Notice).ok()?;
    Some(u64::from_be_bytes(array(body, FLOW_END))).filter(|&nonce| nonce != 0)
}

/// What the module in a guest says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestNonce {
    /// What notices have to bear, never 0.
    pub nonce: u64,
    /// It reads names in SYN-ACKs ([`name`](crate::name)).
    pub reads_names: bool,
}

impl GuestNonce {
    /// Reads the frame in which a guest says its nonce.
    ///
    /// # Errors
    /// As [`Notice::parse`]; also for a nonce of zero.
    pub fn parse(frame: &[u8]) -> Result<Self, Error> {
        let common: &[u8; COMMON_END] = header(body(frame)?, Layer::Notice)?;
        expect("kind", common[3].into(), KIND_NONCE.into())?;
        let nonce = nonce(frame).ok_or(Error::field(Layer::Notice, "nonce", 0_u8))?;
        Ok(Self { nonce, reads_names: be16(common, 10) & READS_NAMES != 0 })
    }

    /// Writes the frame in which the guest with the address `src` says this.
    pub fn write_frame(&self, src: MacAddr, frame: &mut [u8; MAX_FRAME_LEN]) {
        write_common(src, NEAREST_BRIDGE, KIND_NONCE, self.nonce, frame);
        let (_, notice) = frame.split_at_mut(ethernet::HEADER_LEN);
        put16(notice, 10, if self.reads_names { READS_NAMES } else { 0 });
    }
}

fn write_common(src: MacAddr, dst: MacAddr, kind: u8, nonce: u64, frame: &mut [u8; MAX_FRAME_LEN]) {
    frame.fill(0);
    let (link, notice) = frame.split_at_mut(ethernet::HEADER_LEN);
    link[..6].copy_from_slice(&dst.0);
    link[6..12].copy_from_slice(&src.0);
    put16(link, 12, ETHERTYPE);
    put16(notice, 0, MAGIC);
    notice[2] = VERSION;
    notice[3] = kind;
    notice[FLOW_END..].copy_from_slice(&nonce.to_be_bytes());
}

/// What follows the Ethernet header of a notice of our version.
fn body(frame: &[u8]) -> Result<&[u8], Error> {
    let link: &[u8; ethernet::HEADER_LEN] = header(frame, Layer::Ethernet)?;
    expect("EtherType", be16(link, 12), ETHERTYPE)?;
    let body = tail(frame, ethernet::HEADER_LEN);
    let common: &[u8; COMMON_END] = header(body, Layer::Notice)?;
    expect("magic", be16(common, 0), MAGIC)?;
    expect("version", common[2].into(), VERSION.into())?;
    Ok(body)
}

fn expect(field: &'static str, value: u16, expected: u16) -> Result<(), Error> {
    if value == expected { Ok(()) } else { Err(Error::field(Layer::Notice, field, value)) }
}

/// The bytes by which notices name a flow, given as the guest transmits it.
pub(crate) fn flow_bytes(flow: &FiveTuple) -> [u8; FLOW_END - COMMON_END] {
    let mut notice = [0; FLOW_END];
    write_flow(flow, &mut notice);
    array(&notice, COMMON_END)
}

/// `notice` holds at least [`FLOW_END`] bytes.
fn write_flow(flow: &FiveTuple, notice: &mut [u8]) {
    notice[12] = if flow.is_ipv6 { 6 } else { 4 };
    notice[16..32].copy_from_slice(&flow.src.octets());
    notice[32..48].copy_from_slice(&flow.dst.octets());
    put16(notice, 48, flow.src_port);
    put16(notice, 50, flow.dst_port);
}

fn parse_flow(body: &[u8]) -> Result<FiveTuple, Error> {
    let b: &[u8; FLOW_END] = header(body, Layer::Notice)?;
    let src = Ipv6Addr::from(array::<16, _>(b, 16));
    let dst = Ipv6Addr::from(array::<16, _>(b, 32));
    let mapped = src.to_ipv4_mapped().is_some() && dst.to_ipv4_mapped().is_some();
    let is_ipv6 = match b[12] {
        4 if mapped => false,
        6 => true,
        family => return Err(Error::field(Layer::Notice, "address family", family)),
    };
    let (src_port, dst_port) = (be16(b, 48), be16(b, 50));
    Ok(FiveTuple { src, dst, src_port, dst_port, protocol: PROTOCOL_TCP, is_ipv6, vlan: 0 })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const LIFETIME: Duration = Duration::from_millis(300);
    const SWITCH: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const GUEST: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const NONCE: u64 = 0x0102_0304_0506_0708;

    fn frame(notice: &Notice) -> Vec<u8> {
        let mut frame = [0xff; MAX_FRAME_LEN];
        notice.write_frame(SWITCH, GUEST, NONCE, &mut frame);
        frame.to_vec()
    }

    fn flow() -> FiveTuple {
        FiveTuple::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), PROTOCOL_TCP)
            .with_ports(40_000, 80)
    }

    /// The guest's reader is another program: the bytes themselves are the contract.
    #[test]
    fn bytes_of_a_heartbeat_and_of_a_managed_notice() {
        let heartbeat = frame(&Notice::Heartbeat { epoch: 0x0102_0304, lifetime: LIFETIME });
        let link = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
        assert_eq!(heartbeat.len(), 74);
        assert_eq!(heartbeat[..14], link);
        assert_eq!(heartbeat[14..26], [0x46, 0x57, 1, 1, 1, 2, 3, 4, 1, 44, 0, 0]);
        assert!(heartbeat[26..66].iter().all(|&byte| byte == 0));
        assert_eq!(heartbeat[66..], [1, 2, 3, 4, 5, 6, 7, 8]);

        let lifetime = Duration::from_millis(0x0102);
        let managed = frame(&Notice::Managed { epoch: 5, lifetime, flow: flow() });
        assert_eq!(managed.len(), 74);
        assert_eq!(managed[14..30], [0x46, 0x57, 1, 2, 0, 0, 0, 5, 1, 2, 0, 0, 4, 0, 0, 0]);
        let guest = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        assert_eq!(managed[30..46], guest);
        assert_eq!(managed[58..66], [10, 0, 0, 2, 0x9c, 0x40, 0, 80]);
        assert_eq!(managed[66..], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_guest_says_its_nonce_to_the_nearest_bridge_and_the_switch_repeats_it() {
        let guest = GuestNonce { nonce: NONCE, reads_names: true };
        let mut bytes = [0xff; MAX_FRAME_LEN];
        guest.write_frame(GUEST, &mut bytes);
        let link = [1, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
        assert_eq!((&bytes[..14], &bytes[14..18]), (&link[..], &[0x46, 0x57, 1, 4][..]));
        assert_eq!(bytes[24..26], [0, 1]);
        assert_eq!(GuestNonce::parse(&bytes), Ok(guest));
        assert!(Notice::parse(&bytes).is_err(), "it is no notice of a switch");
        let heartbeat = frame(&Notice::Heartbeat { epoch: 1, lifetime: LIFETIME });
        assert_eq!(nonce(&heartbeat), Some(NONCE));
        assert!(GuestNonce::parse(&heartbeat).is_err());
        for end in 0..bytes.len() {
            assert!(GuestNonce::parse(&bytes[..end]).is_err());
            assert_eq!(nonce(&heartbeat[..end]), None);
        }
        bytes[66..].fill(0);
        assert!(GuestNonce::parse(&bytes).is_err());
    }

    /// An older one answers a notice of the switch with the same bytes but kind and nonce, and the switch has sent zero there.
    #[test]
    fn an_older_module_reads_no_names() {
        let mut bytes = frame(&Notice::Managed { epoch: 1, lifetime: LIFETIME, flow: flow() });
        bytes[17] = 4;
        assert_eq!(GuestNonce::parse(&bytes), Ok(GuestNonce { nonce: NONCE, reads_names: false }));
    }

    #[test]
    fn what_is_not_a_notice_is_refused_by_field() {
        let good = frame(&Notice::Offline { epoch: 1, flow: flow() });
        assert!(Notice::parse(&good).is_ok());
        let field_after = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            match Notice::parse(&bad) {
                Err(Error::BadField { field, .. }) => field,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(field_after(12, 0x08), "EtherType");
        assert_eq!(field_after(14, 0), "magic");
        assert_eq!(field_after(16, 2), "version");
        assert_eq!(field_after(17, 0), "kind");
        assert_eq!(field_after(17, 4), "kind");
        assert_eq!(field_after(21, 0), "epoch");
        assert_eq!(field_after(26, 5), "address family");
        // IPv4 that is not mapped into IPv6.
        assert_eq!(field_after(30, 1), "address family");
        // The nonce behind it is no part of what it says.
        for len in 0..good.len() - 8 {
            assert!(matches!(Notice::parse(&good[..len]), Err(Error::Truncated(_))), "{len}");
        }
    }

    #[test]
    fn a_lifetime_that_does_not_fit_is_the_longest() {
        let heartbeat = Notice::Heartbeat { epoch: 1, lifetime: Duration::from_secs(1000) };
        let Ok(Notice::Heartbeat { lifetime, .. }) = Notice::parse(&frame(&heartbeat)) else {
            panic!()
        };
        assert_eq!(lifetime, Duration::from_millis(65_535));
    }

    fn any_flow() -> impl Strategy<Value = FiveTuple> {
        let addresses = prop_oneof![
            any::<[u32; 2]>().prop_map(|[a, b]| FiveTuple::v4(a.into(), b.into(), PROTOCOL_TCP)),
            any::<[u128; 2]>().prop_map(|[a, b]| FiveTuple::v6(a.into(), b.into(), PROTOCOL_TCP)),
        ];
        (addresses, any::<u16>(), any::<u16>()).prop_map(|(flow, a, b)| flow.with_ports(a, b))
    }

    fn any_notice() -> impl Strategy<Value = Notice> {
        prop_oneof![
            (1u32.., any::<u16>()).prop_map(|(epoch, ms)| {
                Notice::Heartbeat { epoch, lifetime: Duration::from_millis(ms.into()) }
            }),
            (1u32.., any::<u16>(), any_flow()).prop_map(|(epoch, ms, flow)| {
                Notice::Managed { epoch, lifetime: Duration::from_millis(ms.into()), flow }
            }),
            (1u32.., any_flow()).prop_map(|(epoch, flow)| Notice::Offline { epoch, flow }),
        ]
    }

    proptest! {
        #[test]
        fn notices_round_trip(notice in any_notice(), padding in 0usize..8) {
            let mut bytes = frame(&notice);
            bytes.resize(bytes.len() + padding, 0xaa);
            prop_assert_eq!(Notice::parse(&bytes), Ok(notice));
            let meta = crate::parse(&bytes, bytes.len()).unwrap();
            prop_assert!(meta.tcp().is_none());
        }

        #[test]
        fn any_bytes_are_a_notice_or_an_error(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..100), valid in any_notice(), keep in 0usize..MAX_FRAME_LEN,
        ) {
            for (byte, valid) in bytes.iter_mut().zip(frame(&valid)).take(keep) {
                *byte = valid;
            }
            if let Ok(notice) = Notice::parse(&bytes) {
                prop_assert_eq!(Notice::parse(&frame(&notice)), Ok(notice));
            }
        }
    }
}
