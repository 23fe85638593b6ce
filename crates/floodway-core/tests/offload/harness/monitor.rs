//! Watches the switch from outside and checks the invariants, packet by packet.
//!
//! It sees what comes to the switch and what leaves it, and knows the offload only by its summary.
//! What it allows to be in flight is what a sender by RFC 6675 with RACK (RFC 8985) would: of what was
//! sent, without what was acknowledged, SACKed, or sent before something that has arrived.

use std::collections::{BTreeSet, VecDeque};

use floodway_core::offload::{
    Config, Counters, EarlyAck, Edit, FlowSummary, RxState, TxState, Verdict,
};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;

use super::delivered::Delivered;
use super::early_ack::Promises;
use super::packet::{Packet, Position, unwrap};
use super::reference::{Ack, Reference, Terms};

/// What the switch takes for the smallest MSS of a peer, in bytes.
const SMALLEST_MSS: i64 = 88;

/// One transmission on the wire.
#[derive(Clone, Copy, Debug)]
struct Transmission {
    start: Position,
    end: Position,
    /// Order of sending, as RACK has it (RFC 8985 section 5.2).
    order: (Instant, Position),
    gone: bool,
}

/// What one side's SYN said.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    isn: Option<u32>,
    scale: Option<u8>,
    sack: bool,
    timestamps: bool,
    /// ECE and CWR.
    ecn: (bool, bool),
    mss: Option<u16>,
}

impl Side {
    fn of_syn(packet: &Packet) -> Self {
        let segment = &packet.segment;
        let options = &segment.options;
        Self {
            isn: Some(segment.seq.0),
            scale: options.window_scale,
            sack: options.sack_permitted,
            timestamps: options.timestamps.is_some(),
            ecn: (segment.has(Flags::ECE), segment.has(Flags::CWR)),
            mss: options.mss,
        }
    }
}

#[derive(Debug, Default)]
pub struct Monitor {
    guest: Side,
    peer: Side,
    // What the guest sends, as it is on the wire.
    wire_una: Position,
    wire_nxt: Position,
    peer_edge: Position,
    /// The right edge of the latest ACK.
    latest_edge: Option<Position>,
    in_flight: VecDeque<Transmission>,
    arrived_order: Option<(Instant, Position)>,
    /// Without SACK: bytes that duplicate ACKs say have arrived.
    dup_bytes: i64,
    // What the guest was told.
    advertised_edge: Position,
    advertised_ack: Position,
    advertised_while_online: bool,
    // The other direction.
    peer_seen: Position,
    peer_ranges: Vec<(Position, Position)>,
    /// What of it got into the guest's queue.
    delivered: Delivered,
    guest_ack: Position,
    guest_edge: Position,
    /// As its latest segment has it: it may take back what it allowed.
    guest_edge_now: Position,
    wire_ack: Position,
    wire_edge: Position,
    peer_fin: Option<Position>,
    guest_tsval: Option<u32>,
    wire_tsval: Option<u32>,
    peer_tsvals: BTreeSet<u32>,
    /// The latest of them.
    peer_tsval: Option<Seq>,
    last_counters: Counters,
    /// Bytes released in this call, and what was in flight before.
    released: i64,
    pipe_before: i64,
    /// What had been sent at the time of each tail loss probe whose answer is not known.
    probes: Vec<Position>,
    pub most_in_flight: i64,
    /// By how much the right edge that the peer is told has gone back.
    pub most_edge_back: i64,
    pub ce_to_guest: u64,
    pub ce_bytes_to_guest: i64,
    pub ece_from_switch: u64,
    pub passed_edited: u64,
    pub off: bool,
    /// What was acknowledged to the guest early.
    pub promises: Promises,
    /// What a compliant sender may have in flight.
    reference: Option<Reference>,
    /// When the guest's first SYN left, and how long it took to be answered.
    syn_left: Option<Instant>,
    handshake: Option<Duration>,
}

/// How the flow is seen after a call.
pub struct View<'a> {
    pub now: Instant,
    pub summary: Option<FlowSummary>,
    pub counters: &'a Counters,
    pub used: (u32, u32),
    pub config: &'a Config,
}

impl View<'_> {
    fn tx(&self) -> TxState {
        self.summary.map_or(TxState::Offline, |s| s.tx)
    }

    fn rx(&self) -> RxState {
        self.summary.map_or(RxState::Offline, |s| s.rx)
    }

    fn is_offline(&self) -> bool {
        let kept = self.summary.map_or(0, |s| s.kept);
        self.tx() == TxState::Offline && self.rx() == RxState::Offline && kept == 0
    }
}

