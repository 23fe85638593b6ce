//! Where the time of whole transfers goes: into the connection, the data, and waits for a time slice that no
//! offload removes.

use floodway_report::{stats, table};

use super::observation::{Measure, Observation};
use super::{Direction, Variant};

/// Times of all transfers of a variant in one cell.
#[derive(Clone, Debug)]
pub struct Phases {
    variant: Variant,
    /// For each transfer, in ms: until the connection was there, the data phase, and the whole.
    times: Vec<[f64; 3]>,
}

impl Phases {
    /// Nothing yet.
    pub fn new(variant: Variant) -> Self {
        Self { variant, times: Vec::new() }
    }

    /// Takes in what a block of `variant` has observed.
    pub fn extend(&mut self, variant: Variant, direction: Direction, block: &[Vec<Observation>]) {
        let data = if direction == Direction::Out { Measure::DataOut } else { Measure::DataIn };
        if variant != self.variant {
            return;
        }
        let complete = block.iter().flatten().filter(|observation| observation.is_complete());
        self.times.extend(complete.filter_map(|observation| {
            let sent = &observation.sent;
            let data = observation.nanoseconds(data, direction)?;
            Some([sent.connect_ns, data, sent.whole_ns].map(milliseconds))
        }));
    }

    /// In words: the mean whole, and its parts.
    pub fn describe(&self) -> Option<String> {
        let mean = |of: fn(&[f64; 3]) -> f64| {
            stats::mean(&self.times.iter().map(of).collect::<Vec<_>>()).map(table::number)
        };
        Some(format!(
            "{} {} ms = {} connect + {} data + {} other waits",
            self.variant.name(),
            mean(|&[_, _, whole]| whole)?,
            mean(|&[connect, ..]| connect)?,
            mean(|&[_, data, _]| data)?,
            mean(|&[connect, data, whole]| whole - connect - data)?,
        ))
    }
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use floodway_guest::transfer::{Arrival, Sent};

    use super::*;

    #[test]
    fn the_parts_add_up_to_the_whole_and_failures_do_not_count() {
        let ms = 1_000_000;
        let arrival = Arrival { id: 1, bytes: 1, intact: true, first_ns: 5 * ms, last_ns: 8 * ms };
        let sent = Sent {
            id: 1,
            receiver: 0,
            connect_ns: 2 * ms,
            acked_ns: None,
            reply_ns: 0,
            whole_ns: 10 * ms,
            error: None,
        };
        let good = Observation { sent, arrival: Some(arrival) };
        let lost = Observation { arrival: None, ..good.clone() };
        let mut phases = Phases::new(Variant::Transmit);
        assert_eq!(phases.describe(), None);
        phases.extend(Variant::Transmit, Direction::Out, &[vec![good.clone(), lost]]);
        phases.extend(Variant::Vanilla, Direction::Out, &[vec![good]]);
        let text = phases.describe().unwrap();
        assert_eq!(text, "transmit 10 ms = 2 connect + 3 data + 5 other waits");
    }
}
