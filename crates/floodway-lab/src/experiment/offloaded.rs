//! What the connections of a switch are doing, right before something happens to it or to a VM.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use floodway_switch::api::control::{FlowQuery, FlowStatus, MAX_PAGE};

use super::Measured;
use crate::switch_process::Switch;

/// For how long it is waited until enough connections owe bytes, and between two looks.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

/// Connections of all ports that are offloaded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offloaded {
    /// In both directions.
    both: u64,
    /// Those whose peers have not acknowledged all that was acknowledged to their guests.
    owing: u64,
    /// Bytes of that.
    owed: u64,
}

/// A figure of a report: its name, its unit, and where it is.
type Figure = (&'static str, &'static str, fn(&Offloaded) -> u64);

impl Offloaded {
    const FIGURES: [Figure; 3] = [
        ("flows in both directions", "flows", |all| all.both),
        ("flows that owe bytes", "flows", |all| all.owing),
        ("bytes owed", "bytes", |all| all.owed),
    ];

    /// Returns what the connections of all ports are doing now.
    ///
    /// # Errors
    /// The switch does not answer.
    pub fn of(switch: &Switch) -> Result<Self> {
        let client = switch.client()?;
        let (mut all, mut cursor) = (Self::default(), None);
        loop {
            let limit = Some(MAX_PAGE);
            let page = client.flows(&FlowQuery { port: None, limit, cursor })?;
            page.flows.iter().for_each(|flow| all.add(flow));
            cursor = page.next;
            if cursor.is_none() {
                return Ok(all);
            }
        }
    }

    /// As [`of`](Self::of), as soon as `least` connections owe bytes. After a minute it returns what there is.
    ///
    /// # Errors
    /// The switch does not answer.
    pub fn once_owing(switch: &Switch, least: u64) -> Result<Self> {
        let begun = Instant::now();
        loop {
            let all = Self::of(switch)?;
            if all.owing >= least || begun.elapsed() >= PATIENCE {
                return Ok(all);
            }
            thread::sleep(POLL);
        }
    }

    /// Adds rows with the least of `all`, each of which was seen before an event. Their names begin with `prefix`.
    pub fn report(all: &[Self], prefix: &str, measured: &mut Measured) {
        for (what, unit, of) in Self::FIGURES {
            let least = all.iter().map(of).min().unwrap_or(0);
            measured.add_value(format!("{prefix}{what} before, least"), unit, least as f64);
        }
    }

    fn add(&mut self, flow: &FlowStatus) {
        self.both += u64::from([&flow.tx, &flow.rx].into_iter().all(|state| state != "OFFLINE"));
        self.owing += u64::from(flow.owed > 0);
        self.owed += u64::from(flow.owed);
    }
}
