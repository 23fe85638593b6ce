//! When a VM's requests leave, and its answers to SYNs.
//!
//! # Theory of operation
//! Idle connections keep what they were granted: two segments at least, and more where few shared the rate. A VM that asks
//! many peers at once (partition and aggregate) gets as many such answers at once, whatever the pacer of the
//! edges says, and together they are more than the port in front of the host queues: incast. The edges cannot be taken
//! back, but the answers have not been asked for yet: the request passes here first. So requests that come after a pause
//! ([`unused_credit`](super::unused_credit)) leave at the rate at which their answers fit the VM's share of the link, with the tolerance that
//! any burst has; the others wait in turn, each at most [`MAX_HOLD`](super::MAX_HOLD). What the answers will use
//! is charged to the pacer of the edges, too, if it was granted so long ago that this pacer has forgotten it.
//!
//! A request is new data of the VM after data of its peer, or the first. One that waits is a single segment, and whatever else its
//! connection sends comes behind it: a second segment, FIN or RST makes it leave. A bare ACK overtakes it, with the sequence
//! number that has left. A repetition of what waits is absorbed.
//! A connection counts as active from its request on: else the rate that many requests need would come with the first answer
//! only.
//!
//! **A SYN-ACK** invites the first two segments of a peer that has something to say, and many peers may call at the same time. SYN-ACKs leave at
//! the rate at which the *link* takes those: a VM without connections has no share to speak of, and what nobody has
//! confirmed must not gain it one. They have a line of their own, so that a flood of SYNs delays nothing but SYN-ACKs.

use floodway_wire::tcp::Flags;

use super::connection::Phase;
use super::paced_queue::PacedQueue;
use super::port::{PASS, Sink, Verdict, WindowClamp};
use super::unused_credit::Request;
use super::waiting::{Admission, Waiting, What};
use crate::tables::flow_table::FlowId;
use crate::tcp::{Edit, Segment};
use crate::time::Instant;

/// What one call lets go at most of each line.
const TURNS_PER_CALL: usize = 256;

impl<B> WindowClamp<B> {
    /// Takes data or a FIN of the VM for what it is; `is_new` says that it was not sent before.
    pub(super) fn request(
        &mut self,
        id: FlowId,
        segment: &Segment,
        is_new: bool,
        now: Instant,
        sink: &mut impl Sink<B>,
    ) -> Admission {
        let Some(connection) = self.flows.get_mut(id) else { return Admission::Passes };
        if let Some(waiting) = &connection.waiting {
            if waiting.is(segment) && !segment.options.unknown {
                return Admission::Absorb;
            }
            self.leave_now(id, now, sink);
            return Admission::Passes;
        }
        if !is_new || segment.len == 0 {
            return Admission::Passes;
        }
        let (highest, edge) = (connection.highest, connection.window.advertised_edge);
        let pause = connection.time.least();
        let Some(request) = connection.unused_credit.detect_request(highest, edge, pause, now)
        else {
            return Admission::Passes;
        };
        let fits = segment.len <= connection.mss && segment.gso_size == 0;
        self.activate(id, now);
        let busy = self.requests.is_busy(now);
        if busy && fits && is_plain(segment) && request.granted > 0 {
            return Admission::Waits(request);
        }
        self.pay(id, request, now);
        Admission::Passes
    }

    /// A request has to wait.
    pub(super) fn postpone(
        &mut self,
        id: FlowId,
        segment: &Segment,
        frame: B,
        request: Request,
        now: Instant,
    ) -> Verdict {
        let Some(connection) = self.flows.get_mut(id) else { return PASS };
        let Some(place) = self.requests.join(id) else { return PASS };
        connection.window.note(segment.ack, segment.window);
        connection.waiting = Some(Waiting {
            frame,
            seq: segment.seq,
            len: segment.len,
            since: now,
            what: What::Request(request),
            place,
        });
        self.limited = true;
        self.counters.requests_held().add(1);
        Verdict::Absorb
    }

    /// A SYN-ACK that tells a window of `window` leaves, or waits for its turn.
    pub(super) fn answer_syn(
        &mut self,
        id: FlowId,
        segment: &Segment,
        window: u16,
        keep: impl FnOnce() -> Option<B>,
        now: Instant,
    ) -> Verdict {
        let pass = Verdict::with_window(segment.window, window);
        let Some(connection) = self.flows.get_mut(id) else { return pass };
        let cost = connection.cost(window.into());
        let frame = if self.syn_acks.is_busy(now) { keep() } else { None };
        let Some((frame, place)) = frame.and_then(|frame| Some((frame, self.syn_acks.join(id)?)))
        else {
            self.syn_acks.pacer.charge(cost, now);
            return pass;
        };
        let what = What::SynAck { window, cost };
        let (seq, len) = (segment.seq, segment.len);
        let waiting = Waiting { frame, seq, len, since: now, what, place };
        let before = connection.waiting.replace(waiting);
        self.lose(before);
        self.counters.syn_acks_held().add(1);
        self.settle(id);
        Verdict::Absorb
    }

