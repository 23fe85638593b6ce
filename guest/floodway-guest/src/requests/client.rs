//! The end that asks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::outgoing::Outgoing;
use super::{BUFFER, DIGEST, Header, Waiter, digest, raise_descriptor_limit};

/// How often it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Connections that are made at the same time: each takes a round trip, and threads inherit the network namespace.
const OPENING: usize = 64;

/// What a client does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The server.
    pub address: SocketAddr,
    /// How many, all of which are open at once.
    pub connections: u32,
    /// Bytes of each request, a positive multiple of 8.
    pub request_bytes: u64,
    /// Bytes of each response, a positive multiple of 8.
    pub response_bytes: u64,
    /// From one request of a connection to its next one, if the response is there by then.
    pub interval: Duration,
    /// Seed of the bytes.
    pub seed: u64,
    /// How long a connection may take to be made, and all of them for what is missing after the stop.
    pub patience: Duration,
}

/// What became of the connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Those that were made.
    pub connections: u64,
    /// Those of them that broke, or from which something was missing at the end.
    pub lost: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests without a whole response.
    pub failed: u64,
    /// Digests that were not equal at both ends: up to two for each connection.
    pub differing: u64,
    /// Longest time from a request to the last byte of its response, in nanoseconds.
    pub longest_ns: u64,
    /// Why the first connection was lost.
    pub first_failure: Option<String>,
}

impl Outcome {
    /// Adds what became of other connections.
    pub fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.lost += other.lost;
        self.answered += other.answered;
        self.failed += other.failed;
        self.differing += other.differing;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }
}

/// A client, for the thread that runs it and for those that look on.
#[derive(Debug)]
pub struct Client {
    plan: Plan,
    stopped: AtomicBool,
    answered: AtomicU64,
}

impl Client {
    /// A client that has not begun.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self { plan, stopped: AtomicBool::new(false), answered: AtomicU64::new(0) }
    }

    /// Requests that were answered so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Returns `true` once as many requests are answered as two for each connection.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.answered() >= 2 * u64::from(self.plan.connections)
    }

    /// Lets connections end after the response that they wait for.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Makes all connections, in the network namespace of the calling thread, and asks until it is stopped.
    ///
    /// # Errors
    /// When the plan makes no sense, a connection cannot be made, or the system lacks descriptors. One that is lost is no error.
    pub fn run(&self) -> io::Result<Outcome> {
        raise_descriptor_limit()?;
        let mut run = Run::start(self)?;
        while !self.stopped.load(Ordering::Relaxed) && run.is_open() {
            run.ask_those_due();
            run.serve(run.until_next().min(LOOK))?;
        }
        run.end_idle();
        let deadline = Instant::now() + self.plan.patience;
        while run.is_open() && Instant::now() < deadline {
            run.serve(LOOK)?;
            run.end_idle();
        }
        Ok(run.outcome())
    }
}

/// A client that runs.
struct Run<'a> {
    client: &'a Client,
    waiter: Waiter,
    /// By number. Those that have ended leave their places empty.
    connections: Vec<Option<Connection>>,
    open: usize,
    /// When which connection may ask.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    buffer: Vec<u8>,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn start(client: &'a Client) -> io::Result<Self> {
        let plan = &client.plan;
        let waiter = Waiter::new()?;
        let connections = open_all(plan, &waiter)?;
        let open = connections.len();
        let begun = Instant::now();
        let due = (0..open).zip(0_u32..).map(|(number, place)| {
            // Not all at once.
            Reverse((begun + plan.interval * place / plan.connections, number))
        });
        let outcome = Outcome { connections: open as u64, ..Outcome::default() };
        let (due, buffer) = (due.collect(), vec![0; BUFFER]);
        Ok(Self { client, waiter, connections, open, due, buffer, outcome })
    }

    fn is_open(&self) -> bool {
        self.open > 0
    }

    fn until_next(&self) -> Duration {
        let next = self.due.peek().map(|Reverse((due, _))| *due);
        next.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()))
    }

    fn ask_those_due(&mut self) {
        while self.due.peek().is_some_and(|Reverse((due, _))| *due <= Instant::now()) {
            let Some(Reverse((_, number))) = self.due.pop() else { return };
            let client = self.client;
            self.with(number, |connection, _| connection.ask(&client.plan));
        }
    }

    /// Lets connections that wait for no response end.
    fn end_idle(&mut self) {
        for Reverse((_, number)) in std::mem::take(&mut self.due) {
            self.with(number, |connection, _| connection.end());
        }
    }

    /// Waits for up to `timeout`, and reads and writes what there is.
    fn serve(&mut self, timeout: Duration) -> io::Result<()> {
        for number in self.waiter.wait(Some(timeout))? {
            self.with(number as usize, Connection::serve);
        }
        Ok(())
    }

    /// Lets a connection do something, and sees to what that leads to.
    fn with(
        &mut self,
        number: usize,
        act: impl FnOnce(&mut Connection, &mut [u8]) -> io::Result<Step>,
    ) {
        let Some(connection) = self.connections.get_mut(number).and_then(Option::as_mut) else {
            return;
        };
        match act(connection, &mut self.buffer) {
            Ok(Step::Goes) => {}
            Ok(Step::Answered) => self.answered(number),
            Ok(Step::Ended) => {
                self.outcome.differing += connection.differing();
                self.close(number);
            }
            Err(error) => self.lose(number, &error),
        }
    }

    fn answered(&mut self, number: usize) {
        let Some(connection) = &self.connections[number] else { return };
        let took = u64::try_from(connection.asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.outcome.longest_ns = self.outcome.longest_ns.max(took);
        self.outcome.answered += 1;
        self.client.answered.fetch_add(1, Ordering::Relaxed);
        self.due.push(Reverse((connection.asked + self.client.plan.interval, number)));
    }

    fn lose(&mut self, number: usize, error: &io::Error) {
        let waits = self.connections[number].as_ref().is_some_and(|it| it.phase == Phase::Asked);
        self.outcome.failed += u64::from(waits);
        self.outcome.lost += 1;
        self.outcome.first_failure.get_or_insert_with(|| error.to_string());
        self.close(number);
    }

    fn close(&mut self, number: usize) {
        self.connections[number] = None;
        self.open -= 1;
    }

    /// Loses those that are still open.
    fn outcome(mut self) -> Outcome {
        let missing = io::Error::new(ErrorKind::TimedOut, "a response or the digests are missing");
        for number in 0..self.connections.len() {
            if self.connections[number].is_some() {
                self.lose(number, &missing);
            }
        }
        self.outcome
    }
}