impl Monitor {
    /// Begins in the middle of a switch's life.
    pub fn note_counters(&mut self, counters: &Counters) {
        self.last_counters = *counters;
    }

    /// What the peer has acknowledged.
    pub fn wire_una(&self) -> Position {
        self.wire_una
    }

    fn scale(&self, side: &Side) -> u8 {
        if self.guest.scale.is_some() && self.peer.scale.is_some() {
            side.scale.unwrap_or(0).min(14)
        } else {
            0
        }
    }

    fn sack(&self) -> bool {
        self.guest.sack && self.peer.sack
    }

    fn guest_pos(&self, base: Position, seq: Seq) -> Position {
        unwrap(base, self.guest.isn.unwrap_or(0), seq)
    }

    fn peer_pos(&self, base: Position, seq: Seq) -> Position {
        unwrap(base, self.peer.isn.unwrap_or(0), seq)
    }

    /// A segment comes from the guest.
    pub fn guest_sent(&mut self, packet: &Packet) {
        let segment = &packet.segment;
        if segment.has(Flags::SYN) {
            self.guest = Side::of_syn(packet);
        }
        if segment.len > 0 && self.guest.isn.is_some() {
            let start = self.guest_pos(self.wire_una, segment.seq);
            self.promises.guest_sent(start, start + i64::from(segment.len));
        }
        if let Some(timestamps) = segment.options.timestamps {
            let latest = self
                .guest_tsval
                .map_or(Seq(timestamps.value), |t| Seq(t).max(Seq(timestamps.value)));
            self.guest_tsval = Some(latest.0);
        }
        if segment.has(Flags::ACK) && self.peer.isn.is_some() {
            let ack = self.peer_pos(self.guest_ack, segment.ack);
            let scale = if segment.has(Flags::SYN) { 0 } else { self.scale(&self.guest) };
            for (left, right) in self.blocks_of_guest(packet, ack) {
                self.delivered.add(left, right);
            }
            if ack >= self.guest_ack {
                self.guest_ack = ack;
                let edge = ack + (i64::from(segment.window) << scale);
                self.guest_edge = self.guest_edge.max(edge);
                self.guest_edge_now = edge;
            }
        }
    }

    /// A segment comes from the network.
    pub fn peer_sent(&mut self, packet: &Packet, now: Instant) {
        let segment = &packet.segment;
        if segment.has(Flags::SYN) && self.peer.isn.is_none() {
            self.peer = Side::of_syn(packet);
            self.peer_seen = 1;
        }
        let stale = self.is_stale(packet);
        if let Some(timestamps) = segment.options.timestamps {
            let value = Seq(timestamps.value);
            self.peer_tsvals.insert(value.0);
            self.peer_tsval = Some(self.peer_tsval.map_or(value, |latest| latest.max(value)));
        }
        if segment.seq_len() > 0 && !segment.has(Flags::SYN) {
            let start = self.peer_pos(self.peer_seen, segment.seq);
            self.peer_ranges.push((start, start + i64::from(segment.seq_len())));
            self.peer_ranges.sort_unstable();
            for &(start, end) in &self.peer_ranges {
                if start <= self.peer_seen {
                    self.peer_seen = self.peer_seen.max(end);
                }
            }
            let seen = self.peer_seen;
            self.peer_ranges.retain(|&(_, end)| end > seen);
        }
        if segment.has(Flags::FIN) {
            self.peer_fin = Some(self.peer_pos(self.peer_seen, segment.end()));
        }
        if segment.has(Flags::ACK) && self.guest.isn.is_some() {
            let handshake = self.syn_left.map(|left| now.since(left));
            self.handshake = self.handshake.or(handshake);
            self.on_peer_ack(packet, stale, now);
        }
    }

    /// A segment of the peer with a later clock came before.
    fn is_stale(&self, packet: &Packet) -> bool {
        let clock = packet.segment.options.timestamps.map(|timestamps| Seq(timestamps.value));
        clock.zip(self.peer_tsval).is_some_and(|(clock, latest)| clock.before(latest))
    }

