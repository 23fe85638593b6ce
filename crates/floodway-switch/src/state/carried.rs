//! The networks that a port or uplink carries, without tags and with.
//!
//! # Theory of operation
//! At most one network is carried without tags (the native VLAN), any number with tags of 802.1Q. An access port carries one, without; a trunk port or uplink
//! carries some with. Inside the switch frames have no tags: one is taken off where a frame comes in ([`take_tag`]), which says what network it is
//! in, and put on where it goes out ([`Carried::put_tag`]). A priority tag (VID 0) counts as none.
//!
//! What a port or uplink has for each of its networks, such as storm limits, is kept with them.

use std::collections::BTreeMap;

use floodway_core::l2::NetworkId;

use crate::config::NetworkConfig;
use crate::frame::describe::special;
use crate::frame::{Frame, vlan};
use crate::stats::DropReason;

/// The network of frames that are in none: 802.1Q reserves the number.
pub const NO_NETWORK: NetworkId = NetworkId(0xfff);

/// The networks of a port or uplink, and a `T` for each. See the module's theory of operation.
pub struct Carried<T> {
    untagged: Option<NetworkId>,
    all: BTreeMap<NetworkId, T>,
}

impl<T> Carried<T> {
    /// Carries `untagged` without tags and `tagged` with; `each` makes what is kept for a network.
    pub fn new(
        untagged: Option<&NetworkConfig>,
        tagged: &[NetworkConfig],
        mut each: impl FnMut(&NetworkConfig) -> T,
    ) -> Self {
        let all = untagged.into_iter().chain(tagged);
        let all = all.map(|network| (NetworkId(network.vid), each(network))).collect();
        Self { untagged: untagged.map(|network| NetworkId(network.vid)), all }
    }

    /// The network that is carried without tags.
    #[must_use]
    pub const fn untagged(&self) -> Option<NetworkId> {
        self.untagged
    }

    /// Returns `true` if the network is carried, tagged or not.
    #[must_use]
    pub fn carries(&self, network: NetworkId) -> bool {
        self.all.contains_key(&network)
    }

    /// What is kept for a network; `None` if that is not carried.
    #[must_use]
    pub fn get(&self, network: NetworkId) -> Option<&T> {
        self.all.get(&network)
    }

    /// The networks, tagged or not.
    pub fn networks(&self) -> impl Iterator<Item = NetworkId> + '_ {
        self.all.keys().copied()
    }

    /// What is kept for all networks.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.all.values()
    }

    /// The network of a frame with VLAN identifier `vid`, 0 in a priority tag or without any. `None` if no such network is carried.
    #[must_use]
    pub fn network_of(&self, vid: u16) -> Option<NetworkId> {
        if vid == 0 {
            return self.untagged;
        }
        let network = NetworkId(vid);
        (Some(network) != self.untagged && self.carries(network)).then_some(network)
    }

    /// Calls `f` with a frame of `network`, which is carried, as it is on this side: behind a tag unless the network has none here. What the switch says to a guest
    /// that is in no network without tags has none.
    pub fn put_tag<R>(
        &self,
        network: NetworkId,
        frame: &Frame<'_>,
        f: impl FnOnce(&Frame<'_>) -> R,
    ) -> R {
        match self.untagged == Some(network) || network == NO_NETWORK {
            true => f(frame),
            false => vlan::with_tag(frame, network.0, f),
        }
    }
}

/// Calls `f` with the VLAN identifier of a frame that [is tagged](crate::frame::describe::Special::Tagged), and with the frame without its tag. Behind that
/// there must be no other one: nobody takes two.
///
/// # Errors
/// [`DropReason::VlanFiltered`] for another tag than 802.1Q's or for a second one; or what `f` returns.
pub fn take_tag<R>(
    frame: &Frame<'_>,
    f: impl FnOnce(u16, &Frame<'_>) -> Result<R, DropReason>,
) -> Result<R, DropReason> {
    let vid = vlan::outer_vid(frame.prefix).ok_or(DropReason::VlanFiltered)?;
    vlan::without_tag(frame, |frame| match special(frame.prefix) {
        None => f(vid, frame),
        Some(_) => Err(DropReason::VlanFiltered),
    })
}
