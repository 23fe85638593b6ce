//! The sending end: runs a plan.

use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};

use super::pattern::{Block, HEADER, Header, Way};
use super::receive::{ask_for_timestamps, receive, unacknowledged};
use super::{Plan, Receiver, Sent};
use crate::stream::Bytes;

/// How often to look whether everything is acknowledged.
const ACK_POLL: Duration = Duration::from_micros(100);
const BUFFER: usize = 256 * 1024;

/// Runs a plan to its end, in the network namespace of the calling thread. A transfer that fails says so in
/// its result; the others go on.
///
/// # Errors
/// When the plan makes no sense; the error names the field.
pub fn send(plan: &Plan) -> io::Result<Vec<Sent>> {
    let wrong = |text: &str| Err(io::Error::new(ErrorKind::InvalidInput, text.to_owned()));
    if plan.bytes < HEADER as u64 {
        return wrong(&format!("bytes {}: must be at least {HEADER}", plan.bytes));
    }
    if plan.reply_bytes == 0 {
        return wrong("reply_bytes 0: must be at least 1");
    }
    let mut source = Source {
        plan,
        block: Block::new(plan.seed),
        buffer: vec![0; BUFFER],
        pauses: Bytes::new(plan.seed ^ plan.first_id),
    };
    if plan.back_to_back {
        sleep(source.next_pause());
        return Ok(source.back_to_back());
    }
    let mut sent = Vec::new();
    for round in 0..u64::from(plan.rounds) {
        sleep(source.next_pause());
        sent.extend(source.round(plan.first_id + round * plan.flows()));
    }
    Ok(sent)
}

struct Source<'a> {
    plan: &'a Plan,
    block: Block,
    buffer: Vec<u8>,
    pauses: Bytes,
}

impl Source<'_> {
    fn next_pause(&mut self) -> Duration {
        let mut word = [0; 8];
        self.pauses.fill(&mut word);
        // The bias of the remainder is one part in 2^40 for pauses of seconds.
        Duration::from_micros(u64::from_le_bytes(word) % (self.plan.pause_max_us + 1))
    }

    fn round(&mut self, first_id: u64) -> Vec<Sent> {
        let mut flows = self.open_all(first_id);
        let mut patience = Patience::new(self.plan);
        while flows.iter().any(Flow::open_still) {
            self.advance(&mut flows, &mut patience);
        }
        flows.into_iter().map(|flow| flow.sent).collect()
    }

    /// All rounds of every place, each at its own pace. Results are in the order of their numbers.
    fn back_to_back(&mut self) -> Vec<Sent> {
        let (rounds, width) = (u64::from(self.plan.rounds), self.plan.flows());
        let mut flows = self.open_all(self.plan.first_id);
        let mut done = vec![0; flows.len()];
        let mut uncounted = self.plan.first_id + rounds * width..;
        let mut patience = Patience::new(self.plan);
        let mut sent = Vec::new();
        loop {
            // Where none could even start there is nothing to wait for.
            if flows.iter().any(Flow::open_still) {
                self.advance(&mut flows, &mut patience);
            }
            for (flow, done) in
                flows.iter_mut().zip(&mut done).filter(|(flow, _)| !flow.open_still())
            {
                if *done < rounds {
                    *done += 1;
                    sent.push(flow.sent.clone());
                }
            }
            if done.iter().all(|&done| done == rounds) {
                break;
            }
            for (flow, &done) in flows.iter_mut().zip(&done).filter(|(flow, _)| !flow.open_still())
            {
                let id = if done < rounds {
                    flow.sent.id + width
                } else {
                    uncounted.next().unwrap_or(0)
                };
                let to = &self.plan.receivers[flow.sent.receiver];
                *flow = Flow::open(id, flow.sent.receiver, to, self.plan);
            }
        }
        while flows.iter().any(Flow::open_still) {
            self.advance(&mut flows, &mut patience);
        }
        sent.sort_unstable_by_key(|sent| sent.id);
        sent
    }

    /// The first transfer of each place.
    fn open_all(&self, first_id: u64) -> Vec<Flow> {
        let receivers = self.plan.receivers.iter().enumerate();
        let each = receivers.flat_map(|(index, to)| (0..to.flows).map(move |_| (index, to)));
        each.zip(first_id..).map(|((index, to), id)| Flow::open(id, index, to, self.plan)).collect()
    }

    /// Waits until there is something to do, and does it.
    fn advance(&mut self, flows: &mut [Flow], patience: &mut Patience) {
        if wait(flows, patience.limit) {
            patience.progress = Instant::now();
        }
        let stuck = patience.progress.elapsed() >= patience.limit;
        for flow in flows {
            flow.step(self.plan, &self.block, &mut self.buffer);
            if stuck && flow.open_still() {
                flow.fail(&io::Error::new(ErrorKind::TimedOut, "no progress"));
            }
        }
    }
}

