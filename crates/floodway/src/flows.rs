//! `floodway flows`: the TCP connections that the switch offloads.

use floodway_switch::api::control::FlowStatus;
use floodway_switch::control::ControlClient;

use crate::cli::FlowsArgs;
use crate::output;
use crate::table::{self, Column};

/// Prints the flows once, or again and again.
///
/// # Errors
/// The switch does not answer or has no such port, or standard output takes no more.
pub fn flows(args: &FlowsArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&args.control.path)?;
    output::repeat(args.watch, !args.json, || {
        let (flows, more) =
            output::collect(args, |query| client.flows(query).map(|page| (page.flows, page.next)))?;
        if args.json { output::json(&flows, args.watch) } else { Ok(render(&flows, more)) }
    })
}

fn render(flows: &[FlowStatus], more: bool) -> String {
    let guest = |flow: &FlowStatus| match flow.vlan {
        None => flow.guest.clone(),
        Some(vlan) => format!("{} vlan {vlan}", flow.guest),
    };
    let ssthresh = |flow: &FlowStatus| {
        // As in Linux: no threshold has been found yet.
        if flow.ssthresh >= 1 << 30 { "-".to_owned() } else { flow.ssthresh.to_string() }
    };
    let rtt =
        |flow: &FlowStatus| flow.srtt_us.map_or_else(|| "-".to_owned(), |us| format!("{us} us"));
    let columns: [Column<'_, FlowStatus>; 14] = [
        ("PORT", &|f| f.port.clone()),
        ("GUEST", &guest),
        ("PEER", &|f| f.peer.clone()),
        ("TX", &|f| f.tx.clone()),
        ("REASON", &|f| f.reason.clone()),
        ("RX", &|f| f.rx.clone()),
        ("CWND", &|f| f.cwnd.to_string()),
        ("SSTHRESH", &ssthresh),
        ("HELD", &|f| f.held.to_string()),
        ("IN FLIGHT", &|f| f.in_flight.to_string()),
        ("GRANTED", &|f| f.granted.to_string()),
        ("KEPT", &|f| f.kept.to_string()),
        ("OWED", &|f| f.owed.to_string()),
        ("RTT", &rtt),
    ];
    let table = table::columns(flows, 6, &columns);
    output::with_more(table, "no flows", more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_a_line() {
        let flow = FlowStatus {
            port: "vm1".into(),
            guest: "10.0.0.1:40000".into(),
            peer: "10.0.0.9:80".into(),
            vlan: None,
            tx: "ACTIVE".into(),
            rx: "OFFLINE".into(),
            reason: "opened".into(),
            cwnd: 14_480,
            ssthresh: u32::MAX,
            held: 1_448,
            in_flight: 13_032,
            granted: 65_536,
            srtt_us: Some(93),
            kept: 0,
            owed: 7,
        };
        let text = render(&[flow], true);
        let lines: Vec<_> = text.lines().collect();
        let words: Vec<_> = lines[1].split_whitespace().collect();
        let expected = "vm1 10.0.0.1:40000 10.0.0.9:80 ACTIVE opened OFFLINE 14480 - 1448 13032 65536 0 7 93 us";
        assert_eq!(words.join(" "), expected);
        assert_eq!((lines.len(), lines[0].split_whitespace().next()), (3, Some("PORT")));
        assert_eq!(render(&[], false), "no flows");
    }
}
