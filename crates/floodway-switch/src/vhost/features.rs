//! Feature bits: what is offered, and what the guest's choice means for its queues.
//!
//! Offered protocol features and why not the others:
//! * `INFLIGHT_SHMFD` would add a log write per descriptor; chains complete in order here, so the
//!   used ring itself says what is in flight (see [`crate::queues::virtqueue`]).
//!
//! `LOG_SHMFD` and `LOG_ALL` are the front-end's business, for live migration ([`crate::memory::dirty_log`]); guests never see them.

use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;

use crate::frame::vnet_offload::Offloads;
use crate::queues::rx::RxFeatures;
use crate::queues::tx::TxFeatures;

macro_rules! virtio_features {
    ($($(#[doc = $doc:literal])+ $name:ident = $bit:literal,)+) => {
        $($(#[doc = $doc])+ pub const $name: u64 = 1 << $bit;)+

        /// Names of the bits in `features`, lowest bit first.
        #[must_use]
        pub fn names(features: u64) -> Vec<&'static str> {
            [$((stringify!($name), $name),)+]
                .into_iter()
                .filter(|(_, bit)| features & bit != 0)
                .map(|(name, _)| name)
                .collect()
        }
    };
}

virtio_features! {
    /// The guest may send frames whose checksum is not filled in.
    CSUM = 0,
    /// The guest takes frames whose checksum is not filled in.
    GUEST_CSUM = 1,
    /// The device's configuration holds its MTU.
    MTU = 3,
    /// The guest takes IPv4 GSO packets.
    GUEST_TSO4 = 7,
    /// The guest takes IPv6 GSO packets.
    GUEST_TSO6 = 8,
    /// The guest takes GSO packets with CWR set.
    GUEST_ECN = 9,
    /// The guest may send IPv4 GSO packets.
    HOST_TSO4 = 11,
    /// The guest may send IPv6 GSO packets.
    HOST_TSO6 = 12,
    /// The guest may send GSO packets with CWR set.
    HOST_ECN = 13,
    /// A received frame may fill several descriptor chains.
    MRG_RXBUF = 15,
    /// The guest can announce itself after a migration.
    GUEST_ANNOUNCE = 21,
    /// Several queue pairs.
    MQ = 22,
    /// Writes to the guest's memory are noted for its migration.
    LOG_ALL = 26,
    /// The virtio-net header and the frame may share descriptors.
    ANY_LAYOUT = 27,
    /// Descriptor tables outside the ring.
    INDIRECT_DESC = 28,
    /// Notifications by index.
    EVENT_IDX = 29,
    /// The vhost-user protocol has features of its own.
    PROTOCOL_FEATURES = 30,
    /// virtio 1.x.
    VERSION_1 = 32,
}

/// Everything that a port with one queue pair offers.
const OFFERED: u64 = CSUM
    | GUEST_CSUM
    | MTU
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MRG_RXBUF
    | GUEST_ANNOUNCE
    | LOG_ALL
    | ANY_LAYOUT
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1;

/// The virtio features that a port with `queue_pairs` offers.
#[must_use]
pub fn offered(queue_pairs: u16) -> u64 {
    if queue_pairs > 1 { OFFERED | MQ } else { OFFERED }
}

/// Features that front-ends know and no port offers: their bits and names.
const NEVER_OFFERED: [(u32, &str); 3] = [(17, "CTRL_VQ"), (34, "RING_PACKED"), (35, "IN_ORDER")];

/// A front-end has acknowledged virtio features that its port does not offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the port does not offer {0}")]
pub struct NotOffered(String);

/// Checks what a front-end acknowledges to a port with `queue_pairs`.
///
/// # Errors
/// Some of it was not offered.
pub fn check(features: u64, queue_pairs: u16) -> Result<(), NotOffered> {
    match features & !offered(queue_pairs) {
        0 => Ok(()),
        more => Err(NotOffered(name_bits(more))),
    }
}

/// The bits of `features`, lowest first, by name where they have one.
fn name_bits(features: u64) -> String {
    let name = |bit: u32| {
        let never = NEVER_OFFERED.iter().find(|(other, _)| *other == bit).map(|(_, name)| *name);
        match names(1 << bit).first().copied().or(never) {
            Some(name) => format!("{name} (bit {bit})"),
            None => format!("bit {bit}"),
        }
    };
    let bits = (0..u64::BITS).filter(|bit| features & (1 << bit) != 0);
    bits.map(name).collect::<Vec<_>>().join(", ")
}

/// The vhost-user protocol features that every port offers.
#[must_use]
pub fn protocol() -> Protocol {
    Protocol::MQ
        | Protocol::REPLY_ACK
        | Protocol::MTU
        | Protocol::CONFIGURE_MEM_SLOTS
        | Protocol::RESET_DEVICE
        | Protocol::STATUS
        | Protocol::RARP
        | Protocol::LOG_SHMFD
}

fn hdr_len(features: u64) -> usize {
    use floodway_wire::vnet;
    if features & (VERSION_1 | MRG_RXBUF) != 0 { vnet::LEN } else { vnet::LEGACY_LEN }
}

/// What the guest's choice means for its receive queues.
#[must_use]
pub fn rx(features: u64) -> RxFeatures {
    let has = |bit| features & bit != 0;
    let csum = has(GUEST_CSUM);
    RxFeatures {
        mergeable: has(MRG_RXBUF),
        hdr_len: hdr_len(features),
        // GSO packets come with unfinished checksums.
        offloads: Offloads {
            csum,
            tso4: csum && has(GUEST_TSO4),
            tso6: csum && has(GUEST_TSO6),
            ecn: has(GUEST_ECN),
        },
    }
}

/// What the guest's choice means for its transmit queues.
#[must_use]
pub fn tx(features: u64) -> TxFeatures {
    let has = |bit| features & bit != 0;
    TxFeatures {
        hdr_len: hdr_len(features),
        offloads: Offloads {
            csum: has(CSUM),
            tso4: has(HOST_TSO4),
            tso6: has(HOST_TSO6),
            ecn: has(HOST_ECN),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_offered_is_named() {
        assert_eq!(check(offered(2), 2), Ok(()));
        let error = |features| check(features, 1).unwrap_err().to_string();
        assert_eq!(error(VERSION_1 | MQ), "the port does not offer MQ (bit 22)");
        assert_eq!(
            error((1 << 34) | (1 << 35) | (1 << 63)),
            "the port does not offer RING_PACKED (bit 34), IN_ORDER (bit 35), bit 63"
        );
    }
}
