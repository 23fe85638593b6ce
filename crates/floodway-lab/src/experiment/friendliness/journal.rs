//! Trials that were measured, one JSON object a line, so that an interrupted run goes on where it was.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Cell, Sender, Trial};

/// File name in the experiment's output directory.
pub(super) const FILE: &str = "trials.jsonl";

/// The trials so far, and where they are kept.
#[derive(Debug, Default)]
pub(super) struct Journal {
    path: Option<PathBuf>,
    trials: Vec<Trial>,
}

impl Journal {
    /// Reads what is in the file, if there is one.
    ///
    /// # Errors
    /// When it cannot be read or has a line that is no trial.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        let trials = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        let trials =
            trials.with_context(|| format!("{} is no record of trials", path.display()))?;
        Ok(Self { path: Some(path.to_owned()), trials })
    }

    /// Returns `true` if that trial was measured.
    pub fn has(&self, cell: &Cell, group: &[Sender], round: u32) -> bool {
        let same =
            |trial: &Trial| trial.cell == *cell && trial.round == round && trial.is_of(group);
        self.trials.iter().any(same)
    }

    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, trial: Trial) -> Result<()> {
        if let Some(path) = &self.path {
            let line = serde_json::to_string(&trial)? + "\n";
            let write = || -> Result<()> {
                fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
                let mut file = File::options().create(true).append(true).open(path)?;
                Ok(file.write_all(line.as_bytes())?)
            };
            write().with_context(|| format!("cannot write {}", path.display()))?;
        }
        self.trials.push(trial);
        Ok(())
    }

    /// The trials.
    pub fn into_trials(self) -> Vec<Trial> {
        self.trials
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::friendliness::{Look, Trace};

    #[test]
    fn an_interrupted_run_knows_what_it_has_measured() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out").join(FILE);
        let cell =
            Cell { congestion: "reno".into(), rtt_ms: 0.1, loss_percent: 1.0, bottleneck: None };
        let group = [Sender::Offloaded, Sender::Linux];
        let trace = |sender| Trace { sender, looks: vec![Look { at_ms: 0.25, ..Look::default() }] };
        let traces = group.map(trace).to_vec();
        let trial = Trial { cell: cell.clone(), round: 1, settle_ms: 0.0, mss: 1448, traces };
        let mut journal = Journal::open(Some(&path)).unwrap();
        assert!(!journal.has(&cell, &group, 1));
        journal.add(trial.clone()).unwrap();
        let again = Journal::open(Some(&path)).unwrap();
        assert!(again.has(&cell, &group, 1) && !again.has(&cell, &group, 0));
        assert!(!again.has(&cell, &group[..1], 1));
        assert!(!again.has(&Cell { congestion: "cubic".into(), ..cell }, &group, 1));
        assert_eq!(again.into_trials(), [trial]);
        fs::write(&path, "{}\n").unwrap();
        assert!(Journal::open(Some(&path)).is_err());
    }
}
