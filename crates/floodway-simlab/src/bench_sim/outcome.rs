//! What became of a scenario, as each simulator writes it.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::scenario::Scenario;

/// A part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phase {
    /// On the wall, without making the network.
    pub seconds: f64,
    /// Of the processor, by the thread that begins the run.
    pub cpu_seconds: f64,
    /// Events that were handled.
    pub events: u64,
}

impl Phase {
    fn item(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "seconds" => self.seconds = value.parse().ok()?,
            "cpu_seconds" => self.cpu_seconds = value.parse().ok()?,
            "events" => self.events = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Before wall time counts.
    pub before: Phase,
    /// Since then.
    pub measured: Phase,
    /// Most memory that the process had.
    pub memory_kib: u64,
    /// The digest of all events of a run in parts.
    pub digest: Option<u64>,
    /// When each transfer was complete, in nanoseconds; `None` if it was not.
    pub done: Vec<Option<u64>>,
}

impl Outcome {
    /// As text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = format!("memory_kib {}\n", self.memory_kib);
        for (prefix, phase) in [("before_", &self.before), ("", &self.measured)] {
            let Phase { seconds, cpu_seconds, events } = phase;
            let _ = writeln!(text, "{prefix}seconds {seconds}\n{prefix}cpu_seconds {cpu_seconds}");
            let _ = writeln!(text, "{prefix}events {events}");
        }
        if let Some(digest) = self.digest {
            let _ = writeln!(text, "digest {digest}");
        }
        for (n, done) in self.done.iter().enumerate() {
            if let Some(done) = done {
                let _ = writeln!(text, "done {n} {done}");
            }
        }
        text
    }

    /// From text; `transfers` is how many there were.
    ///
    /// # Errors
    /// With the line that is wrong.
    pub fn parse(text: &str, transfers: usize) -> Result<Self> {
        let mut outcome = Self { done: vec![None; transfers], ..Self::default() };
        for line in text.lines() {
            outcome.item(line).with_context(|| format!("`{line}` is not part of a report"))?;
        }
        Ok(outcome)
    }

    fn item(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let (key, value) = (words.next()?, words.next()?);
        match key {
            "memory_kib" => self.memory_kib = value.parse().ok()?,
            "digest" => self.digest = Some(value.parse().ok()?),
            "done" => {
                let place = self.done.get_mut(value.parse::<usize>().ok()?)?;
                *place = Some(words.next()?.parse().ok()?);
            }
            _ => match key.strip_prefix("before_") {
                Some(key) => self.before.item(key, value)?,
                None => self.measured.item(key, value)?,
            },
        }
        Some(())
    }

    /// Completion times in milliseconds of the transfers of `class` bytes that are complete here and in
    /// `other`, so that the end of the run cuts both alike.
    #[must_use]
    pub fn times_ms(
        &self,
        other: &Self,
        scenario: &Scenario,
        class: &std::ops::RangeInclusive<u64>,
    ) -> Vec<f64> {
        let both = self.done.iter().zip(&other.done).zip(scenario.transfers());
        both.filter_map(|((own, other), (work, bytes))| {
            let done = own.filter(|_| other.is_some() && class.contains(&bytes))?;
            Some(done.saturating_sub(work.start.as_nanos() as u64) as f64 / 1e6)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let outcome = Outcome {
            before: Phase { seconds: 0.25, cpu_seconds: 0.125, events: 7 },
            measured: Phase { seconds: 1.5, cpu_seconds: 1.0, events: 1 << 40 },
            memory_kib: 9,
            digest: Some(u64::MAX),
            done: vec![Some(3), None, Some(1 << 50)],
        };
        assert_eq!(Outcome::parse(&outcome.render(), 3).unwrap(), outcome);
        assert!(Outcome::parse("done 3 9", 3).is_err());
        assert!(Outcome::parse("seconds x", 3).is_err());
    }
}
