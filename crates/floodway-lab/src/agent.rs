//! Calls to the agent in a guest.

mod channel;
mod network;
mod requests;
mod sockets;
mod transfer;

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use floodway_guest::frame::MAX_PAYLOAD;
use floodway_guest::protocol::{OutputStream, Request};
use floodway_guest::stream::{self, Received, Sent};
use serde::de::DeserializeOwned;

use channel::Channel;

pub use floodway_guest::protocol::{
    Clock, Command, Counters, Exit, Hello, Hog, HogUse, Listening, Spawned,
};
pub use network::Interface;

/// How long a call that does no work of its own may take. It decides hangs only: a loaded machine
/// with many emulated guests can take seconds for what takes a millisecond otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Most output that is kept of one command.
const MAX_OUTPUT: usize = 256 << 20;
/// Round trips of one clock measurement.
const CLOCK_ROUNDS: usize = 16;

/// The agent of one guest. Calls may run on any number of threads at once.
#[derive(Debug)]
pub struct Agent {
    channel: Channel,
}

/// What a command in the guest left.
#[derive(Debug, Clone)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text.
    #[must_use]
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// The guest's clock against the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// Guest's `CLOCK_REALTIME` minus the host's.
    pub offset_ns: i64,
    /// The true offset is at most this far away: half the shortest round trip.
    pub uncertainty_ns: u64,
}

