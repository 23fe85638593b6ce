//! `floodway offload`: the settings of a port, shown and changed.

use floodway_switch::api::control::{OffloadChange, OffloadSettings};
use floodway_switch::api::transmit::{Transmit, TransmitSetting};
use floodway_switch::control::ControlClient;

use crate::cli::{OffloadArgs, Toggle};
use crate::output;
use crate::table::{on_off, table};

/// Changes what is to be changed, and prints all settings.
///
/// # Errors
/// The switch does not answer, has no such port, or refuses a setting.
pub fn offload(args: &OffloadArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&args.control.path)?;
    let change = change(args);
    let settings = if change == OffloadChange::default() {
        client.offload(&args.port)?
    } else {
        client.set_offload(&args.port, &change)?
    };
    output::repeat(None, false, || {
        if args.json { output::json(&settings, None) } else { Ok(render(&settings)) }
    })
}

fn change(args: &OffloadArgs) -> OffloadChange {
    let is_on = |toggle| toggle == Toggle::On;
    OffloadChange {
        transmit: args.transmit,
        receive: args.receive.map(is_on),
        congestion: args.congestion.clone(),
        buffer: args.buffer.clone(),
        budget: args.budget,
        receive_budget: args.receive_budget,
        initial_window: args.initial_window,
        early_ack_delay_ms: args.early_ack_delay,
        peer_timeout_s: args.peer_timeout,
        ..OffloadChange::default()
    }
}

/// `on` for the mode that was the only one.
fn transmit(setting: TransmitSetting) -> String {
    match setting.0 {
        Transmit::Module => on_off(true).to_owned(),
        mode => mode.name().to_owned(),
    }
}

fn render(settings: &OffloadSettings) -> String {
    let rows = [
        ("transmit", transmit(settings.transmit)),
        ("receive", on_off(settings.receive).to_owned()),
        ("local", settings.local.clone()),
        ("congestion", settings.congestion.clone()),
        ("initial_window", settings.initial_window.to_string()),
        ("buffer", settings.buffer.clone()),
        ("budget", settings.budget.to_string()),
        ("receive_budget", settings.receive_budget.to_string()),
        ("max_flows", settings.max_flows.to_string()),
        ("idle_s", settings.idle_s.to_string()),
        ("min_rto_ms", settings.min_rto_ms.to_string()),
        ("early_ack_delay_ms", settings.early_ack_delay_ms.to_string()),
        ("peer_timeout_s", settings.peer_timeout_s.to_string()),
    ];
    let rows = rows.map(|(name, value)| [name.to_owned(), value]).to_vec();
    table(["SETTING", "VALUE"], 1, rows).unwrap_or_default()
}
