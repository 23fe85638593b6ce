//! Friendliness: does an offloaded flow take more of a path than the algorithm that it runs allows?
//!
//! # Theory of operation
//! A *cell* is a congestion control and a path: round trip, random loss, and a bottleneck with a drop-tail queue, or none. In each cell
//! *groups* of senders transfer without end towards one receiver, one group after the other; all senders of a group share the path at
//! the same time:
//!
//! | sender | is |
//! |---|---|
//! | `offloaded` | a guest whose transmit offload is on |
//! | `guest` | the same guest on its own congestion control |
//! | `linux`, `second-linux` | a Linux TCP sender that waits for no CPU |
//!
//! So `["offloaded", "linux"]` asks whether the two share a bottleneck, `["second-linux", "linux"]` whether two of the same kind do
//! (what chance and the path's queue allow), and three groups of one sender each compare what they reach alone.
//!
//! Rates count what the receiver has got after `settle_s`, in `seconds` more. Every [`LOOK`] the senders' state is recorded, too: round trip,
//! window, retransmissions, timeouts, recoveries. So a difference can be explained, and the gain of the offload divided into what a
//! shorter round trip gives (the switch does not wait for the VM's CPU) and the rest: at a given loss the rate of a standard flow is inversely
//! proportional to its round trip ([`theory`]).
//!
//! Both worlds yield [`Trial`]s, and [`measured`] makes the same rows of them.

mod cell;
mod figures;
pub mod theory;
mod trial;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::series::Series;

pub use cell::{Cell, Queue};
pub use figures::measured;
pub use trial::{LOOK, Look, Sender, Trace, Trial};

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Friendliness {
    /// Kernel of the guest.
    pub kernel: Series,
    /// Groups of senders that transfer at the same time, one group after the other.
    pub groups: Vec<Vec<Sender>>,
    /// Congestion controls: `reno`, `cubic`.
    pub congestion: Vec<String>,
    /// Round trips that the path adds, in ms.
    pub rtt_ms: Vec<f64>,
    /// Packets of the data that get lost at random, in percent.
    #[serde(default = "no_loss")]
    pub loss_percent: Vec<f64>,
    /// Rates of the bottleneck on the wire, in Mbit/s. Empty: there is none.
    #[serde(default)]
    pub mbit: Vec<u32>,
    /// Queues of the bottleneck.
    #[serde(default)]
    pub queue: Vec<Queue>,
    /// Seconds at the start that do not count.
    pub settle_s: u32,
    /// Seconds that count.
    pub seconds: u32,
    /// Trials of each group in each cell.
    #[serde(default = "one")]
    pub rounds: u32,
    /// Cells to measure, by name; `*` stands for any text.
    #[serde(default = "every")]
    pub cells: String,
}

fn no_loss() -> Vec<f64> {
    vec![0.0]
}

const fn one() -> u32 {
    1
}

fn every() -> String {
    "*".into()
}

impl Friendliness {
    /// Makes it shorter, and returns what the report has to say of that.
    pub fn shorten(&mut self) -> String {
        self.settle_s = self.settle_s.min(4);
        self.seconds = self.seconds.min(8);
        self.rounds = 1;
        format!("quick: {} s for each group, once; no measurement to rely on", self.seconds)
    }

    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// When there is nothing to measure.
    pub fn check(&self) -> Result<()> {
        ensure!(self.seconds >= 1 && self.rounds >= 1, "seconds, rounds: at least 1");
        ensure!(self.groups.iter().all(|group| !group.is_empty()), "groups: one has no sender");
        ensure!(!self.groups.is_empty(), "groups: there is none");
        ensure!(self.mbit.is_empty() == self.queue.is_empty(), "mbit and queue go together");
        ensure!(!self.all_cells().is_empty(), "cells = {:?}: there is none", self.cells);
        Ok(())
    }

    /// The cells, in the order of measuring.
    pub fn all_cells(&self) -> Vec<Cell> {
        let bottlenecks: Vec<_> = match self.mbit.is_empty() {
            true => vec![None],
            false => {
                let with = |&mbit| self.queue.iter().map(move |queue| Some((mbit, queue.clone())));
                self.mbit.iter().flat_map(with).collect()
            }
        };
        let mut cells = Vec::new();
        for congestion in &self.congestion {
            for &rtt_ms in &self.rtt_ms {
                for &loss_percent in &self.loss_percent {
                    cells.extend(bottlenecks.iter().map(|bottleneck| Cell {
                        congestion: congestion.clone(),
                        rtt_ms,
                        loss_percent,
                        bottleneck: bottleneck.clone(),
                    }));
                }
            }
        }
        cells.retain(|cell| floodway_report::band::matches(&self.cells, &cell.name()));
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(more: &str) -> Friendliness {
        let text = format!(
            "kernel = \"6.1\"\ngroups = [[\"offloaded\", \"linux\"]]\ncongestion = [\"reno\", \"cubic\"]\nrtt_ms = [20]\n\
             settle_s = 10\nseconds = 60\n{more}"
        );
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn cells_are_all_combinations_that_the_pattern_names() {
        let queues = "mbit = [10, 200]\nqueue = [{ name = \"shallow\", bdp = 0.5 }, { name = \"deep\", bdp = 2.0 }]";
        let mut all = scenario(queues);
        let names: Vec<_> = all.all_cells().iter().map(Cell::name).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[1], "reno 10 Mbit/s deep");
        assert_eq!(all.all_cells()[1].queue_bytes(), Some(50_000));
        // Half the 1.2 ms that a packet takes there, so that arrivals spread over all of them.
        assert_eq!(all.all_cells()[1].jitter_ms(), 0.6056);
        all.cells = "cubic * shallow".into();
        let names: Vec<_> = all.all_cells().iter().map(Cell::name).collect();
        assert_eq!(names, ["cubic 10 Mbit/s shallow", "cubic 200 Mbit/s shallow"]);
        all.check().unwrap();
        all.cells = "vegas*".into();
        assert!(all.check().is_err());
    }

    #[test]
    fn a_path_without_a_bottleneck_is_named_by_loss_and_round_trip() {
        let all = scenario("loss_percent = [0.3, 1]");
        let names: Vec<_> = all.all_cells().iter().map(Cell::name).collect();
        assert_eq!(
            names,
            ["reno 0.3 % 20 ms", "reno 1 % 20 ms", "cubic 0.3 % 20 ms", "cubic 1 % 20 ms"]
        );
        assert_eq!(all.all_cells()[0].queue_bytes(), None);
        assert_eq!(all.all_cells()[0].jitter_ms(), 0.0);
    }

    #[test]
    fn senseless_scenarios_are_refused() {
        assert!(scenario("mbit = [10]").check().is_err());
        assert!(scenario("rounds = 0").check().is_err());
        let mut empty = scenario("");
        empty.groups = vec![vec![]];
        assert!(empty.check().is_err());
    }
}
