//! lwIP, in a process of its own: `lwip/endpoint.c`, compiled here against Debian's liblwip-dev.

use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use floodway_core::time::{Duration, Instant};

use super::stack::{Addresses, Stack, Status};

// Kinds of requests, and of the parts of a reply; as in endpoint.c.
const POLL: u32 = 0;
const FRAME: u32 = 1;
const WRITE: u32 = 2;
const READ: u32 = 3;
const CLOSE: u32 = 4;
const CONNECT: u32 = 5;
const ABORT: u32 = 6;
const STATE: u32 = 0;
const SENT_FRAME: u32 = 1;
const DATA: u32 = 2;

/// Words of the state that ends a reply.
const STATE_WORDS: usize = 7;
/// lwIP has no timer.
const NO_TIMER: u32 = u32::MAX;

/// The compiled program.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stacks/lwip/endpoint.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lwip-endpoint");
        let output = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-rdynamic"])
            .args(["-I/usr/include/lwip", "-o"])
            .args([&program, &source])
            .arg("-llwip")
            .output();
        let output = output.expect("this test needs a C compiler: see tools/compiler");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "this test needs Debian's package liblwip-dev (tools/compiler installs it): {complaint}"
        );
        program
    })
}

/// The process.
pub struct Lwip {
    child: Child,
    requests: Option<BufWriter<ChildStdin>>,
    replies: ChildStdout,
    now: Instant,
    next: Instant,
    output: Vec<Vec<u8>>,
    data: Vec<u8>,
    written: usize,
    queued: bool,
    status: Status,
}

impl Lwip {
    /// Starts lwIP. `seed` decides its random numbers.
    pub fn new(addresses: Addresses, listens: bool, seed: u64) -> Self {
        let ip = |n| format!("10.0.0.{n}");
        let mut child = Command::new(program())
            .arg(if listens { "listen" } else { "connect" })
            .args([ip(addresses.own), ip(addresses.peer), addresses.own.to_string()])
            .arg((seed as u32 >> 1).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start lwIP");
        let requests = child.stdin.take().map(BufWriter::new);
        let replies = child.stdout.take().expect("a pipe");
        Self {
            child,
            requests,
            replies,
            now: Instant::ZERO,
            next: Instant::ZERO,
            output: Vec::new(),
            data: Vec::new(),
            written: 0,
            queued: false,
            status: Status::default(),
        }
    }

    fn request(&mut self, kind: u32, bytes: &[u8]) {
        let now_ms = self.now.as_nanos() / 1_000_000;
        let requests = self.requests.as_mut().expect("a pipe");
        let header =
            [&kind.to_ne_bytes()[..], &(bytes.len() as u32).to_ne_bytes(), &now_ms.to_ne_bytes()];
        let sent = requests.write_all(&header.concat()).and_then(|()| requests.write_all(bytes));
        sent.and_then(|()| requests.flush()).expect("lwIP is alive");
        while !self.take_reply() {}
    }

    /// Takes one part of a reply. Returns `true` for the last one.
    fn take_reply(&mut self) -> bool {
        let [kind, len] = self.words();
        let mut bytes = vec![0; len as usize];
        self.replies.read_exact(&mut bytes).expect("lwIP is alive");
        match kind {
            STATE => {
                self.take_state(&bytes);
                return true;
            }
            SENT_FRAME => self.output.push(bytes),
            DATA => self.data.extend(bytes),
            _ => panic!("an unknown reply {kind}"),
        }
        false
    }

    fn words(&mut self) -> [u32; 2] {
        let mut bytes = [0; 8];
        if let Err(error) = self.replies.read_exact(&mut bytes) {
            panic!("lwIP has ended: {error}, {:?}", self.child.wait());
        }
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        [word(0), word(4)]
    }

    fn take_state(&mut self, bytes: &[u8]) {
        let mut words =
            bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().expect("4 bytes")));
        let state: [u32; STATE_WORDS] = std::array::from_fn(|_| words.next().expect("a word"));
        let [established, ended, closed, reset, written, queued, sleep_ms] = state;
        self.status = Status {
            established: established > 0,
            ended: ended > 0,
            closed: closed > 0 && reset == 0,
            reset: reset > 0,
        };
        self.written = written as usize;
        self.queued = queued > 0;
        // Its clock counts whole milliseconds: a timer expires when the count is reached.
        let count = Duration::from_millis(self.now.as_nanos() / 1_000_000);
        self.next = match sleep_ms {
            NO_TIMER => Instant::NEVER,
            _ => Instant::ZERO + count + Duration::from_millis(sleep_ms.into()),
        };
    }
}

impl Stack for Lwip {
    fn connect(&mut self) {
        self.request(CONNECT, &[]);
    }

    fn input(&mut self, now: Instant, frame: &[u8]) {
        self.now = now;
        self.request(FRAME, frame);
    }

    fn poll(&mut self, now: Instant) {
        self.now = now;
        if self.next <= now {
            self.request(POLL, &[]);
        }
    }

    fn take_output(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.output)
    }

    fn next_timeout(&mut self) -> Instant {
        self.next
    }

    fn send(&mut self, data: &[u8]) -> usize {
        self.request(WRITE, data);
        self.written
    }

    fn is_all_acknowledged(&mut self) -> bool {
        !self.queued
    }

    fn recv(&mut self, most: usize) -> Vec<u8> {
        self.request(READ, &(most as u32).to_ne_bytes());
        std::mem::take(&mut self.data)
    }

    fn close(&mut self) {
        self.request(CLOSE, &[]);
    }

    fn abort(&mut self) {
        self.request(ABORT, &[]);
    }

    fn status(&self) -> Status {
        self.status
    }
}

impl Drop for Lwip {
    fn drop(&mut self) {
        // The end of its input ends the process.
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}