/// Makes all connections of `plan`, in order of their numbers.
fn open_all(plan: &Plan, waiter: &Waiter) -> io::Result<Vec<Option<Connection>>> {
    let numbers: Vec<_> = (0..u64::from(plan.connections)).collect();
    let mut connections = Vec::with_capacity(numbers.len());
    for at_once in numbers.chunks(OPENING) {
        let opened: Vec<_> = thread::scope(|scope| {
            let open = |&number| scope.spawn(move || Connection::open(plan, number, waiter));
            let threads: Vec<_> = at_once.iter().map(open).collect();
            threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        for connection in opened {
            connections.push(Some(connection.map_err(|_| io::Error::other("a thread panicked"))??));
        }
    }
    Ok(connections)
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its time.
    Idle,
    /// A response.
    Asked,
    /// The server's digests.
    Ending,
}

/// What came of something that a connection did.
enum Step {
    Goes,
    /// A response is whole.
    Answered,
    /// The server has closed, after its digests.
    Ended,
}

struct Connection {
    socket: TcpStream,
    out: Outgoing,
    received: Sha256,
    phase: Phase,
    /// Of the response.
    missing: u64,
    asked: Instant,
    /// What has come of the server's digests.
    digests: Vec<u8>,
}

impl Connection {
    fn open(plan: &Plan, number: u64, waiter: &Waiter) -> io::Result<Self> {
        let seed = plan.seed.wrapping_add(number);
        let header =
            Header { request_bytes: plan.request_bytes, response_bytes: plan.response_bytes, seed };
        if !header.is_possible() {
            let text = "request_bytes, response_bytes: must be positive multiples of 8";
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let socket = TcpStream::connect_timeout(&plan.address, plan.patience)?;
        socket.set_nodelay(true)?;
        waiter.add_connection(&socket, number)?;
        Ok(Self {
            socket,
            out: Outgoing::new(seed, header.encode()),
            received: Sha256::new(),
            phase: Phase::Idle,
            missing: 0,
            asked: Instant::now(),
            digests: Vec::new(),
        })
    }

    fn ask(&mut self, plan: &Plan) -> io::Result<Step> {
        self.asked = Instant::now();
        self.phase = Phase::Asked;
        self.missing = plan.response_bytes;
        self.out.owe(plan.request_bytes);
        self.out.write(&self.socket)?;
        Ok(Step::Goes)
    }

    fn end(&mut self) -> io::Result<Step> {
        self.phase = Phase::Ending;
        self.socket.shutdown(Shutdown::Write)?;
        Ok(Step::Goes)
    }

    fn serve(&mut self, buffer: &mut [u8]) -> io::Result<Step> {
        self.out.write(&self.socket)?;
        loop {
            match self.socket.read(buffer) {
                Ok(0) if self.digests.len() == 2 * DIGEST => return Ok(Step::Ended),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.take(&buffer[..len])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.phase != Phase::Asked || self.missing > 0 {
            return Ok(Step::Goes);
        }
        self.phase = Phase::Idle;
        Ok(Step::Answered)
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.phase == Phase::Ending {
            self.digests.extend_from_slice(bytes);
            return Ok(());
        }
        self.received.update(bytes);
        let left = self.missing.checked_sub(bytes.len() as u64);
        self.missing = left.ok_or_else(|| {
            io::Error::new(ErrorKind::InvalidData, "more has come than was asked for")
        })?;
        Ok(())
    }

    /// Returns how many of the server's digests, of what came to it and of what left it, are not those of this end.
    fn differing(&self) -> u64 {
        let own = [self.out.digest(), digest(&self.received)];
        let is_other = |(index, own): (usize, &[u8; DIGEST])| {
            self.digests.get(index * DIGEST..(index + 1) * DIGEST) != Some(&own[..])
        };
        own.iter().enumerate().filter(|&it| is_other(it)).count() as u64
    }
}
