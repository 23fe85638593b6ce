//! `floodway pairs`: what guests send where, and which class it is in.

use floodway_switch::api::control::PairStatus;
use floodway_switch::control::ControlClient;

use crate::cli::FlowsArgs;
use crate::{output, table};

/// Prints the pairs once, or again and again.
///
/// # Errors
/// The switch does not answer or has no such port, or standard output takes no more.
pub fn pairs(args: &FlowsArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&args.control.path)?;
    output::repeat(args.watch, !args.json, || {
        let (pairs, more) =
            output::collect(args, |query| client.pairs(query).map(|page| (page.pairs, page.next)))?;
        if args.json { output::json(&pairs, args.watch) } else { Ok(render(&pairs, more)) }
    })
}

fn render(pairs: &[PairStatus], more: bool) -> String {
    let header = ["PORT", "DESTINATION", "UPLINK", "CLASS", "RATE", "TOKENS", "IDLE"];
    let row = |pair: &PairStatus| {
        [
            pair.port.clone(),
            pair.destination.clone().unwrap_or_else(|| "not IP".to_owned()),
            pair.uplink.clone(),
            pair.class.clone(),
            rate(pair.rate_bps),
            pair.tokens.to_string(),
            format!("{:.1} s", pair.idle_ms as f64 / 1000.0),
        ]
    };
    let table = table::table(header, 4, pairs.iter().map(row).collect());
    output::with_more(table, "no pairs", more)
}

/// Bits per second in Mbit/s, as the configuration has them.
fn rate(bits_per_second: u64) -> String {
    format!("{:.2} Mbit/s", bits_per_second as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_a_line() {
        let pair = PairStatus {
            port: "vm1".into(),
            uplink: "up0".into(),
            destination: Some("10.0.0.9".into()),
            class: "low".into(),
            rate_bps: 941_200_000,
            tokens: 12,
            idle_ms: 1234,
        };
        let other = PairStatus { destination: None, class: "high".into(), ..pair.clone() };
        let text = render(&[pair, other], true);
        let words = |line: usize| -> Vec<_> {
            text.lines().nth(line).unwrap_or_default().split_whitespace().collect()
        };
        assert_eq!(words(1).join(" "), "vm1 10.0.0.9 up0 low 941.20 Mbit/s 12 1.2 s");
        assert_eq!(words(2)[1..5], ["not", "IP", "up0", "high"]);
        assert!(words(3).contains(&"--limit"));
        assert_eq!(render(&[], false), "no pairs");
    }
}
