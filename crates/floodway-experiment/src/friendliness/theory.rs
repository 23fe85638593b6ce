//! Response functions: the average window of a standard flow at a given probability of loss.
//!
//! # Theory of operation
//! - *Reno*: `1.2 / sqrt(p)` segments (RFC 3649 section 2), for losses that are single and random.
//! - *CUBIC*: the larger of its own function, `((C * (3 + beta)) / (4 * (1 - beta)))^(1/4) * RTT^(3/4) / p^(3/4)` with `C` = 0.4 and
//!   `beta` = 0.7, and the Reno-friendly one, `sqrt(3 / (2p))` (RFC 9438 sections 4.3 and 5.1).
//!
//! Both assume that a sender always has data, a loss costs no timeout, and `p` is so small that the window is many segments. A
//! flow's rate is the window by its round trip.

/// Reno's constant in RFC 3649 section 2.
const RENO: f64 = 1.2;
/// CUBIC's constants.
const C: f64 = 0.4;
const BETA: f64 = 0.7;

/// Returns the average window in segments at the probability of loss `p` and the round trip `rtt_s` in seconds, or `None` if the
/// congestion control has no function here.
pub fn window(congestion: &str, p: f64, rtt_s: f64) -> Option<f64> {
    match congestion {
        "reno" | "newreno" => Some(RENO / p.sqrt()),
        "cubic" => Some(cubic(p, rtt_s).max((1.5 / p).sqrt())),
        _ => None,
    }
}

fn cubic(p: f64, rtt_s: f64) -> f64 {
    let factor = (C * (3.0 + BETA) / (4.0 * (1.0 - BETA))).powf(0.25);
    factor * (rtt_s / p).powf(0.75)
}

/// Returns the rate in Mbit/s of payload for segments of `mss` bytes, as [`window`].
pub fn rate(congestion: &str, p: f64, rtt_s: f64, mss: u32) -> Option<f64> {
    Some(window(congestion, p, rtt_s)? * f64::from(mss) * 8e-6 / rtt_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reno_has_the_windows_of_the_rfcs_table() {
        // RFC 3649, table 1: 12 segments at 1 %, 38 at 0.1 %, 120 at 0.01 %.
        for (p, segments) in [(1e-2, 12.0), (1e-3, 38.0), (1e-4, 120.0)] {
            let w = window("reno", p, 0.1).unwrap();
            assert!((w - segments).abs() < 0.6, "{p}: {w}");
        }
    }

    #[test]
    fn cubic_has_the_windows_of_the_rfcs_tables() {
        // RFC 9438, table 1 (RTT 0.1 s) and table 2 (RTT 0.01 s): average windows in segments.
        for (p, rtt, segments) in [
            (1e-2, 0.1, 12.0),
            (1e-3, 0.1, 38.0),
            (1e-4, 0.1, 187.0),
            (1e-5, 0.1, 1054.0),
            (1e-4, 0.01, 120.0),
            (1e-6, 0.01, 1200.0),
            (1e-7, 0.01, 5926.0),
        ] {
            let w = window("cubic", p, rtt).unwrap();
            // The tables are for a Reno of 1.2 / sqrt(p).
            assert!((w / segments - 1.0).abs() < 0.05, "{p} {rtt}: {w}");
        }
    }

    #[test]
    fn a_rate_is_a_window_per_round_trip() {
        let rate = rate("reno", 0.01, 0.02, 1448).unwrap();
        assert!((rate - 12.0 * 1448.0 * 8e-6 / 0.02).abs() < 1e-9);
        assert_eq!(window("vegas", 0.01, 0.02), None);
    }
}
