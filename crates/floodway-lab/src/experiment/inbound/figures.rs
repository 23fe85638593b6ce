//! From what was seen to figures.

use std::time::Duration;

use floodway_netem::model::ETHERNET_OVERHEAD;
use floodway_netem::report::PortCounters;
use floodway_report::{Measured, Samples};
use floodway_switch::api::control::InboundStatus;

use super::traffic::{Counts, Transfer};
use super::{Inbound, SETTLE};

/// A change of rates counts as done after this long.
const CONVERGED: Duration = Duration::from_millis(100);
/// A rate may be off its share by so much.
const TOLERANCE: f64 = 0.1;

/// Port and switch at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub at: Duration,
    /// Bytes on the wire that the port has sent, and packets that it dropped.
    pub wire: u64,
    pub dropped: u64,
    /// For each VM: rate and measured rate, in bits per second, and active connections.
    pub vms: Vec<(f64, f64, u32)>,
}

impl Look {
    pub fn new(at: Duration, port: Option<&PortCounters>, status: &InboundStatus) -> Self {
        let low = port.map(|port| port.egress.low).unwrap_or_default();
        let vms = status.ports.iter();
        Self {
            at,
            wire: low.sent.bytes + low.sent.packets * u64::from(ETHERNET_OVERHEAD),
            dropped: low.dropped.packets,
            vms: vms.map(|p| (p.rate_bps as f64, p.measured_bps as f64, p.active)).collect(),
        }
    }
}

/// One variant.
#[derive(Debug)]
pub(super) struct Variant {
    pub looks: Vec<Look>,
    pub transfers: Vec<Transfer>,
    pub counts: Counts,
    /// The longest time by which the emulator of the port was late.
    pub emulator_late_us: f64,
}

impl Variant {
    /// Looks from the end of the start on, without the last half second, in which transfers end.
    fn steady(&self) -> &[Look] {
        let end = self.looks.last().map_or(Duration::ZERO, |look| look.at);
        let from = self.looks.partition_point(|look| look.at < SETTLE);
        let to = self.looks.partition_point(|look| look.at + Duration::from_millis(500) < end);
        self.looks.get(from..to).unwrap_or_default()
    }

    fn total(&self) -> f64 {
        rate(self.steady())
    }

    /// The least total of any second.
    fn worst_second(&self) -> f64 {
        let steady = self.steady();
        let windows = (0..steady.len()).filter_map(|from| {
            let second = &steady[from..];
            let to =
                second.iter().position(|look| look.at >= second[0].at + Duration::from_secs(1))?;
            Some(rate(&second[..=to]))
        });
        windows.fold(f64::INFINITY, f64::min)
    }

    fn drops(&self) -> f64 {
        let steady = self.steady();
        let dropped = |look: Option<&Look>| look.map_or(0, |look| look.dropped);
        (dropped(steady.last()) - dropped(steady.first())) as f64
    }

    /// Share of looks at VMs with connections, later than [`CONVERGED`] after the last change of a rate, at which a VM
    /// received within [`TOLERANCE`] of its rate.
    fn follows(&self) -> f64 {
        let (mut within, mut all) = (0_u32, 0_u32);
        let steady = self.steady();
        let mut changed = Duration::ZERO;
        for pair in steady.windows(2) {
            let [before, now] = pair else { continue };
            if before.vms.iter().zip(&now.vms).any(|(b, n)| b.0 != n.0) {
                changed = now.at;
            }
            if now.at < changed + CONVERGED {
                continue;
            }
            for &(rate, measured, _) in now.vms.iter().filter(|vm| vm.2 > 0 && vm.0 > 0.0) {
                all += 1;
                within += u32::from((measured / rate - 1.0).abs() <= TOLERANCE);
            }
        }
        f64::from(within) / f64::from(all)
    }

    /// Jain's index over the rates of all connections.
    fn jain(&self) -> f64 {
        let rates = self.transfers.iter().flat_map(|t| {
            let seconds = f64::from(t.group.end - t.group.begin);
            t.bytes.iter().map(move |bytes| bytes / seconds)
        });
        let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for rate in rates {
            (n, sum, squares) = (n + 1.0, sum + rate, squares + rate * rate);
        }
        sum * sum / (n * squares)
    }
}

/// Bits per second on the wire between the first and the last look.
fn rate(looks: &[Look]) -> f64 {
    match looks {
        [first, .., last] => {
            (last.wire - first.wire) as f64 * 8.0 / (last.at - first.at).as_secs_f64()
        }
        _ => f64::NAN,
    }
}