impl Agent {
    /// The agent behind QEMU's socket at `path`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { channel: Channel::open(path)? })
    }

    /// Asks who is there, which waits until the guest has booted.
    ///
    /// # Errors
    /// When there is no answer within `timeout`.
    pub fn hello(&self, timeout: Duration) -> Result<Hello> {
        self.call(&Request::Hello, timeout)
    }

    /// Runs a command to its end; any exit code is a success of the call. `timeout` is the command's.
    ///
    /// # Errors
    /// When the command cannot be started, or was killed because the time was up.
    pub fn exec_command(
        &self,
        command: &Command,
        stdin: &[u8],
        timeout: Duration,
    ) -> Result<Output> {
        let name = command.argv.join(" ");
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let request = Request::Exec { command: command.clone(), timeout_ms: milliseconds(timeout) };
        let done = self.channel.call(
            &request,
            stdin,
            timeout.saturating_add(CALL_TIMEOUT),
            |stream, piece| {
                let kept = match stream {
                    OutputStream::Stdout => &mut stdout,
                    OutputStream::Stderr => &mut stderr,
                };
                let room = MAX_OUTPUT.saturating_sub(kept.len());
                kept.extend_from_slice(&piece[..piece.len().min(room)]);
            },
        );
        let exit: Exit = decode(done.with_context(|| format!("`{name}` in the guest"))?.value)?;
        ensure!(!exit.timed_out, "`{name}` in the guest still ran after {timeout:?}");
        Ok(Output { exit, stdout, stderr })
    }

    /// Runs a command that must succeed, within [`CALL_TIMEOUT`], and returns its output.
    ///
    /// # Errors
    /// When it fails; the error quotes its standard error.
    pub fn exec(&self, argv: &[&str]) -> Result<Output> {
        self.exec_within(argv, CALL_TIMEOUT)
    }

    /// As [`Agent::exec`], with a time limit of your own.
    ///
    /// # Errors
    /// As [`Agent::exec`].
    pub fn exec_within(&self, argv: &[&str], timeout: Duration) -> Result<Output> {
        self.exec_stdin(argv, b"", timeout)
    }

    fn exec_stdin(&self, argv: &[&str], stdin: &[u8], timeout: Duration) -> Result<Output> {
        let output = self.exec_command(&command(argv), stdin, timeout)?;
        if output.exit.code != Some(0) {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let stdout = String::from_utf8_lossy(&output.stdout);
            let said = if stderr.trim().is_empty() { stdout } else { stderr };
            let Exit { code, signal, .. } = output.exit;
            bail!(
                "`{}` in the guest failed (code {code:?}, signal {signal:?}): {}",
                argv.join(" "),
                said.trim()
            );
        }
        Ok(output)
    }

    /// Starts a command in the background.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self, argv: &[&str]) -> Result<Spawned> {
        self.call(&Request::Spawn { command: command(argv) }, CALL_TIMEOUT)
    }

    /// Signals a background command and the processes of its group.
    ///
    /// # Errors
    /// When there is no such job or signal.
    pub fn signal(&self, job: &Spawned, signal: i32) -> Result<()> {
        self.call(&Request::Signal { job: job.job, signal }, CALL_TIMEOUT)
    }

    /// Waits for a background command to end; `None` when it still runs after `timeout`.
    ///
    /// # Errors
    /// When there is no such job.
    pub fn wait(&self, job: &Spawned, timeout: Duration) -> Result<Option<Exit>> {
        let request = Request::Wait { job: job.job, timeout_ms: milliseconds(timeout) };
        let exit: Exit = self.call(&request, timeout.saturating_add(CALL_TIMEOUT))?;
        Ok((!exit.timed_out).then_some(exit))
    }

    /// Writes bytes into a file in the guest, and checks it by SHA-256.
    ///
    /// # Errors
    /// When the file cannot be written, or the digests differ.
    pub fn put(&self, bytes: &[u8], to: &str, mode: u32) -> Result<()> {
        let mut offset = 0;
        loop {
            let piece = &bytes[offset..bytes.len().min(offset + MAX_PAYLOAD)];
            let request = Request::Write { path: to.to_owned(), offset: offset as u64, mode };
            self.channel.call(&request, piece, CALL_TIMEOUT, |_, _| ())?;
            offset += piece.len();
            if offset == bytes.len() {
                break;
            }
        }
        let (here, there) = (stream::sha256(&mut &bytes[..])?, self.sha256(to)?);
        ensure!(here == there, "{to} in the guest: SHA-256 is {there}, must be {here}");
        Ok(())
    }

    /// Copies a file from the guest, and checks it by SHA-256. The file must not change meanwhile.
    ///
    /// # Errors
    /// When either file fails, or the digests differ.
    pub fn get_file(&self, from: &str, to: &Path) -> Result<()> {
        let mut file =
            File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
        self.read_pieces(from, |piece| Ok(file.write_all(piece)?))?;
        let mut copy = File::open(to)?;
        let (here, there) = (stream::sha256(&mut copy)?, self.sha256(from)?);
        ensure!(here == there, "{}: SHA-256 is {here}, in the guest {there}", to.display());
        Ok(())
    }

    /// Reads a file in the guest; it may grow meanwhile, like the output of a background command.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn get(&self, from: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_pieces(from, |mut piece| Ok(piece.read_to_end(&mut bytes).map(drop)?))?;
        Ok(bytes)
    }

    fn read_pieces(&self, from: &str, mut piece: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut offset = 0;
        loop {
            let request = Request::Read { path: from.to_owned(), offset, len: MAX_PAYLOAD };
            let done = self.channel.call(&request, &[], CALL_TIMEOUT, |_, _| ())?;
            if done.payload.is_empty() {
                return Ok(());
            }
            offset += done.payload.len() as u64;
            piece(&done.payload)?;
        }
    }

    /// SHA-256 of a file in the guest, in lower-case hexadecimal.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn sha256(&self, path: &str) -> Result<String> {
        self.call(&Request::Sha256 { path: path.to_owned() }, CALL_TIMEOUT)
    }

    /// Opens a listening socket in the guest; port 0 lets its kernel choose.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn stream_listen(&self, address: SocketAddr) -> Result<Listening> {
        self.call(&Request::StreamListen { address }, CALL_TIMEOUT)
    }

    /// Accepts one connection in the guest and hashes all that comes. `timeout` is the longest time without
    /// progress.
    ///
    /// # Errors
    /// When nobody connects, or the connection breaks or makes no progress.
    pub fn stream_receive(&self, listening: &Listening, timeout: Duration) -> Result<Received> {
        let request = Request::StreamReceive {
            listener: listening.listener,
            timeout_ms: milliseconds(timeout),
        };
        self.call(&request, Duration::MAX)
    }

    /// Closes a listening socket in the guest.
    ///
    /// # Errors
    /// When there is no such listener.
    pub fn stream_close(&self, listening: &Listening) -> Result<()> {
        self.call(&Request::StreamClose { listener: listening.listener }, CALL_TIMEOUT)
    }

    /// Sends pseudo-random bytes from the guest. `timeout` is the longest time without progress.
    ///
    /// # Errors
    /// When the connection fails, breaks or makes no progress.
    pub fn stream_send(
        &self,
        address: SocketAddr,
        bytes: u64,
        seed: u64,
        timeout: Duration,
    ) -> Result<Sent> {
        let request =
            Request::StreamSend { address, bytes, seed, timeout_ms: milliseconds(timeout) };
        self.call(&request, Duration::MAX)
    }

    /// Starts CPU hogs in the guest, in place of any that run.
    ///
    /// # Errors
    /// When a field of `hog` is out of range; the error names it.
    pub fn hog_start(&self, hog: &Hog) -> Result<()> {
        self.call(&Request::HogStart(hog.clone()), CALL_TIMEOUT)
    }

    /// Stops the hogs and says what each did.
    ///
    /// # Errors
    /// When a hog failed.
    pub fn hog_stop(&self) -> Result<Vec<HogUse>> {
        self.call(&Request::HogStop, CALL_TIMEOUT)
    }

    /// The guest kernel's network counters by nstat's names, absolute since boot.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn counters(&self) -> Result<Counters> {
        self.call(&Request::Counters, CALL_TIMEOUT)
    }

    /// The guest's clocks now.
    ///
    /// # Errors
    /// When the agent does not answer.
    pub fn clock(&self) -> Result<Clock> {
        self.call(&Request::Clock, CALL_TIMEOUT)
    }

    /// Measures the guest's clock against the host's, by the round trip that took the least time (Cristian's method).
    /// For one-way times: `host time = guest time - offset`.
    ///
    /// # Errors
    /// When the agent does not answer.
    pub fn clock_offset(&self) -> Result<ClockOffset> {
        let mut best: Option<ClockOffset> = None;
        for _ in 0..CLOCK_ROUNDS {
            let before = host_clock()?;
            let guest = i64::try_from(self.clock()?.realtime_ns)?;
            let after = host_clock()?;
            let uncertainty_ns = u64::try_from(after - before).unwrap_or(0) / 2;
            if best.is_none_or(|best| uncertainty_ns < best.uncertainty_ns) {
                let offset_ns = guest - (before + (after - before) / 2);
                best = Some(ClockOffset { offset_ns, uncertainty_ns });
            }
        }
        best.context("no round trip")
    }

    /// Powers the guest off. QEMU ends soon after.
    ///
    /// # Errors
    /// When the agent does not answer.
    pub fn power_off(&self) -> Result<()> {
        self.call(&Request::Poweroff, CALL_TIMEOUT)
    }

    /// Drops the connection to the agent and makes it anew; open calls fail. For tests.
    pub fn reconnect(&self) {
        self.channel.reconnect();
    }

    fn call<T: DeserializeOwned>(&self, request: &Request, timeout: Duration) -> Result<T> {
        decode(self.channel.call(request, &[], timeout, |_, _| ())?.value)
    }
}

fn decode<T: DeserializeOwned>(value: serde_json::Value) -> Result<T> {
    serde_json::from_value(value).context("the guest's agent sent an answer of another kind")
}

fn command(argv: &[&str]) -> Command {
    Command { argv: argv.iter().map(ToString::to_string).collect(), ..Command::default() }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn host_clock() -> Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
}
