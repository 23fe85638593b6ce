//! What of a sweep is done: a file that only grows.
//!
//! # Theory of operation
//! The first line names the sweep; each line after it is the outcome of one run, in the order in which they ended. A line
//! counts if it is whole: a process that is killed while it writes leaves a piece of a line, which is cut off when the
//! journal is opened again. So at any time the journal says which runs need not be done again, whatever ended the
//! process. There is one writer at a time, which holds a lock. A run that failed is in the journal for the report, and is
//! tried again when the sweep is started again; the last line of a run counts.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::simulation::Measurement;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    sweep: String,
    runs: usize,
}

/// A line: one of the two is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Which run.
    pub run: usize,
    /// What it measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurements: Option<Vec<Measurement>>,
    /// Why it failed, the last time that it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Line {
    /// Of a run that ended well or not.
    #[must_use]
    pub fn new(run: usize, outcome: Result<Vec<Measurement>>) -> Self {
        match outcome {
            Ok(measurements) => Self { run, measurements: Some(measurements), failed: None },
            Err(error) => Self { run, measurements: None, failed: Some(format!("{error:#}")) },
        }
    }
}

/// What became of a run.
pub type Outcome = std::result::Result<Vec<Measurement>, String>;

/// The journal of a sweep, open for writing.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    outcomes: BTreeMap<usize, Outcome>,
}

impl Journal {
    /// The journal of the sweep whose table goes to `out`.
    #[must_use]
    pub fn path(out: &Path) -> PathBuf {
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(".journal");
        out.with_file_name(name)
    }

    /// Opens the journal of a sweep, or begins it.
    ///
    /// # Errors
    /// When it is that of another sweep, another process writes it, or it cannot be read or written.
    pub fn open(path: &Path, plan: &Plan) -> Result<Self> {
        let at = || format!("journal {}", path.display());
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(at)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(path).with_context(at)?;
        if file.try_lock().is_err() {
            bail!("{}: another process is doing this sweep", at());
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(at)?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        file.set_len(whole as u64).with_context(at)?;
        file.seek(SeekFrom::End(0)).with_context(at)?;
        let text = String::from_utf8(bytes[..whole].to_vec()).with_context(at)?;
        let mut journal = Self { path: path.to_owned(), file, outcomes: BTreeMap::new() };
        journal.replay(&text, plan).with_context(at)?;
        Ok(journal)
    }

    fn replay(&mut self, text: &str, plan: &Plan) -> Result<()> {
        let head = Head { sweep: plan.digest.clone(), runs: plan.tasks.len() };
        let mut lines = (1..).zip(text.lines());
        match lines.next() {
            None => {
                self.write(&head)?;
            }
            Some((_, first)) => {
                let found: Head = serde_json::from_str(first).context("line 1")?;
                ensure!(
                    found == head,
                    "is that of another sweep (other runs, or another version of this program): \
                     remove it, or give another --out"
                );
            }
        }
        for (number, line) in lines {
            let line: Line =
                serde_json::from_str(line).with_context(|| format!("line {number}"))?;
            self.note(line).with_context(|| format!("line {number}"))?;
        }
        Ok(())
    }

    fn note(&mut self, line: Line) -> Result<()> {
        let outcome = match (line.measurements, line.failed) {
            (Some(measurements), None) => Ok(measurements),
            (None, Some(reason)) => Err(reason),
            _ => bail!("neither done nor failed"),
        };
        self.outcomes.insert(line.run, outcome);
        Ok(())
    }

    /// Writes what became of a run.
    ///
    /// # Errors
    /// When the disk is full, say.
    pub fn append(&mut self, line: &Line) -> Result<()> {
        let text = self.write(line)?;
        // As written: reading a number again may change its last bit, and the table must not depend on who read it.
        self.note(serde_json::from_str(&text)?)
    }

    fn write(&mut self, line: &impl Serialize) -> Result<String> {
        // One call per line, so that at most the last line is incomplete.
        let text = serde_json::to_string(line)? + "\n";
        let written = self.file.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write journal {}", self.path.display()))?;
        Ok(text)
    }

    /// What is known of a run.
    #[must_use]
    pub fn outcome(&self, run: usize) -> Option<&Outcome> {
        self.outcomes.get(&run)
    }

    /// The run needs not be done again.
    #[must_use]
    pub fn is_done(&self, run: usize) -> bool {
        matches!(self.outcome(run), Some(Ok(_)))
    }
}
