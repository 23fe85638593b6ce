//! What is compared, and how a running testbed is switched over to it.

use anyhow::{Context, Result};
use floodway_experiment::transfer::{Column, Profile};

use super::tcp::{self, Place};
use crate::experiment::testbed::Network;
use crate::switch_process::{Offload, Switch};
use crate::vm::Vm;

/// The agent's binary, which is also the loader of the guest's congestion control.
const LOADER: &str = "/init";
/// Name of the congestion control that [`LOADER`] registers.
const OFFLOADED: &str = "floodway";

/// What connects the guests.
pub fn network(column: Column) -> Network {
    match column {
        Column::Bridge => Network::Bridge,
        _ => Network::Floodway,
    }
}

/// What the switch does for the port, with a profile's algorithm and first window.
pub fn offload(column: Column, profile: Profile) -> Offload {
    let (transmit, receive, buffer) = match column {
        Column::Vanilla | Column::Bridge => (false, false, None),
        Column::Transmit => (true, false, None),
        Column::Receive => (false, true, None),
        Column::Offload => (true, true, None),
        Column::NoPolicy => (true, false, Some("none")),
        Column::Fair => (true, false, Some("fair")),
        Column::Prioritised => (true, false, Some("prioritised")),
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
            .set_offload(guest.name(), &offload(column, profile))
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
            let offload = offload(column, Profile::Era2011);
            assert_eq!(offload.transmit, column.transmits());
            assert_eq!(offload.transmit || offload.receive, column.offloads());
            assert_eq!(offload.congestion, column.transmits().then_some("reno"));
            assert_eq!(offload.initial_window, column.transmits().then_some(3));
        }
    }
}