    /// `stale` says that [its clock is old](Self::is_stale).
    fn on_peer_ack(&mut self, packet: &Packet, stale: bool, now: Instant) {
        let segment = &packet.segment;
        let ack = self.guest_pos(self.wire_una, segment.ack);
        if ack > self.wire_nxt {
            return;
        }
        let scale = if segment.has(Flags::SYN) { 0 } else { self.scale(&self.peer) };
        let edge = ack + (i64::from(segment.window) << scale);
        let moves_window = self.latest_edge.replace(edge) != Some(edge);
        self.peer_edge = self.peer_edge.max(edge);
        if ack > self.wire_una {
            self.dup_bytes -= self.dup_bytes.min(ack - self.wire_una);
            self.wire_una = ack;
        } else if ack == self.wire_una && segment.is_pure_ack() {
            self.dup_bytes += i64::from(self.peer.mss.unwrap_or(1460));
        }
        let blocks: Vec<_> = segment
            .options
            .sack_blocks()
            .iter()
            .map(|b| (self.guest_pos(ack, Seq(b.left)), self.guest_pos(ack, Seq(b.right))))
            .collect();
        // The guest has acknowledged what lies behind it: not acceptable (RFC 9293 section 3.10.7.4).
        let old = self.peer_pos(self.guest_ack, segment.end()) < self.guest_ack;
        if let Some(reference) = self.reference.as_mut().filter(|_| !old) {
            let pure = segment.is_pure_ack();
            // On a SYN-ACK, which may come again, it means something else.
            let ece = segment.has(Flags::ECE) && !segment.has(Flags::SYN);
            reference.ack(now, &Ack { ack, sacks: &blocks, pure, moves_window, ece, stale });
        }
        for sent in &mut self.in_flight {
            let delivered = sent.end <= ack
                || blocks.iter().any(|&(left, right)| left <= sent.start && sent.end <= right);
            if delivered && !sent.gone {
                sent.gone = true;
                self.arrived_order = self.arrived_order.max(Some(sent.order));
            }
        }
        // What was sent before something that has arrived may be taken for lost.
        let arrived = self.arrived_order;
        for sent in &mut self.in_flight {
            sent.gone |= arrived.is_some_and(|arrived| sent.order < arrived);
        }
        while self.in_flight.front().is_some_and(|sent| sent.gone) {
            self.in_flight.pop_front();
        }
    }

    /// A router drops segments of more than `largest` bytes: if there are any, the frames that they were cut from count
    /// as lost.
    pub fn too_large(&mut self, largest: u32) {
        if let Some(reference) = &mut self.reference {
            reference.too_large(i64::from(largest));
        }
        if self.in_flight.iter().any(|sent| sent.end - sent.start > i64::from(largest)) {
            self.in_flight.iter_mut().for_each(|sent| sent.gone = true);
        }
    }

    fn pipe(&self) -> i64 {
        let sent = self.in_flight.iter().filter(|sent| !sent.gone);
        // Of a segment that was cut, a part may be acknowledged.
        let sent: i64 = sent.map(|sent| sent.end - sent.start.max(self.wire_una)).sum();
        if self.sack() {
            return sent;
        }
        // A repair takes the place of what was lost (RFC 6582).
        sent.min(self.wire_nxt - self.wire_una) - self.dup_bytes
    }

    /// A segment leaves for the network. `was` is the flow before the call.
    pub fn network_gets(&mut self, packet: &Packet, view: &View<'_>) {
        let segment = &packet.segment;
        if self.off || segment.has(Flags::SYN) || segment.has(Flags::RST) {
            if segment.has(Flags::SYN) {
                self.wire_nxt = 1;
                self.syn_left.get_or_insert(view.now);
                if segment.has(Flags::ACK) {
                    self.wire_ack = 1;
                    self.wire_edge = 1 + i64::from(segment.window);
                }
            }
            return;
        }
        self.check_tsval(packet);
        if segment.has(Flags::ACK) && self.peer.isn.is_some() {
            self.check_ack(packet, view);
        }
        let start = self.guest_pos(self.wire_nxt, segment.seq);
        let end = start + i64::from(segment.seq_len());
        if segment.seq_len() == 0 {
            let online = view.tx() != TxState::Offline;
            assert!(!online || start <= self.wire_nxt, "a segment without payload from the future");
            return;
        }
        if view.tx() != TxState::Offline {
            assert!(
                start <= self.wire_nxt,
                "a gap in what was released: {} {start}",
                self.wire_nxt
            );
            assert!(
                end <= self.peer_edge,
                "I1: {start}..{end} beyond the receiver's window {}",
                self.peer_edge
            );
            if self.released == 0 {
                self.pipe_before = self.pipe();
            }
            self.released += end - start;
        }
        self.start_reference(view);
        self.wire_nxt = self.wire_nxt.max(end);
        for piece in packet.segments() {
            let start = self.guest_pos(start, piece.segment.seq);
            let end = start + i64::from(piece.segment.seq_len());
            if let Some(reference) = &mut self.reference {
                reference.sent(view.now, start, end);
            }
            let order = (view.now, end);
            self.in_flight.push_back(Transmission { start, end, order, gone: false });
        }
    }

