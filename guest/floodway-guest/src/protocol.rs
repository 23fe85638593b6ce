//! Requests from the lab to the guest agent, and its replies.
//!
//! Each request carries a number that the lab chose; all replies to it carry the same number.
//! Requests run concurrently, so replies come in any order. A request is answered by any number of [`Reply::Data`]
//! and then by exactly one [`Reply::Done`], whose value has the type that the request names, or [`Reply::Error`].

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port between lab and agent.
pub const PORT_NAME: &str = "floodway.agent";
/// Number of messages that answer no request.
pub const UNSOLICITED: u64 = 0;

/// A request and its number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RequestMessage {
    /// Chosen by the lab, never reused while the guest runs, not [`UNSOLICITED`].
    pub id: u64,
    /// What to do.
    pub request: Request,
}

/// A reply and the number of the request that it answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplyMessage {
    /// Number of the request, or [`UNSOLICITED`].
    pub id: u64,
    /// The answer.
    pub reply: Reply,
}

/// What the lab can ask for. Times are in the unit that the field's name ends in.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Who are you? Value: [`Hello`].
    Hello,
    /// Runs a command to its end, with the payload as standard input; its output comes as
    /// [`Reply::Data`]. Value: [`Exit`].
    Exec {
        /// What to run.
        command: Command,
        /// The command and its process group are killed after this time.
        timeout_ms: u64,
    },
    /// Starts a command in the background, output to files. Value: [`Spawned`].
    Spawn {
        /// What to run.
        command: Command,
    },
    /// Signals the process group of a background command. Value: null.
    Signal {
        /// From [`Spawned`].
        job: u64,
        /// Signal number, for example 15.
        signal: i32,
    },
    /// Waits for a background command to end. Value: [`Exit`], with `timed_out` when it still runs.
    Wait {
        /// From [`Spawned`].
        job: u64,
        /// Longest wait.
        timeout_ms: u64,
    },
    /// Writes the payload into a file, which offset 0 creates anew. Value: null.
    Write {
        /// Absolute path; missing directories are made.
        path: String,
        /// Where in the file the payload goes, in bytes.
        offset: u64,
        /// Permission bits of a new file, for example 0o755.
        mode: u32,
    },
    /// Reads a piece of a file into the reply's payload; an empty one is the end. Value: null.
    Read {
        /// Path of the file.
        path: String,
        /// First byte.
        offset: u64,
        /// Most bytes; no more than [`crate::frame::MAX_PAYLOAD`].
        len: usize,
    },
    /// SHA-256 of a file. Value: lower-case hexadecimal string.
    Sha256 {
        /// Path of the file.
        path: String,
    },
    /// Opens a listening TCP socket. Value: [`Listening`].
    StreamListen {
        /// Address; port 0 lets the kernel choose.
        address: SocketAddr,
    },
    /// Accepts one connection, reads it to its end, and hashes it. Value: [`crate::stream::Received`].
    StreamReceive {
        /// From [`Listening`].
        listener: u64,
        /// Longest wait without any progress.
        timeout_ms: u64,
    },
    /// Closes a listening socket. Value: null.
    StreamClose {
        /// From [`Listening`].
        listener: u64,
    },
    /// Connects, sends pseudo-random bytes, and waits for the peer to close. Value: [`crate::stream::Sent`].
    StreamSend {
        /// Where to.
        address: SocketAddr,
        /// How many.
        bytes: u64,
        /// Seed of the bytes.
        seed: u64,
        /// Longest wait without any progress.
        timeout_ms: u64,
    },
    /// Runs timed transfers to their end. Value: list of [`crate::transfer::Sent`].
    TransferSend(crate::transfer::Plan),
    /// Opens a sink for timed transfers. Value: [`Listening`].
    TransferListen {
        /// Address; port 0 lets the kernel choose.
        address: SocketAddr,
    },
    /// Takes what has come whole at a sink since the last time. Value: list of [`crate::transfer::Arrival`].
    TransferArrivals {
        /// From [`Listening`].
        listener: u64,
    },
    /// Closes a sink. Value: null.
    TransferClose {
        /// From [`Listening`].
        listener: u64,
    },
    /// Makes socket calls on a connection of its own. Value: list of [`crate::sockets::Outcome`].
    SocketCalls(crate::sockets::Script),
    /// Opens a server of requests. Value: [`Listening`].
    RequestsServe {
        /// Address; port 0 lets the kernel choose.
        address: SocketAddr,
    },
    /// Closes a server of requests, and with it all its connections. Value: null.
    RequestsClose {
        /// From [`Listening`].
        listener: u64,
    },
    /// Starts CPU hogs, in place of any that run. Value: null.
    HogStart(Hog),
    /// Stops the hogs. Value: list of [`HogUse`], one per vCPU; empty when none ran.
    HogStop,
    /// The kernel's network counters under nstat's names (`TcpRetransSegs`). Value: [`Counters`].
    Counters,
    /// What time is it? Value: [`Clock`].
    Clock,
    /// Powers the machine off after the reply. Value: null.
    Poweroff,
}

