//! `floodway inbound`: how the link into the host is divided, shown and changed.

use floodway_switch::api::control::{InboundChange, InboundPort, InboundStatus};
use floodway_switch::control::ControlClient;

use crate::cli::{InboundArgs, Toggle};
use crate::output;
use crate::table::{on_off, table};

/// Changes what is to be changed, and prints the division once, or again and again.
///
/// # Errors
/// The switch does not answer, or refuses a setting.
pub fn inbound(args: &InboundArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&args.control.path)?;
    let change = change(args);
    if change != InboundChange::default() {
        client.set_inbound(&change)?;
    }
    output::repeat(args.watch, !args.json, || {
        let status = client.inbound()?;
        if args.json { output::json(&status, args.watch) } else { Ok(render(&status)) }
    })
}

fn change(args: &InboundArgs) -> InboundChange {
    let is_on = |toggle| toggle == Toggle::On;
    InboundChange {
        capacity_mbit: args.capacity,
        minimum_kbit: args.minimum,
        policy: args.policy.clone(),
        weight_cap: args.weight_cap,
        water_fill: args.water_fill.map(is_on),
        idle_ms: args.idle,
        burst_bytes: args.burst,
        police_udp: args.police_udp.map(is_on),
    }
}

fn mbit(bps: u64) -> String {
    format!("{}.{:02}", bps / 1_000_000, bps % 1_000_000 / 10_000)
}

fn render(status: &InboundStatus) -> String {
    if status.capacity_bps == 0 {
        return "off; set a capacity to divide the link into this host".to_owned();
    }
    let cap = match (status.policy.as_str(), status.weight_cap) {
        ("connections", cap) if cap > 0 => format!(", at most {cap} count"),
        _ => String::new(),
    };
    let summary = format!(
        "capacity {} Mbit/s, by {}{cap}, at least {} Mbit/s each, unused shares lent: {}",
        mbit(status.capacity_bps),
        status.policy,
        mbit(status.minimum_bps),
        on_off(status.water_fill),
    );
    let header = ["PORT", "WEIGHT", "ACTIVE", "WAITING", "RATE Mbit/s", "MEASURED Mbit/s"];
    let row = |port: &InboundPort| {
        [
            port.name.clone(),
            port.weight.to_string(),
            port.active.to_string(),
            port.waiting.to_string(),
            mbit(port.rate_bps),
            mbit(port.measured_bps),
        ]
    };
    let rows = status.ports.iter().map(row).collect();
    match table(header, 1, rows) {
        Some(table) => format!("{summary}\n\n{table}"),
        None => summary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_line() {
        assert!(render(&InboundStatus::default()).starts_with("off"));
        let port = InboundPort {
            name: "vm1".into(),
            weight: 5,
            active: 7,
            rate_bps: 250_004_000,
            measured_bps: 99_990_000,
            ..InboundPort::default()
        };
        let status = InboundStatus {
            capacity_bps: 1_000_000_000,
            minimum_bps: 500_000,
            policy: "connections".into(),
            weight_cap: 5,
            ports: vec![port],
            ..InboundStatus::default()
        };
        let text = render(&status);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "capacity 1000.00 Mbit/s, by connections, at most 5 count, at least 0.50 Mbit/s each, unused shares lent: off"
        );
        let words: Vec<_> = lines[3].split_whitespace().collect();
        assert_eq!(words, ["vm1", "5", "7", "0", "250.00", "99.99"]);
    }
}
