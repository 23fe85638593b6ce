//! The attacks, what each needs, and what is fair beside it.

use clap::ValueEnum;
use serde::Serialize;

/// The host that the filter of the uplink's interface drops frames to.
pub const REFUSED: u8 = 8;

/// An attack, named by what the attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A VM sends 64-byte frames without end: no attack, but what a busy VM costs others.
    SmallFrames,
    /// The eventfd for interrupts is full: a write to it blocks.
    BlockedCall,
    /// A VM's shared memory is cut to nothing while frames are copied.
    ShrunkMemory,
    /// As many regions of a page as can be had, and indirect tables of 1023 descriptors all over them.
    RegionWalk,
    /// A dirty log, and receive descriptors of 4 GiB.
    DirtyLog,
    /// The VMM opens its QMP socket and never answers.
    SilentQmp,
    /// A front-end connects, shares memory and goes, thousands of times a second.
    Reconnects,
    /// GSO packets with a segment size of 48 to a VM that takes none.
    GsoPackets,
    /// 64-byte frames on 16 queue pairs.
    QueuePairs,
    /// Broadcasts.
    Broadcasts,
    /// Neighbour advertisements in others' names.
    ForgedNeighbours,
    /// 1024 small flows to invented destinations beyond the uplink, beside a victim's bulk.
    InventedDestinations,
    /// Frames to a destination that the host's filter drops, so that the system refuses them (ENOBUFS).
    RefusedDestination,
    /// Broadcasts from the network.
    UplinkBroadcasts,
    /// The port of a VM that sends 64-byte frames without end is captured. It sends in calm slices, too.
    Capture,
}

/// How the switch is set up for an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    None,
    /// Victim and partner are VMs.
    Beside,
    /// The victim's partner is beyond the uplink, whose rate in Mbit/s is limited, if at all.
    Between {
        rate_mbit: Option<u32>,
    },
}

impl Kind {
    /// As on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Why it cannot be staged against OVS-DPDK, if so.
    pub fn not_on_ovs(self) -> Option<&'static str> {
        match self {
            Self::SilentQmp => Some("it asks no VMM"),
            Self::Reconnects => Some("it connects to the front-end itself, once a second"),
            Self::GsoPackets => Some("without TSO it takes none, and with it cuts none"),
            Self::InventedDestinations => Some("it has no classes"),
            Self::Capture => Some("it captures nothing by itself"),
            Self::RefusedDestination | Self::UplinkBroadcasts => {
                Some("its uplinks are DPDK's devices")
            }
            _ => None,
        }
    }

    pub const fn uplink(self) -> Uplink {
        match self {
            Self::InventedDestinations => Uplink::Between { rate_mbit: Some(500) },
            Self::RefusedDestination => Uplink::Between { rate_mbit: None },
            Self::UplinkBroadcasts => Uplink::Beside,
            _ => Uplink::None,
        }
    }

    /// Queue pairs of the attacker's port.
    pub const fn queue_pairs(self) -> u16 {
        if matches!(self, Self::QueuePairs) { 16 } else { 1 }
    }

    /// Hostile VMs that always have something to send.
    const fn senders(self) -> u8 {
        if matches!(self, Self::BlockedCall | Self::ShrunkMemory) { 2 } else { 1 }
    }

    /// The victim's fair share of what it had when it was alone, 0 to 1, if the attackers' share of the worker's work was `share`. Each VM
    /// that always has work is due the same; what it does not use is the others'.
    pub fn fair_share(self, share: Option<f64>) -> f64 {
        let due = 1.0 - 1.0 / f64::from(self.senders() + 1);
        match self.uplink() {
            // The sender is there in calm slices, too.
            _ if self == Self::Capture => 1.0,
            Uplink::Between { rate_mbit: Some(_) } => 1.0 - due,
            _ => 1.0 - share.unwrap_or(0.0).min(due),
        }
    }

    /// What the victims must keep of their fair share.
    pub const fn kept(self) -> f64 {
        if matches!(self, Self::Capture) { 0.97 } else { 0.9 }
    }

    /// What [`Self::fair_share`] goes by, for people.
    pub const fn fairness(self) -> &'static str {
        match (self.uplink(), self.senders()) {
            _ if matches!(self, Self::Capture) => {
                "what there is beside the same VM without a capture"
            }
            (Uplink::Between { rate_mbit: Some(_) }, _) => "half of the link",
            (_, 1) => "what the attacker is not charged for, at least half of the worker",
            _ => {
                "what the two attackers are not charged for, at least the third of the worker that each is due"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fair_is_what_the_attacker_leaves_and_at_least_half() {
        let fair = |share| Kind::SmallFrames.fair_share(share);
        assert_eq!(fair(None), 1.0);
        assert!((fair(Some(0.2)) - 0.8).abs() < 1e-9);
        assert!((fair(Some(0.9)) - 0.5).abs() < 1e-9, "an attacker that took more took too much");
    }

    #[test]
    fn two_attackers_are_due_two_thirds() {
        let fair = Kind::BlockedCall.fair_share(Some(0.9));
        assert!((fair - 1.0 / 3.0).abs() < 1e-9, "{fair}");
    }

    #[test]
    fn on_a_link_that_both_fill_fair_is_half_of_it() {
        assert_eq!(Kind::InventedDestinations.fair_share(Some(0.01)), 0.5);
    }

    #[test]
    fn a_capture_takes_next_to_nothing_of_others() {
        assert_eq!((Kind::Capture.fair_share(Some(0.6)), Kind::Capture.kept()), (1.0, 0.97));
        assert_eq!(Kind::SmallFrames.kept(), 0.9);
    }

    #[test]
    fn each_attack_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> =
            Kind::value_variants().iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::value_variants().len());
        assert!(names.contains("region-walk"));
    }
}
