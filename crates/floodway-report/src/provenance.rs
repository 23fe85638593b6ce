//! How a report came about: by which build, file and command, when, and what else used the machine meanwhile.
//!
//! # Theory of operation
//! `provenance.json` lies beside `report.json` and not in it: a simulated run is repeated to the byte, but not at the same time.
//!
//! The build says which commit it was made from ([`Build`]), since the tree may have moved on when it runs. The digest of the program says whether two
//! reports come from the same one, and that of the experiment's file whether it was the same question. *Steal* is
//! time in which the machine's processors had work and a hypervisor gave them to others (`/proc/stat`).

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::report::write_json;

/// File name of the provenance inside an experiment's output directory.
pub const PROVENANCE_FILE: &str = "provenance.json";

/// What a program was built from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Build {
    /// Commit of its sources; none if they were no checkout.
    pub commit: Option<&'static str>,
    /// Sources differed from that commit.
    pub dirty: bool,
}

/// How a report came about. What is not known is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Commit that the program was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// It was built from sources that differed from that commit.
    pub dirty: bool,
    /// SHA-256 of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// SHA-256 of the experiment's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The command, word by word.
    pub command: Vec<String>,
    /// When it began, in UTC (RFC 3339).
    pub started: String,
    /// How long it took, all experiments of the command together.
    pub seconds: f64,
    /// Share of all processors' time that was stolen meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
}

impl Provenance {
    /// Reads the provenance in `dir`.
    ///
    /// # Errors
    /// When the file cannot be read or is something else; the error names the field.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(PROVENANCE_FILE);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is wrong", path.display()))
    }

    /// Writes `provenance.json` into `dir`, which is created when absent.
    ///
    /// # Errors
    /// When the directory or the file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_json(dir, PROVENANCE_FILE, self)
    }

    /// Commit and whether it is exactly that, for people.
    #[must_use]
    pub fn version(&self) -> String {
        let commit = self.commit.as_deref().unwrap_or("unknown");
        let dirty = if self.dirty { ", with changes" } else { "" };
        format!("{commit}{dirty}")
    }
}

/// Notes what was before a run.
#[derive(Debug)]
pub struct Recorder {
    build: Build,
    started: SystemTime,
    since: Instant,
    processors: Option<ProcessorTime>,
}

impl Recorder {
    /// Begins a run of a program that was built from `build`.
    #[must_use]
    pub fn start(build: Build) -> Self {
        let processors = ProcessorTime::read();
        Self { build, started: SystemTime::now(), since: Instant::now(), processors }
    }

    /// Returns how the run of the experiment in `file` came about that ends now.
    #[must_use]
    pub fn finish(&self, file: Option<&Path>) -> Provenance {
        let steal = self.processors.zip(ProcessorTime::read());
        let started = DateTime::<Utc>::from(self.started);
        Provenance {
            commit: self.build.commit.map(str::to_owned),
            dirty: self.build.dirty,
            program: std::env::current_exe().ok().and_then(|path| digest(&path).ok()),
            file: file.and_then(|path| digest(path).ok()),
            command: std::env::args().collect(),
            started: started.to_rfc3339_opts(SecondsFormat::Secs, true),
            seconds: self.since.elapsed().as_secs_f64(),
            steal: steal.and_then(|(before, after)| after.steal_since(before)),
        }
    }
}

/// SHA-256 of a file, in hexadecimal digits.
fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut fs::File::open(path)?, &mut hash)?;
    Ok(format!("{:x}", hash.finalize()))
}

/// Time of all processors since boot, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorTime {
    all: u64,
    steal: u64,
}

impl ProcessorTime {
    /// Time until now; none if the kernel does not tell.
    #[must_use]
    pub fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)); what follows is in user and nice.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { all: ticks.iter().sum(), steal: *ticks.get(7)? })
    }

    /// The share of the time since `before` that was stolen; none if no time has passed.
    #[must_use]
    pub fn steal_since(self, before: Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|&all| all > 0)?;
        Some(self.steal.saturating_sub(before.steal) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_time() {
        let before = ProcessorTime::parse("cpu  10 0 10 70 0 0 5 5 3 0\ncpu0 1 2\n").unwrap();
        assert_eq!(before, ProcessorTime { all: 100, steal: 5 });
        let after = ProcessorTime::parse("cpu  20 0 20 130 0 0 5 25 9 0").unwrap();
        assert_eq!(after.steal_since(before), Some(0.2));
        assert_eq!(before.steal_since(before), None);
        assert_eq!(ProcessorTime::parse("cpu 1 2 3"), None);
        assert_eq!(ProcessorTime::parse("intr 1"), None);
    }

    #[test]
    fn a_run_is_described_by_build_file_command_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.toml");
        fs::write(&file, "abc").unwrap();
        let recorder = Recorder::start(Build { commit: Some("0123"), dirty: true });
        let run = recorder.finish(Some(&file));
        // FIPS 180-4, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(run.file.as_deref(), Some(abc));
        assert_eq!((run.version().as_str(), run.started.len()), ("0123, with changes", 20));
        assert!(run.program.is_some() && !run.command.is_empty() && run.seconds >= 0.0);
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<Provenance>(&text).unwrap(), run);
    }
}
