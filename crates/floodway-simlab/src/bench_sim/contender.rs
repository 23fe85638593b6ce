//! The two programs that run a scenario: ns-3's, built from `bench/ns3`, and this one as a process of its own, so that
//! memory and wall time mean the same for both.

use std::fmt;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::child;
use super::outcome::Outcome;

/// ns-3 needs minutes for one second of a fat tree.
const TIMEOUT: Duration = Duration::from_secs(4 * 3600);

/// A simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simulator {
    /// `floodway-sim`.
    Floodway,
    /// ns-3.
    Ns3,
}

impl fmt::Display for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Floodway => "floodway-sim",
            Self::Ns3 => "ns-3",
        })
    }
}

/// A simulator, ready to run.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Which.
    pub simulator: Simulator,
    program: PathBuf,
}

impl Contender {
    /// This program.
    ///
    /// # Errors
    /// When the system does not say where it is.
    pub fn floodway() -> Result<Self> {
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        Ok(Self { simulator: Simulator::Floodway, program })
    }

    /// Builds the program for ns-3 beside this one, with make and g++.
    ///
    /// # Errors
    /// When something for the build is missing; the error says what to install.
    pub fn ns3() -> Result<Self> {
        ensure!(
            Path::new("/usr/include/ns3/point-to-point-helper.h").is_file(),
            "ns-3 is missing: apt-get install libns3-dev g++ make"
        );
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/ns3");
        let own = std::env::current_exe().context("cannot tell where this program is")?;
        let build = own.with_file_name("ns3-build");
        let mut command = Command::new("make");
        command.arg("-s").arg("-C").arg(&source).arg(format!("BUILD={}", build.display()));
        child::run(&mut command).context("ns3-replay does not build")?;
        Ok(Self { simulator: Simulator::Ns3, program: build.join("ns3-replay") })
    }

    /// Runs a scenario in `dir`, which must be there.
    ///
    /// # Errors
    /// When the program fails; its last words are in the error.
    pub fn run(&self, scenario: &Path, transfers: usize, dir: &Path) -> Result<Outcome> {
        self.run_by(None, scenario, transfers, dir)
    }

    /// The same, in parts by `threads` if there is a number, which only this program can.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_by(
        &self,
        threads: Option<NonZeroUsize>,
        scenario: &Path,
        transfers: usize,
        dir: &Path,
    ) -> Result<Outcome> {
        let (report, log) = (dir.join("outcome.txt"), dir.join("log.txt"));
        let mut command = Command::new(&self.program);
        if self.simulator == Simulator::Floodway {
            command.arg("replay");
        }
        if let Some(threads) = threads {
            command.arg("--threads").arg(threads.to_string());
        }
        command.arg(scenario).arg(&report).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log)?);
        let status = child::run_for(&mut command, TIMEOUT)?;
        let said = || fs::read_to_string(&log).unwrap_or_default();
        ensure!(status.success(), "{} failed ({status}): {}", self.simulator, said().trim());
        Outcome::parse(&fs::read_to_string(&report)?, transfers)
    }
}