    /// The reference of the connection, which judges only what the switch sends.
    fn start_reference(&mut self, view: &View<'_>) {
        let terms = self.terms(view);
        let reference = self.reference.get_or_insert_with(|| Reference::new(terms));
        if view.tx() == TxState::Offline {
            reference.pause();
        } else {
            reference.resume();
        }
    }

    fn terms(&self, view: &View<'_>) -> Terms {
        let (guest, peer) = (&self.guest, &self.peer);
        let timestamps = guest.timestamps && peer.timestamps;
        // The smaller of what the two announced (RFC 6691, RFC 9293 section 3.7.1).
        let announced = peer.mss.unwrap_or(536).min(guest.mss.unwrap_or(536));
        let mss = i64::from(announced) - if timestamps { 12 } else { 0 };
        let asks = |side: &Side| side.ecn == (true, true);
        let agrees = |side: &Side| side.ecn == (true, false);
        Terms {
            algorithm: view.config.congestion,
            mss: mss.max(SMALLEST_MSS),
            initial_window: i64::from(view.config.initial_window),
            sack: self.sack(),
            ecn: (asks(guest) && agrees(peer)) || (asks(peer) && agrees(guest)),
            handshake: self.handshake.unwrap_or_default(),
        }
    }

    /// R4: the clock never goes back, and is never ahead of the guest's. The echo is one of the
    /// peer's.
    fn check_tsval(&mut self, packet: &Packet) {
        let Some(timestamps) = packet.segment.options.timestamps else { return };
        let value = Seq(timestamps.value);
        if let Some(last) = self.wire_tsval {
            assert!(!value.before(Seq(last)), "TSval goes back on the wire");
        }
        assert!(
            self.guest_tsval.is_some_and(|latest| !value.after(Seq(latest))),
            "R4: TSval ahead of the guest's"
        );
        self.wire_tsval = Some(value.0);
        assert!(
            timestamps.echo == 0 || self.peer_tsvals.contains(&timestamps.echo),
            "R4: the peer never sent what is echoed"
        );
    }

    fn check_ack(&mut self, packet: &Packet, view: &View<'_>) {
        let segment = &packet.segment;
        let ack = self.peer_pos(self.wire_ack, segment.ack);
        let involved = !view.is_offline() || view.tx() != TxState::Offline;
        if involved {
            assert!(ack >= self.wire_ack, "R5: ACK {ack} after {}", self.wire_ack);
        }
        assert!(
            ack <= self.peer_seen.max(self.guest_ack),
            "R2: what did not come was acknowledged"
        );
        if let Some(fin) = self.peer_fin
            && ack >= fin
        {
            assert!(self.guest_ack >= fin, "R7: a FIN was acknowledged for the guest");
        }
        assert!(ack <= self.guest_edge.max(1), "R2: acknowledged beyond the guest's window");
        if self.sack() {
            // What came twice may be what is kept for a guest that has lost it.
            let blocks = self.blocks_of_guest(packet, ack).into_iter();
            self.delivered.check(blocks.filter(|&(_, right)| right > ack));
        }
        self.wire_ack = self.wire_ack.max(ack);
        let edge = ack + (i64::from(segment.window) << self.scale(&self.guest));
        assert!(edge <= self.guest_edge, "R3: {edge} beyond the guest's edge {}", self.guest_edge);
        if involved {
            // Windows are whole units; RFC 7323 section 2.4 lets the edge go back by less than one.
            let back = self.wire_edge.min(self.guest_edge_now) - edge;
            assert!(back < 1 << self.scale(&self.guest), "R3: the edge goes back by {back}");
            self.most_edge_back = self.most_edge_back.max(back);
        }
        self.wire_edge = self.wire_edge.max(edge);
        if segment.has(Flags::ECE) {
            self.ece_from_switch += 1;
        }
    }

    /// SACK blocks of a segment from the guest's side with the number `ack`.
    fn blocks_of_guest(&self, packet: &Packet, ack: Position) -> Vec<(Position, Position)> {
        let blocks = packet.segment.options.sack_blocks().iter();
        let place = |seq| self.peer_pos(ack, Seq(seq));
        blocks.map(|block| (place(block.left), place(block.right))).collect()
    }

    /// A packet of the peer is in the guest's queue.
    pub fn delivered(&mut self, packet: &Packet) {
        let segment = &packet.segment;
        if self.peer.isn.is_some() && segment.seq_len() > 0 {
            let start = self.peer_pos(self.peer_seen, segment.seq);
            self.delivered.add(start, start + i64::from(segment.seq_len()));
        }
    }

