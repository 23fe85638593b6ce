//! What the guests counted: where messages were lost, and how often the cards interrupted.

use anyhow::{Context, Result};
use floodway_guest::protocol::Counters;

use super::NETWORKS;
use crate::experiment::testbed::{Network, Testbed};

/// The counts of one moment, or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// UDP messages that the sender's kernel sent.
    sent: f64,
    /// UDP messages that the receiver's program got.
    received: f64,
    /// UDP messages for which the receiver's socket had no room.
    overflowed: f64,
    /// Interrupts by the sender's card, of any kind: frames received, frames sent.
    sender: f64,
    /// Interrupts by the receiver's card.
    receiver: f64,
}

impl Counted {
    pub fn read(testbed: &Testbed, network: Network) -> Result<Self> {
        let [sender, receiver] = testbed.guests() else {
            anyhow::bail!("a sender and a receiver are needed, and no other");
        };
        let (from, to) = (sender.agent().counters()?, receiver.agent().counters()?);
        let card = NETWORKS.iter().position(|&n| n == network).context("no such network")?;
        let script = format!(
            "basename $(readlink -f /sys/class/net/eth{card}/device); cat /proc/interrupts"
        );
        let interrupts = |guest: &crate::vm::Vm| -> Result<f64> {
            let text = guest.agent().exec(&["sh", "-c", &script])?.stdout_text();
            interrupts(&text).with_context(|| format!("/proc/interrupts: {text}"))
        };
        Ok(Self {
            sent: count(&from, "UdpOutDatagrams"),
            received: count(&to, "UdpInDatagrams"),
            overflowed: count(&to, "UdpRcvbufErrors"),
            sender: interrupts(sender)?,
            receiver: interrupts(receiver)?,
        })
    }

    pub fn since(self, before: &Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            overflowed: self.overflowed - before.overflowed,
            sender: self.sender - before.sender,
            receiver: self.receiver - before.receiver,
        }
    }

    /// Name, unit and value of each figure, for counts of `seconds`.
    pub fn figures(&self, seconds: f64, datagrams: bool) -> Vec<(String, &'static str, f64)> {
        let mut figures = vec![
            ("sender's interrupts".into(), "1/s", self.sender / seconds),
            ("receiver's interrupts".into(), "1/s", self.receiver / seconds),
        ];
        if datagrams && self.sent > 0.0 {
            let percent = |messages: f64| 100.0 * messages.max(0.0) / self.sent;
            let on_the_way = self.sent - self.received - self.overflowed;
            figures.push(("lost on the way".into(), "%", percent(on_the_way)));
            figures.push(("lost at the socket".into(), "%", percent(self.overflowed)));
        }
        figures
    }
}

fn count(counters: &Counters, name: &str) -> f64 {
    counters.get(name).map_or(0.0, |&count| count as f64)
}

/// The interrupts of a card in `text`: a line with the name of its device, and /proc/interrupts. Devices that share a line share
/// its count.
fn interrupts(text: &str) -> Option<f64> {
    let (device, table) = text.split_once('\n')?;
    let mut lines = table.lines();
    let cpus = lines.next()?.split_whitespace().count();
    let is_of = |word: &str| {
        let rest = word.trim_end_matches(',').strip_prefix(device);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let of_line = |line: &str| -> f64 {
        line.split_whitespace().skip(1).take(cpus).filter_map(|n| n.parse::<f64>().ok()).sum()
    };
    Some(lines.filter(|line| line.split_whitespace().any(is_of)).map(of_line).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_its_own_lines_and_shares_some() {
        let table = "           CPU0       CPU1\n \
             10:  5  1  IO-APIC 10-fasteoi  virtio0, virtio1\n \
             24:  7  0  PCI-MSI 65536-edge  virtio2-input.0\n \
             25:  2  0  PCI-MSI 65537-edge  virtio2-output.0\n \
             26:  9  0  PCI-MSI 65537-edge  virtio21-output.0\n";
        assert_eq!(interrupts(&format!("virtio1\n{table}")), Some(6.0));
        assert_eq!(interrupts(&format!("virtio2\n{table}")), Some(9.0));
    }

    #[test]
    fn what_neither_arrived_nor_overflowed_was_lost_on_the_way() {
        let counted =
            Counted { sent: 200.0, received: 100.0, overflowed: 50.0, ..Counted::default() };
        let figures = counted.figures(2.0, true);
        let figure = |name: &str| figures.iter().find(|(n, ..)| n == name).map(|&(.., v)| v);
        assert_eq!(
            (figure("lost on the way"), figure("lost at the socket")),
            (Some(25.0), Some(25.0))
        );
        assert_eq!(counted.figures(2.0, false).len(), 2);
    }
}