    /// Lets go whose turn it is.
    pub(super) fn take_turns(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        for line in [Self::request_queue, Self::syn_ack_queue] {
            for _ in 0..TURNS_PER_CALL {
                let Some(id) = line(self).serve(now) else { break };
                let waiting = self.flows.get_mut(id).and_then(|found| found.waiting.take());
                if let Some(waiting) = waiting {
                    self.leave(id, waiting, now, sink);
                }
            }
        }
    }

    /// Lets go what cannot wait any longer.
    pub(super) fn leave_now(&mut self, id: FlowId, now: Instant, sink: &mut impl Sink<B>) {
        let waiting = self.flows.get_mut(id).and_then(|connection| connection.waiting.take());
        if let Some(waiting) = waiting {
            self.leave_line(&waiting);
            self.counters.requests_late().add(1);
            self.leave(id, waiting, now, sink);
        }
    }

    /// What waited of a connection is lost.
    pub(super) fn lose(&mut self, waiting: Option<Waiting<B>>) {
        if let Some(waiting) = waiting {
            self.leave_line(&waiting);
            self.counters.waiting_lost().add(1);
        }
    }

    fn leave_line(&mut self, waiting: &Waiting<B>) {
        match waiting.what {
            What::Request(_) => self.requests.leave(waiting.place),
            What::SynAck { .. } => self.syn_acks.leave(waiting.place),
        }
    }

    /// Sends what has left its line.
    fn leave(&mut self, id: FlowId, waiting: Waiting<B>, now: Instant, sink: &mut impl Sink<B>) {
        let Some(connection) = self.flows.get_mut(id) else { return };
        let Waiting { frame, what, .. } = waiting;
        match what {
            What::Request(request) => self.ask(id, &frame, request, now, sink),
            What::SynAck { window, cost } => {
                if let Phase::Opening(handshake) = &mut connection.phase {
                    handshake.left(now);
                }
                // One whose peer has excluded the connection meanwhile leaves as it came.
                let window = matches!(connection.phase, Phase::Opening(_)).then_some(window);
                sink.send(&frame, &Edit { window, ..Edit::default() });
                self.syn_acks.pacer.charge(cost, now);
            }
        }
        self.settle(id);
    }

    fn ask(
        &mut self,
        id: FlowId,
        frame: &B,
        request: Request,
        now: Instant,
        sink: &mut impl Sink<B>,
    ) {
        let Some(connection) = self.flows.get_mut(id) else { return };
        let urgent = connection.window.urgent(connection.floor());
        let old = connection.window.advertised_edge;
        let (ack, own) = (connection.window.guest_ack, connection.window.own_field());
        let (field, advanced) = connection.window.tell(ack, own, urgent);
        if connection.is_holding() {
            // It says what the ACK would have said.
            connection.held_since = Instant::NEVER;
            self.counters.superseded().add(1);
        }
        sink.send(frame, &Edit { seq: None, ..connection.refreshed(field) });
        if advanced > 0 {
            connection.advanced(old, now);
            let cost = connection.cost(advanced);
            self.pacer.charge(cost, now);
        }
        self.pay(id, request, now);
    }

    /// The request leaves, and its answer may use what was granted.
    fn pay(&mut self, id: FlowId, request: Request, now: Instant) {
        let Some(connection) = self.flows.get_mut(id) else { return };
        connection.unused_credit.on_request_sent(now);
        let cost = connection.cost(request.granted);
        self.requests.pacer.charge(cost, now);
        if request.uncharged {
            self.pacer.charge(cost, now);
        }
    }

    fn request_queue(&mut self) -> &mut PacedQueue {
        &mut self.requests
    }

    fn syn_ack_queue(&mut self) -> &mut PacedQueue {
        &mut self.syn_acks
    }
}

/// It says nothing that cannot wait.
fn is_plain(segment: &Segment) -> bool {
    const SPECIAL: Flags = Flags::SYN
        .with(Flags::FIN)
        .with(Flags::RST)
        .with(Flags::ECE)
        .with(Flags::CWR)
        .with(Flags::URG);
    let options = &segment.options;
    !segment.flags.intersects(SPECIAL) && options.sack_blocks().is_empty() && !options.unknown
}