    /// What waited in the guest's queue is lost: it has got what it has taken in, all before `nxt` and `parts`.
    pub fn lost_queue(&mut self, nxt: Position, parts: impl Iterator<Item = (Position, Position)>) {
        self.delivered = Delivered::default();
        self.delivered.add(0, nxt);
        parts.for_each(|(start, end)| self.delivered.add(start, end));
    }

    /// A segment is delivered to the guest, `redelivered` or not.
    pub fn guest_gets(&mut self, packet: &Packet, view: &View<'_>) {
        let segment = &packet.segment;
        if segment.ecn.0 == 3 {
            self.ce_to_guest += 1;
            self.ce_bytes_to_guest += i64::from(segment.len);
        }
        if self.off
            || !segment.has(Flags::ACK)
            || segment.has(Flags::RST)
            || self.guest.isn.is_none()
        {
            return;
        }
        let ack = self.guest_pos(self.wire_una, segment.ack);
        // One that is too old for any window the guest refuses (RFC 5961 section 5.2): what arrived so late is passed as such.
        let unsent = ack > self.wire_nxt && view.config.early_ack == EarlyAck::Never;
        if unsent || ack < self.wire_una - (1 << 30) {
            return;
        }
        let scale = if segment.has(Flags::SYN) { 0 } else { self.scale(&self.peer) };
        let edge = ack + (i64::from(segment.window) << scale);
        self.promises.guest_gets(ack, edge, self.wire_una, view);
        let online = !matches!(view.tx(), TxState::Offline);
        if segment.has(Flags::SYN) && self.advertised_while_online {
            // A repeated SYN-ACK means nothing to a guest that has had one; the first counts.
            assert!(edge <= self.advertised_edge, "a SYN-ACK that allows more than was granted");
            return;
        }
        if online && self.advertised_while_online {
            assert!(
                edge >= self.advertised_edge,
                "I3: the edge goes from {} to {edge}",
                self.advertised_edge
            );
            assert!(
                ack >= self.advertised_ack,
                "{ack} is acknowledged after {}",
                self.advertised_ack
            );
        }
        if online && !self.advertised_while_online {
            self.advertised_edge = edge;
        }
        self.advertised_ack = ack;
        self.advertised_edge = if online { self.advertised_edge.max(edge) } else { edge };
        self.advertised_while_online = online;
    }

    /// I5: what an offline flow's segment became.
    pub fn verdict(&mut self, verdict: &Verdict, offline: bool) {
        if let Verdict::Pass(edit) = verdict
            && *edit != Edit::default()
        {
            self.passed_edited += 1;
        }
        if offline && !self.off {
            assert_eq!(*verdict, Verdict::PASS, "I5: an offline flow is changed");
        }
    }

    /// After a call, when all that it did was shown.
    pub fn after(&mut self, view: &View<'_>) {
        assert!(
            view.used.0 <= view.config.budget,
            "I4: {} of {} used",
            view.used.0,
            view.config.budget
        );
        assert!(view.used.1 <= view.config.receive_budget, "receive budget: {:?}", view.used);
        if self.off {
            return;
        }
        let now = view.counters;
        if now.timeouts > self.last_counters.timeouts {
            // All that was sent before is taken for lost.
            let mut left = self.released;
            for sent in self.in_flight.iter_mut().rev() {
                if left <= 0 {
                    sent.gone = true;
                }
                left -= sent.end - sent.start;
            }
        }
        let probing = now.tail_loss_probes > self.last_counters.tail_loss_probes;
        if self.released > 0
            && let Some(summary) = view.summary
            && summary.tx != TxState::Offline
        {
            let mss = i64::from(self.peer.mss.unwrap_or(1460));
            let pipe = self.pipe();
            self.most_in_flight = self.most_in_flight.max(pipe);
            let mut allowed = i64::from(summary.cwnd);
            if probing {
                // RFC 8985 section 7.3: a probe is sent whatever the window says.
                allowed = allowed.max(self.pipe_before);
                self.probes.push(self.wire_nxt);
            }
            // What a probe repeats may be on its way as well.
            self.probes.retain(|&end| end > self.wire_una);
            allowed += mss * self.probes.len() as i64;
            assert!(pipe <= allowed, "I1: {pipe} in flight, cwnd {}: {summary:?}", summary.cwnd);
        }
        if let Some(reference) = &mut self.reference
            && let Err(reason) = reference.settle(view.now)
        {
            panic!("I1, by the wire: {reason} {:?}", view.summary);
        }
        self.released = 0;
        self.last_counters = *now;
    }
}
