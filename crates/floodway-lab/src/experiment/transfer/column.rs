//! What is compared, and how a running testbed is switched over to it.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::profile::Profile;
use super::tcp::{self, Place};
use crate::experiment::testbed::Network;
use crate::switch_process::{Offload, Switch};
use crate::vm::Vm;

/// The agent's binary, which is also the loader of the guest's congestion control.
const LOADER: &str = "/init";
/// Name of the congestion control that [`LOADER`] registers.
const OFFLOADED: &str = "floodway";

/// One side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    /// The switch, with offload off, and an unmodified guest.
    Vanilla,
    /// Linux bridge and tap.
    Bridge,
    /// Transmit offload.
    Transmit,
    /// Receive offload.
    Receive,
    /// Transmit and receive offload.
    Offload,
    /// Transmit offload without a buffer policy.
    #[serde(rename = "none")]
    NoPolicy,
    /// Transmit offload, equal shares of the buffer.
    Fair,
    /// Transmit offload, larger shares for flows with short round trips.
    Prioritised,
}

impl Column {
    /// As the file names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Bridge => "bridge",
            Self::Transmit => "transmit",
            Self::Receive => "receive",
            Self::Offload => "offload",
            Self::NoPolicy => "none",
            Self::Fair => "fair",
            Self::Prioritised => "prioritised",
        }
    }

    /// What connects the guests.
    pub fn network(self) -> Network {
        match self {
            Self::Bridge => Network::Bridge,
            _ => Network::Floodway,
        }
    }

    /// What the switch does for the port, with a profile's algorithm and first window.
    pub fn offload(self, profile: Profile) -> Offload {
        let (transmit, receive, buffer) = match self {
            Self::Vanilla | Self::Bridge => (false, false, None),
            Self::Transmit => (true, false, None),
            Self::Receive => (false, true, None),
            Self::Offload => (true, true, None),
            Self::NoPolicy => (true, false, Some("none")),
            Self::Fair => (true, false, Some("fair")),
            Self::Prioritised => (true, false, Some("prioritised")),
        };
        Offload {
            transmit,
            receive,
            buffer,
            budget: None,
            congestion: transmit.then(|| profile.congestion_control()),
            initial_window: transmit.then(|| profile.initial_window()),
        }
    }

    fn transmits(self) -> bool {
        !matches!(self, Self::Vanilla | Self::Bridge | Self::Receive)
    }

    /// Whether the switch does anything for the guest.
    pub fn offloads(self) -> bool {
        self.transmits() || self == Self::Receive
    }
}

/// Prepares a guest for all columns of a profile.
///
/// # Errors
/// When the guest refuses.
pub fn prepare(guest: &Vm, columns: &[Column], profile: Profile) -> Result<()> {
    let place = Place::Guest(guest);
    tcp::start_every_connection_alike(place)?;
    tcp::set_initial_window(place, profile.initial_window())?;
    if columns.iter().any(|column| column.transmits()) {
        install(guest, profile)?;
    }
    Ok(())
}

/// Loads the guest's side of the transmit offload, with the profile's algorithm as its shadow, in
/// place of what an earlier profile has loaded.
fn install(guest: &Vm, profile: Profile) -> Result<()> {
    let window = profile.initial_window().to_string();
    let words = [
        LOADER,
        "install",
        "--algorithm",
        profile.congestion_control(),
        "--initial-window",
        &window,
    ];
    guest.agent().exec(&words).map(drop).context("cannot install the guest's congestion control")
}

/// Switches a guest over to a column: its switch's offload of its port, and its own
/// congestion control. Connections of another column must be over.
///
/// # Errors
/// When the switch or the guest refuses; the error says so when the switch has no offload.
pub fn activate(
    column: Column,
    columns: &[Column],
    profile: Profile,
    switch: &Switch,
    guest: &Vm,
) -> Result<()> {
    if columns.iter().any(|column| column.offloads()) {
        switch
            .set_offload(guest.name(), &column.offload(profile))
            .with_context(|| format!("column `{}`", column.name()))?;
    }
    let algorithm = if column.transmits() { OFFLOADED } else { profile.congestion_control() };
    tcp::set_congestion_control(Place::Guest(guest), algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_transmits_brings_the_profile_to_the_switch() {
        let all = [
            Column::Vanilla,
            Column::Bridge,
            Column::Transmit,
            Column::Receive,
            Column::Offload,
            Column::NoPolicy,
            Column::Fair,
            Column::Prioritised,
        ];
        for column in all {
            let offload = column.offload(Profile::Era2011);
            assert_eq!(offload.transmit, column.transmits());
            assert_eq!(offload.transmit || offload.receive, column.offloads());
            assert_eq!(offload.congestion, column.transmits().then_some("reno"));
            assert_eq!(offload.initial_window, column.transmits().then_some(3));
        }
    }
}
