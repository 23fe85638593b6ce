//! What is compared, and how a running testbed is switched over to it.

use anyhow::{Context, Result};
use floodway_experiment::transfer::{Profile, Variant};

use super::tcp::{self, Place};
use crate::experiment::testbed::Network;
use crate::switch_process::{Offload, Switch};
use crate::vm::Vm;

/// The agent's binary, which is also the loader of the guest's congestion control.
const LOADER: &str = "/init";
/// Name of the congestion control that [`LOADER`] registers.
const OFFLOADED: &str = "floodway";

/// What connects the guests.
pub fn network(variant: Variant) -> Network {
    match variant {
        Variant::Bridge => Network::Bridge,
        _ => Network::Floodway,
    }
}

/// What the switch does for the port, with a profile's algorithm and first window.
pub fn offload(variant: Variant, profile: Profile) -> Offload {
    let (transmit, receive, buffer) = match variant {
        Variant::Vanilla | Variant::Bridge => (false, false, None),
        Variant::Transmit | Variant::Agentless | Variant::Auto => (true, false, None),
        Variant::Receive => (false, true, None),
        Variant::Offload => (true, true, None),
        Variant::NoPolicy => (true, false, Some("none")),
        Variant::Fair => (true, false, Some("fair")),
        Variant::Prioritised => (true, false, Some("prioritised")),
    };
    Offload {
        transmit,
        mode: (transmit && !variant.needs_module()).then(|| variant.name()),
        receive,
        buffer,
        budget: None,
        congestion: transmit.then(|| profile.congestion_control()),
        initial_window: transmit.then(|| profile.initial_window()),
    }
}

/// Prepares a guest for all variants of a profile.
///
/// # Errors
/// When the guest refuses.
pub fn prepare(guest: &Vm, variants: &[Variant], profile: Profile) -> Result<()> {
    let place = Place::Guest(guest);
    tcp::start_every_connection_alike(place)?;
    tcp::set_initial_window(place, profile.initial_window())?;
    if variants.iter().any(|variant| variant.needs_module()) {
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

/// Switches a guest over to a variant: its switch's offload of its port, and its own
/// congestion control. Connections of another variant must be over.
///
/// # Errors
/// When the switch or the guest refuses; the error says so when the switch has no offload.
pub fn activate(
    variant: Variant,
    variants: &[Variant],
    profile: Profile,
    switch: &Switch,
    guest: &Vm,
) -> Result<()> {
    if variants.iter().any(|variant| variant.offloads()) {
        switch
            .set_offload(guest.name(), &offload(variant, profile))
            .with_context(|| format!("variant `{}`", variant.name()))?;
    }
    let algorithm = if variant.needs_module() { OFFLOADED } else { profile.congestion_control() };
    tcp::set_congestion_control(Place::Guest(guest), algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_transmits_brings_the_profile_to_the_switch() {
        let all = [
            Variant::Vanilla,
            Variant::Bridge,
            Variant::Transmit,
            Variant::Receive,
            Variant::Offload,
            Variant::NoPolicy,
            Variant::Fair,
            Variant::Prioritised,
            Variant::Agentless,
            Variant::Auto,
        ];
        for variant in all {
            let offload = offload(variant, Profile::Era2011);
            assert_eq!(offload.transmit, variant.transmits());
            let mode = matches!(variant, Variant::Agentless | Variant::Auto);
            assert_eq!(offload.mode, mode.then(|| variant.name()));
            assert_eq!(offload.transmit || offload.receive, variant.offloads());
            assert_eq!(offload.congestion, variant.transmits().then_some("reno"));
            assert_eq!(offload.initial_window, variant.transmits().then_some(3));
        }
    }
}
