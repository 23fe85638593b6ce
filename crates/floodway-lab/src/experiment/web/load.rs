//! Visitors: wrk, with the mix of operations in `files/mix.lua`, and single requests of our own.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::hosts::Hosts;
use super::tiers::Tier;
use crate::cleanup;
use crate::process;
use crate::transfer::inside;

/// Longest time for one answer. Only ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a run of the load generator showed.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Requests answered.
    pub operations: u64,
    /// How long it really ran.
    pub duration_us: u64,
    /// Of all answers.
    pub bytes: u64,
    /// Requests with another status than success, or without an answer.
    pub failed: u64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

impl Load {
    /// Operations by time.
    pub fn rate(&self) -> f64 {
        self.operations as f64 * 1e6 / self.duration_us as f64
    }
}

/// The load generator.
#[derive(Debug)]
pub struct Visitors<'a> {
    hosts: &'a Hosts,
    script: PathBuf,
    url: String,
    /// Visitors at once; each asks again as soon as it is answered.
    count: u32,
}

impl<'a> Visitors<'a> {
    /// # Errors
    /// When the script cannot be written.
    pub fn new(hosts: &'a Hosts, count: u32) -> Result<Self> {
        let script = cleanup::run_dir()?.join("mix.lua");
        fs::write(&script, include_str!("files/mix.lua"))
            .with_context(|| format!("cannot write {}", script.display()))?;
        let url = format!("http://{}/", Tier::Front.address()?);
        Ok(Self { hosts, script, url, count })
    }

    /// Lets them visit for a while. The same seed gives the same requests.
    ///
    /// # Errors
    /// When the load generator fails.
    pub fn visit(&self, seconds: u32, seed: u64) -> Result<Load> {
        let wrk = self.hosts.packages().command("/usr/bin/wrk")?;
        let mut command = self.hosts.network().command(wrk.get_program());
        command.args(wrk.get_args()).args(["--threads", "1", "--connections"]);
        command.arg(self.count.to_string()).args(["--duration", &format!("{seconds}s")]);
        command.args(["--timeout", &format!("{}s", PATIENCE.as_secs()), "--script"]);
        // Lua's generator takes 32 bits.
        let seed = seed % (1 << 31);
        command.arg(&self.script).arg(&self.url).args(["--", &seed.to_string()]);
        command.stdin(Stdio::null());
        parse(&process::run_command(command).context("wrk")?)
    }

    /// One answer of the application, without its head.
    ///
    /// # Errors
    /// When there is none, or it is no success.
    pub fn get(&self, path: &str) -> Result<Vec<u8>> {
        let front = SocketAddr::new(Tier::Front.address()?.parse()?, Tier::Front.port());
        let answer = inside(self.hosts.network(), || -> Result<Vec<u8>> {
            let mut socket = TcpStream::connect_timeout(&front, PATIENCE)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            write!(socket, "GET {path} HTTP/1.0\r\nHost: lab\r\n\r\n")?;
            let mut answer = Vec::new();
            socket.read_to_end(&mut answer)?;
            Ok(answer)
        })?;
        let answer = answer.with_context(|| format!("GET {path}"))?;
        body(&answer).with_context(|| format!("GET {path}")).map(<[u8]>::to_vec)
    }
}

/// The figures in wrk's output: its own words, and one line of ours.
fn parse(output: &str) -> Result<Load> {
    let line = output.lines().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("wrk printed no figures: {output}"))?;
    let load: Load =
        serde_json::from_str(line).with_context(|| format!("wrk's figures: {line}"))?;
    ensure!(load.operations > 0 && load.duration_us > 0, "wrk got no answer: {output}");
    Ok(load)
}

/// What comes behind the head of a successful answer.
fn body(answer: &[u8]) -> Result<&[u8]> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no answer")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split_whitespace().nth(1);
    ensure!(status == Some("200"), "{head}");
    Ok(&answer[end + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_found_among_the_words_of_wrk() {
        let output = "Running 5s test @ http://198.18.1.11/\n  1 threads and 8 connections\n\
            {\"operations\":500,\"duration_us\":5000000,\"bytes\":12,\"failed\":1,\
            \"mean_us\":1.5,\"p50_us\":1.0,\"p90_us\":2.0,\"p99_us\":3.0}\n";
        let load = parse(output).unwrap();
        assert!((load.rate() - 100.0).abs() < 1e-9);
        assert_eq!((load.failed, load.p99_us), (1, 3.0));
        assert!(parse("unable to connect").unwrap_err().to_string().contains("unable to connect"));
        assert!(parse(&output.replace(":500", ":0")).is_err());
    }

    #[test]
    fn only_success_is_an_answer() {
        assert_eq!(body(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nx\r\n\r\ny").unwrap(), b"x\r\n\r\ny");
        let error = body(b"HTTP/1.1 502 Bad Gateway\r\n\r\nx").unwrap_err().to_string();
        assert!(error.contains("502"), "{error}");
        assert!(body(b"").is_err());
    }
}
