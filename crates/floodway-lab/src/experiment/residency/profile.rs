//! Where the switch's time goes: Linux's sampling profiler beside a measurement, as the paper's XenOprof.
//!
//! Samples are of CPU time (`cpu-clock`), so that they need no hardware counters. A function is named with its share of all samples in
//! the switch's process, the kernel's work for it included.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::child::Process;
use crate::cleanup;
use crate::process;

/// Samples per second of CPU time: no divisor of anything periodic.
const FREQUENCY: &str = "1997";
/// Time for the profiler to write its file.
const PATIENCE: Duration = Duration::from_secs(30);

/// A profiler that runs.
#[derive(Debug)]
pub(super) struct Profile {
    process: Process,
    samples: PathBuf,
}

impl Profile {
    /// Begins to sample process `id`.
    pub fn start(id: u32) -> Result<Self> {
        let samples = cleanup::run_dir()?.join("perf.data");
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-e", "cpu-clock", "-F", FREQUENCY]);
        command.args(["-p", &id.to_string(), "-o"]).arg(&samples);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { process: Process::spawn("perf", command)?, samples })
    }

    /// Ends it; answers the first `count` functions and their shares in percent.
    pub fn finish(self, count: usize) -> Result<Vec<(String, f64)>> {
        self.process.signal(libc::SIGINT)?;
        self.process.wait(PATIENCE)?;
        let mut command = Command::new("perf");
        command.args(["report", "--stdio", "--no-children", "-F", "overhead,symbol", "-i"]);
        let text = process::run_command({
            command.arg(&self.samples);
            command
        })?;
        let functions = parse(&text);
        ensure!(!functions.is_empty(), "perf has no samples of the switch");
        Ok(functions.into_iter().take(count).collect())
    }
}

/// Lines such as `  21.52%  [k] copy_user_generic`, the most frequent first.
fn parse(text: &str) -> Vec<(String, f64)> {
    let function = |line: &str| {
        let (share, symbol) = line.trim().split_once('%')?;
        let symbol = symbol.trim().trim_start_matches("[.]").trim_start_matches("[k]").trim();
        // Without parameters of types: they are long, and the function is known by its path.
        let name = symbol.split_once('<').filter(|(name, _)| !name.is_empty());
        let name = name.map_or(symbol, |(name, _)| name.trim_end_matches("::"));
        Some((name.to_owned(), share.parse().ok()?))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_with_their_shares() {
        let text = "# Overhead  Symbol\n#\n    21.52%  [.] floodway_switch::queues::rx::RxQueue::deliver\n     3.10%  [k] eventfd_write\n\n";
        let expected =
            [("floodway_switch::queues::rx::RxQueue::deliver", 21.52), ("eventfd_write", 3.1)];
        assert_eq!(parse(text), expected.map(|(name, share)| (name.to_owned(), share)));
        assert!(parse("# no samples\n").is_empty());
    }
}
