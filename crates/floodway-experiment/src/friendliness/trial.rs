//! What a group of senders did in a cell: the record that both worlds make.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cell::Cell;

/// Interval between two looks at the senders and the receiver.
pub const LOOK: Duration = Duration::from_millis(250);

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sender {
    /// A guest whose transmit offload is on.
    Offloaded,
    /// A guest on its own congestion control.
    Guest,
    /// A Linux TCP sender that waits for no CPU.
    Linux,
    /// Another of them.
    SecondLinux,
}

impl Sender {
    /// Name for rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offloaded => "offloaded",
            Self::Guest => "guest",
            Self::Linux => "Linux",
            Self::SecondLinux => "second Linux",
        }
    }

    /// Whether it is a VM.
    pub const fn is_guest(self) -> bool {
        matches!(self, Self::Offloaded | Self::Guest)
    }
}

/// A flow at one moment. Counters count from the start of the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Look {
    /// Time since the start of the group.
    pub at_ms: f64,
    /// Bytes that the receiver has got.
    pub bytes: u64,
    /// Smoothed round trip as whoever controls congestion measures it: the switch for an offloaded flow, the sender's kernel for others.
    pub srtt_ms: f64,
    /// Congestion window in segments.
    pub cwnd: f64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Fast recoveries entered.
    pub recoveries: u64,
}

/// A flow over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Whose flow.
    pub sender: Sender,
    /// In the order of time.
    pub looks: Vec<Look>,
}

/// What a group did in a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Where.
    pub cell: Cell,
    /// Which trial of that group there.
    pub round: u32,
    /// From when on, since the start of the group, it counts.
    pub settle_ms: f64,
    /// Payload of a segment.
    pub mss: u32,
    /// One for each sender of the group.
    pub traces: Vec<Trace>,
}

impl Trial {
    /// Returns the trace of `sender`, if it is in the group.
    pub fn trace(&self, sender: Sender) -> Option<&Trace> {
        self.traces.iter().find(|trace| trace.sender == sender)
    }

    /// Returns `true` if the group is these senders.
    pub fn is_of(&self, group: &[Sender]) -> bool {
        self.traces.iter().map(|trace| trace.sender).eq(group.iter().copied())
    }

    /// Returns the looks of a sender that count.
    fn counted(&self, sender: Sender) -> &[Look] {
        let looks = self.trace(sender).map_or(&[][..], |trace| &trace.looks);
        let first = looks.partition_point(|look| look.at_ms < self.settle_ms);
        &looks[first..]
    }

    /// Returns the rate of a sender in Mbit/s of payload.
    pub fn rate(&self, sender: Sender) -> Option<f64> {
        let [first, .., last] = self.counted(sender) else { return None };
        Some(rate(first, last))
    }

    /// Returns by how much a counter of a sender grew.
    pub fn growth(&self, sender: Sender, counter: fn(&Look) -> u64) -> Option<f64> {
        let [first, .., last] = self.counted(sender) else { return None };
        Some(counter(last).saturating_sub(counter(first)) as f64)
    }

    /// Returns the mean of a state of a sender, over the looks that have one.
    pub fn mean(&self, sender: Sender, state: fn(&Look) -> f64) -> Option<f64> {
        let known: Vec<f64> =
            self.counted(sender).iter().map(state).filter(|&value| value > 0.0).collect();
        floodway_report::stats::mean(&known)
    }

    /// Returns the rates of a sender in Mbit/s in each second from the start on.
    pub fn rates(&self, sender: Sender) -> Vec<f64> {
        let looks = self.trace(sender).map_or(&[][..], |trace| &trace.looks);
        let (mut rates, mut first) = (Vec::new(), None::<&Look>);
        for look in looks {
            match first {
                Some(begin) if look.at_ms - begin.at_ms >= SECOND.as_millis() as f64 => {
                    rates.push(rate(begin, look));
                    first = Some(look);
                }
                Some(_) => {}
                None => first = Some(look),
            }
        }
        rates
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Mbit/s between two looks.
fn rate(first: &Look, last: &Look) -> f64 {
    (last.bytes.saturating_sub(first.bytes)) as f64 * 8e-3 / (last.at_ms - first.at_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_the_settled_time_does_not_count() {
        // 1 Mbit/s in the first two seconds, 3 Mbit/s in the next two.
        let look = |n: u64| Look {
            at_ms: n as f64 * 500.0,
            bytes: 62_500 * n.min(4) + 187_500 * n.saturating_sub(4),
            srtt_ms: if n < 4 { 0.0 } else { n as f64 },
            timeouts: n,
            ..Look::default()
        };
        let traces = vec![Trace { sender: Sender::Linux, looks: (0..=8).map(look).collect() }];
        let cell =
            Cell { congestion: "reno".into(), rtt_ms: 20.0, loss_percent: 1.0, bottleneck: None };
        let trial = Trial { cell, round: 0, settle_ms: 2000.0, mss: 1448, traces };
        assert!((trial.rate(Sender::Linux).unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(trial.growth(Sender::Linux, |look| look.timeouts), Some(4.0));
        assert_eq!(trial.mean(Sender::Linux, |look| look.srtt_ms), Some(6.0));
        assert_eq!(trial.rate(Sender::Guest), None);
        let rates = trial.rates(Sender::Linux);
        assert_eq!(rates.len(), 4);
        assert!((rates[0] - 1.0).abs() < 1e-9 && (rates[3] - 3.0).abs() < 1e-9, "{rates:?}");
        assert!(trial.is_of(&[Sender::Linux]) && !trial.is_of(&[Sender::Linux, Sender::Guest]));
    }
}
