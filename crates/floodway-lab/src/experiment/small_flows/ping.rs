//! Echo requests to a VM, whose kernel answers them: the answer waits in the host's queue.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::net::Namespace;
use crate::process;

/// Time after the last request in which answers may come, in seconds.
const LAST: &str = "2";

/// Echo requests at a fixed interval.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ping {
    /// For the names of rows.
    pub name: String,
    /// Who is asked.
    pub vm: u32,
    /// Interval in ms, at least 1.
    pub gap_ms: u32,
}

impl Ping {
    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.gap_ms >= 1, "ping {:?}: gap_ms = {}: at least 1", self.name, self.gap_ms);
        Ok(())
    }

    /// Pings for as long as `length`; answers round trips in ms.
    pub(super) fn run(
        &self,
        clients: &Namespace,
        address: &str,
        length: Duration,
    ) -> Result<Vec<f64>> {
        let gap = Duration::from_millis(self.gap_ms.into());
        let count = (length.as_millis() / gap.as_millis()).to_string();
        let mut command = clients.command("chrt");
        // It is the measuring instrument: it runs as soon as there is an answer.
        command.args(["-f", "1", "busybox", "ping"]);
        command.args(["-i", &gap.as_secs_f64().to_string(), "-c", &count, "-W", LAST]);
        let times = parse(&process::run_command({
            command.arg(address);
            command
        })?);
        ensure!(!times.is_empty(), "no answer from {address}");
        Ok(times)
    }
}

fn parse(text: &str) -> Vec<f64> {
    let time = |line: &str| line.rsplit_once("time=")?.1.strip_suffix(" ms")?.parse().ok();
    text.lines().filter_map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_a_time() {
        let text = "PING 127.0.0.1 (127.0.0.1): 56 data bytes\n\
            64 bytes from 127.0.0.1: seq=0 ttl=64 time=0.161 ms\n\
            64 bytes from 127.0.0.1: seq=2 ttl=64 time=12.052 ms\n\n\
            round-trip min/avg/max = 0.052/0.090/0.161 ms\n";
        assert_eq!(parse(text), [0.161, 12.052]);
    }
}