/// What the agent answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reply {
    /// Unsolicited: the agent has started. It knows nothing of earlier requests.
    Started,
    /// The payload is a piece of output.
    Data {
        /// Of which stream.
        stream: OutputStream,
    },
    /// Success.
    Done {
        /// Of the type that the request names.
        value: serde_json::Value,
    },
    /// Failure.
    Error {
        /// What is wrong, for people.
        message: String,
    },
}

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A command line and its surroundings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program (searched in `PATH`) and arguments; no shell in between.
    pub argv: Vec<String>,
    /// Environment variables on top of the agent's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; `None` is `/`.
    #[serde(default)]
    pub dir: Option<String>,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the agent.
    pub version: String,
    /// The kernel's release, for example `6.1.0-40-cloud-amd64`.
    pub kernel: String,
    /// Number of online vCPUs.
    pub vcpus: usize,
    /// The agent's process ID.
    pub pid: u32,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// The time was up before the end.
    pub timed_out: bool,
    /// From start to end, by the guest's monotonic clock.
    pub elapsed_ns: u64,
}

/// A command in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    /// Its number, for [`Request::Signal`] and [`Request::Wait`].
    pub job: u64,
    /// Process ID in the guest.
    pub pid: u32,
    /// File that takes its standard output.
    pub stdout: String,
    /// File that takes its standard error.
    pub stderr: String,
}

/// A listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    /// Its number, for [`Request::StreamReceive`].
    pub listener: u64,
    /// Where it listens, with the port that the kernel chose.
    pub address: SocketAddr,
}

/// CPU load: on each vCPU a thread that is busy for a fraction of each period and sleeps for the rest.
///
/// Busy time is measured by the clock, not in CPU time, as a guest cannot know when it is not running:
/// a period in which the host takes the vCPU away does less work. The next period starts when the
/// last one is over, so a hog that is late does not hurry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hog {
    /// Fraction of each period that is busy, 0.0 to 1.0.
    pub duty: f64,
    /// Length of a period, at least 100.
    pub period_us: u64,
    /// vCPUs to load, counted from 0; empty means all.
    pub vcpus: Vec<u32>,
    /// Nice value of the threads in the guest, -20 to 19.
    pub nice: i32,
}

/// What a hog did on one vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HogUse {
    /// The vCPU.
    pub vcpu: u32,
    /// Whole periods.
    pub periods: u64,
    /// Time in busy phases by the clock.
    pub busy_ns: u64,
    /// Time in sleep by the clock.
    pub idle_ns: u64,
    /// CPU time that the guest's kernel charged.
    pub cpu_ns: u64,
    /// Rounds of the busy loop: the work that really got done.
    pub rounds: u64,
}

/// Network counters by nstat's names.
pub type Counters = BTreeMap<String, i64>;

/// The guest's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`.
    pub realtime_ns: u64,
}