/// How long to bear that nothing happens.
struct Patience {
    limit: Duration,
    progress: Instant,
}

impl Patience {
    fn new(plan: &Plan) -> Self {
        Self { limit: Duration::from_millis(plan.timeout_ms), progress: Instant::now() }
    }
}

/// Waits until a flow has something to do; `false` when the time was up before.
fn wait(flows: &mut [Flow], patience: Duration) -> bool {
    let watching = flows.iter().any(Flow::watches_acks);
    let timeout = if watching { ACK_POLL } else { patience };
    let timeout = Timespec::try_from(timeout).ok();
    let mut set: Vec<_> = flows
        .iter()
        .filter_map(|flow| {
            Some(PollFd::from_borrowed_fd(flow.socket.as_ref()?.as_fd(), flow.interest()))
        })
        .collect();
    // An error leaves every flow to find out by itself.
    poll(&mut set, timeout.as_ref()).is_ok_and(|ready| ready > 0)
}

/// One transfer under way.
struct Flow {
    sent: Sent,
    socket: Option<TcpStream>,
    begin: Instant,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Connecting,
    Sending { since: Instant, written: u64 },
    Waiting { since: Instant, watching: bool, got: u64, first_ns: u64 },
    Done,
}

impl Flow {
    fn open(id: u64, receiver: usize, to: &Receiver, plan: &Plan) -> Self {
        let begin = Instant::now();
        let (connect_ns, acked_ns, reply_ns, whole_ns) = (0, None, 0, 0);
        let sent = Sent { id, receiver, connect_ns, acked_ns, reply_ns, whole_ns, error: None };
        let mut flow = Self { sent, socket: None, begin, state: State::Connecting };
        match start_connection(to, plan) {
            Ok(socket) => flow.socket = Some(socket),
            Err(error) => flow.fail(&error),
        }
        flow
    }

    fn open_still(&self) -> bool {
        self.socket.is_some()
    }

    fn watches_acks(&self) -> bool {
        self.open_still() && matches!(self.state, State::Waiting { watching: true, .. })
    }

    fn interest(&self) -> PollFlags {
        match self.state {
            State::Connecting | State::Sending { .. } => PollFlags::OUT,
            State::Waiting { .. } | State::Done => PollFlags::IN,
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.sent.error = Some(error.to_string());
        self.socket = None;
        self.state = State::Done;
    }

    /// Does what can be done without waiting.
    fn step(&mut self, plan: &Plan, block: &Block, buffer: &mut [u8]) {
        let Some(socket) = self.socket.take() else { return };
        match self.advance(&socket, plan, block, buffer) {
            Ok(()) if matches!(self.state, State::Done) => {}
            Ok(()) => self.socket = Some(socket),
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.socket = Some(socket),
            Err(error) => self.fail(&error),
        }
    }

    fn advance(
        &mut self,
        socket: &TcpStream,
        plan: &Plan,
        block: &Block,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        if matches!(self.state, State::Connecting) {
            if !is_connected(socket)? {
                return Ok(());
            }
            self.sent.connect_ns = nanoseconds(self.begin);
            self.state = State::Sending { since: Instant::now(), written: 0 };
        }
        if let State::Sending { since, written } = &mut self.state {
            write(socket, self.sent.id, plan, block, written)?;
            let since = *since;
            self.state = State::Waiting { since, watching: plan.watch_acks, got: 0, first_ns: 0 };
        }
        self.watch(socket)?;
        self.read(socket, plan, block, buffer)
    }

    /// Notes when nothing is unacknowledged any more.
    fn watch(&mut self, socket: &TcpStream) -> io::Result<()> {
        if let State::Waiting { since, watching: watching @ true, .. } = &mut self.state
            && unacknowledged(socket)? == 0
        {
            self.sent.acked_ns = Some(nanoseconds(*since));
            *watching = false;
        }
        Ok(())
    }

    fn read(
        &mut self,
        socket: &TcpStream,
        plan: &Plan,
        block: &Block,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        while let State::Waiting { since, watching, got, first_ns } = &mut self.state {
            let (len, time) = receive(socket, buffer)?;
            if len == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed before the reply"));
            }
            if *got == 0 {
                *first_ns = time;
            }
            if !block.holds(self.sent.id, Way::Back, *got, &buffer[..len]) {
                return Err(io::Error::new(ErrorKind::InvalidData, "another reply than expected"));
            }
            *got += len as u64;
            if *got >= plan.reply_bytes {
                self.sent.reply_ns = time.saturating_sub(*first_ns);
                self.sent.whole_ns = nanoseconds(self.begin);
                if *watching {
                    // The reply acknowledges everything, and came before we looked again.
                    self.sent.acked_ns = Some(nanoseconds(*since));
                }
                self.state = State::Done;
            }
        }
        Ok(())
    }
}