/// The rows of one variant.
pub(super) fn add(
    measured: &mut Measured,
    scenario: &Inbound,
    variant_name: &str,
    variant: &Variant,
) {
    let link = f64::from(scenario.mbit) * 1e6;
    let steady_counts = scenario.connections.iter().all(|[first, last]| first == last);
    measured.add_value(
        format!("total {variant_name}"),
        "of the port's rate",
        variant.total() / link,
    );
    measured.add_value(
        format!("worst second {variant_name}"),
        "of the port's rate",
        variant.worst_second() / link,
    );
    measured.add_value(
        format!("drops after convergence {variant_name}"),
        "packets",
        variant.drops(),
    );
    if steady_counts {
        measured.add_value(format!("Jain's index {variant_name}"), "1", variant.jain());
        for vm in 0..scenario.connections.len() {
            let of_vm = variant.transfers.iter().filter(|t| t.group.vm == vm);
            let bytes: f64 = of_vm.flat_map(|t| &t.bytes).sum();
            let mbit = bytes * 8e-6 / f64::from(scenario.seconds);
            measured.add_value(format!("vm{} {variant_name}", vm + 1), "Mbit/s", mbit);
        }
    }
    add_rates(measured, variant_name, variant);
    if variant_name != super::Policy::Off.name() {
        measured.add_value(
            format!("looks within 10 % of the rate {variant_name}"),
            "1",
            variant.follows(),
        );
    }
    let Counts { timeouts, retransmits } = variant.counts;
    measured.add_value(format!("retransmissions {variant_name}"), "segments", retransmits as f64);
    measured.add_value(format!("time-outs {variant_name}"), "time-outs", timeouts as f64);
    let late = variant.emulator_late_us / 1e3;
    measured.add_value(format!("emulator late, longest {variant_name}"), "ms", late);
}

/// What each VM received, and all of them together, look by look: the paper's figure 3. Looks are [`super::POLL`] apart.
fn add_rates(measured: &mut Measured, variant_name: &str, variant: &Variant) {
    let vms = variant.looks.first().map_or(0, |look| look.vms.len());
    let all = |look: &Look| look.vms.iter().map(|vm| vm.1).sum::<f64>();
    let rates = |of: &dyn Fn(&Look) -> f64| variant.looks.iter().map(|l| of(l) * 1e-6).collect();
    let of_vms = (0..vms).map(|vm| {
        let own = move |look: &Look| look.vms.get(vm).map_or(0.0, |vm| vm.1);
        (format!("vm{}", vm + 1), rates(&own))
    });
    let of_all = std::iter::once(("total".to_owned(), rates(&all)));
    measured.samples.extend(of_vms.chain(of_all).map(|(who, value)| Samples {
        name: format!("{who} over time {variant_name}"),
        unit: "Mbit/s".into(),
        value,
        ..Samples::default()
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::inbound::schedule::Group;

    const NONE: Counts = Counts { timeouts: 0, retransmits: 0 };

    fn look(ms: u64, wire: u64, rate: f64, measured: f64) -> Look {
        let vms = vec![(rate, measured, 1)];
        Look { at: Duration::from_millis(ms), wire, dropped: ms, vms }
    }

    #[test]
    fn a_change_has_its_time() {
        // 1000 bytes per ms, but for one second of half of that.
        let wire = |ms: u64| 1000 * ms - 500 * (ms.clamp(4000, 5000) - 4000);
        let looks = (0..200).map(|n| {
            let ms = 50 * n;
            let rate = if ms < 6000 { 10.0 } else { 20.0 };
            look(ms, wire(ms), rate, if ms < 6050 { 10.0 } else { 20.0 })
        });
        let variant = Variant {
            looks: looks.collect(),
            transfers: vec![],
            counts: NONE,
            emulator_late_us: 0.0,
        };
        assert_eq!(variant.follows(), 1.0);
        assert!((variant.worst_second() - 4e6).abs() < 1e5, "{}", variant.worst_second());
        assert!(variant.total() > 7e6 && variant.total() < 8e6);
    }

    #[test]
    fn rates_over_time_are_those_of_each_vm_and_their_sum() {
        let mut two = look(0, 0, 1e6, 2e6);
        two.vms.push((1e6, 3e6, 1));
        let variant =
            Variant { looks: vec![two], transfers: vec![], counts: NONE, emulator_late_us: 0.0 };
        let mut measured = Measured::default();
        add_rates(&mut measured, "dynamic", &variant);
        let found: Vec<_> =
            measured.samples.iter().map(|one| (one.name.as_str(), one.value[0])).collect();
        let expected = [
            ("vm1 over time dynamic", 2.0),
            ("vm2 over time dynamic", 3.0),
            ("total over time dynamic", 5.0),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn jains_index() {
        let group = Group { vm: 0, count: 2, begin: 0, end: 2 };
        let transfer = |bytes| Transfer { group, bytes };
        let variant = |bytes| Variant {
            looks: vec![],
            transfers: vec![transfer(bytes)],
            counts: NONE,
            emulator_late_us: 0.0,
        };
        assert_eq!(variant(vec![5.0, 5.0]).jain(), 1.0);
        assert_eq!(variant(vec![5.0, 0.0]).jain(), 0.5);
    }
}
