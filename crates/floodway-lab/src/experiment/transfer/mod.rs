//! Transfers of a VM that waits for its CPU: the main measurement of vFlood and vSnoop.
//!
//! # Theory of operation
//!
//! Some VMs share one core of the host (`contention`); one of them, the first, has a TCP connection to a
//! machine that does not wait. Transfers run between the two ([`floodway_guest::transfer`]) in *cells*: one host
//! situation, one path, one size, one number of flows, one profile. Within a cell the *variants* under
//! comparison take turns block by block, A B B A, in the same VMs, so that whatever drifts meets all
//! variants alike. A profile is a kind of host and guest: `2011` (Reno, initial window 3, vCPUs in round robin with
//! slices of 30 ms, as on Xen without wake-up boost) and `today` (CUBIC, initial window 10, the host's
//! EEVDF as it is).
//!
//! Figures are throughputs, bytes by time, per round of flows (one flow unless the cell has more;
//! else the median of the round's flows, which with `back_to_back` are not of the same time):
//!
//! | measure | from | to | taken at |
//! |---|---|---|---|
//! | `data-phase` of what a VM sends | first byte comes | last byte comes | receiver, kernel timestamps |
//! | `data-phase` of what a VM receives | first write | nothing unacknowledged | sender |
//! | `whole` | `connect` | last byte of the reply read | whoever connects |
//! | `aggregate` (several flows) | first byte of any | last byte of any | receiver |
//!
//! A data phase is never counted shorter than its bytes take on a link of `line_rate_mbit`: what
//! arrives in one burst has no duration of its own. Rounds are independent draws from the
//! scheduler's phases; a round that failed in one variant is left out of all.
//!
//! Beside them stand the guest kernel's own counters, because a guest that retransmits or times out
//! while the path is alive has been harmed by what was done for it.

mod cell;
pub(super) mod contention;
pub(super) mod far_end;
mod figures;
mod measure;
mod observation;
mod phases;
mod profile;
pub(super) mod tcp;
pub(super) mod variant;

use anyhow::Result;
use floodway_guest::transfer::HEADER;

pub use floodway_experiment::transfer::{
    Direction, Emulator, HostLoad, LEAST_BYTES, Path, Profile, Transfer, Variant,
};

use super::{Measured, RealScenario, Run};

// What a form may ask for, a transfer can carry.
const _: () = assert!(LEAST_BYTES == HEADER as u64);

impl RealScenario for Transfer {
    fn steps(&self) -> u64 {
        let boots = self.hosts.len() as u64;
        let situations = boots * (self.path_sets().len() * self.profiles.len()) as u64;
        let blocks = |bytes: u64, flows: &[u32]| {
            let blocks = self.rounds(bytes).div_ceil(block_rounds(self, bytes, flows));
            u64::from(blocks) * self.variants.len() as u64
        };
        let cells =
            self.bytes.iter().flat_map(|bytes| self.flows.iter().map(move |flows| (bytes, flows)));
        boots + situations * cells.map(|(bytes, flows)| blocks(*bytes, flows)).sum::<u64>()
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        Some(self.shorten())
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        self.check()?;
        let results = measure::run(self, run)?;
        figures::figures(self, &results)
    }
}

/// Rounds of one block with transfers of `bytes`: no more than asked for, no more results than fit into one answer of the agent, and no more bytes than
/// take a few seconds, since machines become slower and faster within a minute.
fn block_rounds(scenario: &Transfer, bytes: u64, flows: &[u32]) -> u32 {
    const RESULTS: u32 = 1000;
    const BYTES: u64 = 50_000_000;
    let flows: u32 = flows.iter().sum();
    let in_round = bytes.saturating_mul(flows.into());
    let by_bytes = u32::try_from(BYTES / in_round.max(1)).unwrap_or(u32::MAX);
    let rounds = scenario.rounds(bytes).min(by_bytes).min(RESULTS / flows.max(1));
    scenario.block.min(rounds).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Scenario};

    const TEXT: &str = r#"
        name = "t"
        title = "t"
        [scenario]
        kind = "transfer"
        direction = "out"
        kernel = "6.1"
        variants = ["vanilla", "transmit"]
        hosts = [{ vms = 2, load_percent = 60 }, { vms = 3, load_percent = 60 }]
        bytes = [10_000, 1_000_000_000]
        fewer = { from_bytes = 100_000_000, transfers = 12 }
        transfers = 100
    "#;

    #[test]
    fn steps_count_all_blocks() {
        let Scenario::Transfer(transfer) = Experiment::parse(TEXT).unwrap().scenario else {
            panic!("another scenario");
        };
        // 2 boots; 2 hosts, 2 profiles, 2 variants, 10 blocks of the small and 12 of the large size.
        assert_eq!(transfer.steps(), 2 + 2 * 2 * 2 * (10 + 12));
        let rounds = |bytes, flows| block_rounds(&transfer, bytes, &[flows]);
        assert_eq!((rounds(10_000, 100), rounds(10_000, 200)), (10, 5));
        assert_eq!(
            (rounds(5_000_000, 1), rounds(10_000_000, 1), rounds(100_000_000, 1)),
            (10, 5, 1)
        );
    }
}