fn start_connection(to: &Receiver, plan: &Plan) -> io::Result<TcpStream> {
    let family = if to.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    ask_for_timestamps(&socket)?;
    if let Some(name) = &plan.congestion_control {
        sockopt::set_tcp_congestion(&socket, name)?;
    }
    match connect(&socket, &to.address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

fn is_connected(socket: &TcpStream) -> io::Result<bool> {
    sockopt::socket_error(socket)??;
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes from `written` on, header and content in one call, so that the first segment is a full one.
fn write(
    mut socket: &TcpStream,
    id: u64,
    plan: &Plan,
    block: &Block,
    written: &mut u64,
) -> io::Result<()> {
    let header =
        Header { id, bytes: plan.bytes, reply_bytes: plan.reply_bytes, seed: plan.seed }.encode();
    while *written < plan.bytes {
        let head = &header[(*written).min(HEADER as u64) as usize..];
        let offset = (*written).max(HEADER as u64) - HEADER as u64;
        let left = plan.bytes - HEADER as u64 - offset;
        let [first, second] = block.slices(id, Way::There, offset, left);
        match socket.write_vectored(&[IoSlice::new(head), first, second]) {
            Ok(len) => *written += len as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::Sink;

    fn plan(receivers: &[(&Sink, u32)], bytes: u64, rounds: u32) -> Plan {
        let receivers = receivers
            .iter()
            .map(|(sink, flows)| Receiver { address: sink.address(), flows: *flows })
            .collect();
        Plan {
            receivers,
            bytes,
            reply_bytes: 1,
            rounds,
            back_to_back: false,
            pause_max_us: 100,
            seed: 7,
            first_id: 100,
            congestion_control: None,
            watch_acks: false,
            timeout_ms: 60_000,
        }
    }

    fn sink() -> Sink {
        Sink::listen("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    #[test]
    fn every_transfer_arrives_whole_and_is_timed_at_both_ends() {
        for bytes in [HEADER as u64, 100_000, 3_000_000] {
            let sink = sink();
            let sent = send(&plan(&[(&sink, 1)], bytes, 3)).unwrap();
            let arrivals = sink.take();
            assert_eq!(sent.iter().map(|sent| sent.id).collect::<Vec<_>>(), [100, 101, 102]);
            for (sent, arrival) in sent.iter().zip(&arrivals) {
                assert_eq!(sent.error, None);
                assert_eq!((arrival.id, arrival.bytes), (sent.id, bytes));
                assert!(arrival.intact && arrival.first_ns <= arrival.last_ns);
                assert!(0 < sent.connect_ns && sent.connect_ns <= sent.whole_ns);
                assert_eq!(sent.acked_ns, None);
            }
            assert_eq!(arrivals.len(), 3);
            assert!(sink.take().is_empty());
        }
    }

    #[test]
    fn flows_of_a_round_go_to_all_receivers_at_once() {
        let (near, far) = (sink(), sink());
        let sent = send(&plan(&[(&near, 2), (&far, 3)], 50_000, 2)).unwrap();
        let receivers: Vec<_> = sent.iter().map(|sent| sent.receiver).collect();
        assert_eq!(receivers, [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]);
        let mut ids: Vec<_> = near.take().iter().map(|arrival| arrival.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [100, 101, 105, 106]);
        assert_eq!(far.take().len(), 6);
    }

    #[test]
    fn back_to_back_each_place_does_its_rounds_and_goes_on_until_all_have() {
        let (one, other) = (sink(), sink());
        let plan = Plan { back_to_back: true, ..plan(&[(&one, 1), (&other, 2)], 20_000, 4) };
        let sent = send(&plan).unwrap();
        assert_eq!(sent.iter().map(|sent| sent.id).collect::<Vec<_>>(), Vec::from_iter(100..112));
        let receivers: Vec<_> = sent.iter().map(|sent| sent.receiver).collect();
        assert_eq!(receivers, [0, 1, 1].repeat(4));
        assert!(sent.iter().all(|sent| sent.error.is_none()));
        let arrivals = [one.take(), other.take()].concat();
        assert!(arrivals.iter().all(|arrival| arrival.intact));
        for id in 100..112 {
            assert_eq!(arrivals.iter().filter(|arrival| arrival.id == id).count(), 1);
        }
    }

    #[test]
    fn back_to_back_a_place_that_fails_does_not_hold_up_the_others() {
        let sink = sink();
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut plan = Plan { back_to_back: true, ..plan(&[(&sink, 1)], 1000, 3) };
        plan.receivers.push(Receiver { address: nobody.local_addr().unwrap(), flows: 1 });
        drop(nobody);
        let failed = |plan: &Plan| {
            send(plan).unwrap().iter().map(|sent| sent.error.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(failed(&plan), [false, true].repeat(3));
        plan.congestion_control = Some("no-such-algorithm".into());
        assert_eq!(failed(&plan), [true; 6]);
    }

    #[test]
    fn a_long_reply_comes_back_and_acknowledgements_are_watched() {
        let sink = sink();
        let plan =
            Plan { reply_bytes: 2_000_000, watch_acks: true, ..plan(&[(&sink, 2)], 500_000, 2) };
        for sent in send(&plan).unwrap() {
            assert_eq!(sent.error, None);
            assert!(sent.acked_ns.is_some_and(|acked| acked > 0 && acked <= sent.whole_ns));
            assert!(sent.reply_ns <= sent.whole_ns);
        }
    }

    #[test]
    fn a_transfer_that_fails_says_why_and_the_others_go_on() {
        let sink = sink();
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut plan = plan(&[(&sink, 1)], 1000, 1);
        plan.receivers.push(Receiver { address: nobody.local_addr().unwrap(), flows: 1 });
        drop(nobody);
        let sent = send(&plan).unwrap();
        assert_eq!(sent[0].error, None);
        assert!(sent[1].error.as_deref().is_some_and(|text| text.contains("refused")), "{sent:?}");
        plan.congestion_control = Some("no-such-algorithm".into());
        assert!(send(&plan).unwrap()[0].error.is_some());
        plan.congestion_control = Some("reno".into());
        assert_eq!(send(&plan).unwrap()[0].error, None);
        let text = |plan: &Plan| send(plan).unwrap_err().to_string();
        assert!(text(&Plan { bytes: 39, ..plan.clone() }).starts_with("bytes 39"));
        assert!(text(&Plan { reply_bytes: 0, ..plan }).starts_with("reply_bytes 0"));
    }

    #[test]
    fn a_sink_that_stands_still_is_given_up() {
        // Accepted by the kernel, read by nobody.
        let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Receiver { address: deaf.local_addr().unwrap(), flows: 1 };
        let sink = sink();
        let plan =
            Plan { receivers: vec![receiver], timeout_ms: 50, ..plan(&[(&sink, 1)], 1000, 1) };
        let sent = send(&plan).unwrap();
        assert!(sent[0].error.as_deref().is_some_and(|text| text.contains("no progress")));
    }
}
