//! What the vCPUs of a machine did, as a table of times.

use floodway_core::time::Instant;
use floodway_sim::cpu::{Change, State};

/// The driver domain's vCPU: a machine's first.
pub const DRIVER: usize = 0;
/// That of the VM that transfers.
pub const VM: usize = 1;

/// States of all vCPUs from each change to the next one.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    at: Vec<Instant>,
    states: Vec<Vec<State>>,
}

impl Schedule {
    /// A table of what was recorded from the beginning of a run, for so many vCPUs.
    #[must_use]
    pub fn new(vcpus: usize, changes: &[Change]) -> Self {
        let mut table = Self { at: vec![Instant::ZERO], states: vec![vec![State::Blocked; vcpus]] };
        for change in changes {
            let mut states = table.states.last().cloned().unwrap_or_default();
            states[change.vcpu.0 as usize] = change.state;
            if table.at.last() == Some(&change.at) {
                table.states.pop();
            } else {
                table.at.push(change.at);
            }
            table.states.push(states);
        }
        table
    }

    /// The stretches in which nothing changes, from one time to another, and the vCPUs' states in them.
    pub fn between(
        &self,
        from: Instant,
        to: Instant,
    ) -> impl DoubleEndedIterator<Item = (Instant, Instant, &[State])> {
        let first = self.at.partition_point(|at| *at <= from).saturating_sub(1);
        let end = self.at.partition_point(|at| *at < to).max(first);
        (first..end).map(move |n| {
            let until = self.at.get(n + 1).map_or(to, |next| to.min(*next));
            (from.max(self.at[n]), until, &self.states[n][..])
        })
    }
}
