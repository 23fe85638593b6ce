//! The receiving half: reassembly, window, acknowledgements.

use std::collections::BTreeMap;

use floodway_core::offload::Ecn;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::SackBlock;

use super::TcpConfig;
use crate::harness::packet::{Packet, Position, byte_at};

/// How often a slow reader reads.
const READ_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Receiving {
    /// Next byte in order; 0 waits for the SYN.
    pub nxt: Position,
    /// Right edge that was advertised.
    pub edge: Position,
    /// What the application has read.
    pub read: Position,
    /// Behind the FIN.
    pub fin: Option<Position>,
    pub ts_recent: u32,
    out_of_order: BTreeMap<Position, Position>,
    /// Starts of the ranges out of order, the latest change first.
    recent: Vec<Position>,
    /// A range that came twice.
    dsack: Option<(Position, Position)>,
    /// In-order data that was not acknowledged.
    unacked: u32,
    pub ack_now: bool,
    pub ack_at: Instant,
    read_at: Instant,
    /// CE was seen and CWR was not.
    pub echo: bool,
    /// Position behind the last byte that was acknowledged to the other side.
    pub acked: Position,
    pub paused: bool,
    /// Of the bytes that have come, if that is wanted.
    pub digest: Option<Digest>,
}

/// A digest of the bytes of a stream at their places, in whatever order they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Of the first `bytes` bytes of payload of a stream, as its sender wrote them.
    pub fn of_stream(bytes: i64) -> Self {
        let mut digest = Self::default();
        digest.add(1, 1, bytes);
        digest
    }

    /// Takes `len` bytes that lie at `place` away, which were written there.
    fn remove(&mut self, place: Position, len: i64) {
        let mut removed = Self::default();
        removed.add(place, place, len);
        self.0 = self.0.wrapping_sub(removed.0);
    }

    /// Adds `len` bytes that lie at `place` of the stream, and are those that were written at `at`.
    fn add(&mut self, place: Position, at: Position, len: i64) {
        for n in 0..len {
            let weight = (place + n) as u64 ^ 0x5bd1_e995;
            let byte = u64::from(byte_at(at + n)) + 1;
            self.0 =
                self.0.wrapping_add(weight.wrapping_mul(0xff51_afd7_ed55_8ccd).wrapping_mul(byte));
        }
    }
}

impl Receiving {
    pub fn new() -> Self {
        Self {
            nxt: 0,
            edge: 0,
            read: 1,
            fin: None,
            ts_recent: 0,
            out_of_order: BTreeMap::new(),
            recent: Vec::new(),
            dsack: None,
            unacked: 0,
            ack_now: false,
            ack_at: Instant::NEVER,
            read_at: Instant::NEVER,
            echo: false,
            acked: 0,
            paused: false,
            digest: None,
        }
    }

    /// Takes in the payload and FIN of an acceptable segment that starts at `start`.
    pub fn take(&mut self, start: Position, packet: &Packet, config: &TcpConfig, now: Instant) {
        let segment = &packet.segment;
        if config.ecn && !config.dctcp && segment.has(Flags::CWR) {
            self.echo = false;
        }
        if config.ecn && !config.dctcp && segment.ecn == Ecn::CE {
            self.echo = true;
        }
        let len = i64::from(segment.len);
        if len > 0 {
            // The byte at each place is the one that belongs there.
            assert_eq!(packet.at, start, "wrong bytes at {start}");
        }
        let fin = segment.has(Flags::FIN);
        let end = start + len + i64::from(fin);
        if start == end {
            return;
        }
        if fin {
            let before = self.fin.replace(end);
            assert!(before.is_none_or(|before| before == end), "a second end of the stream");
        }
        assert!(self.fin.is_none_or(|fin| end <= fin), "bytes behind the end of the stream");
        self.digest_new(start, start + len, packet.at);
        if end <= self.nxt {
            self.dsack = config.sack.then_some((start, end));
            self.ack_now = true;
            return;
        }
        if start > self.nxt {
            self.keep_out_of_order(start, end);
            self.ack_now = true;
            return;
        }
        if start < self.nxt {
            self.dsack = config.sack.then_some((start, self.nxt));
            self.ack_now = true;
        }
        self.nxt = end;
        self.join(config);
        self.unacked += 1;
        if self.unacked >= config.ack_every || fin {
            self.ack_now = true;
        } else {
            self.ack_at = self.ack_at.min(now + config.delayed_ack);
        }
        self.application_reads(config, now);
    }

    /// Takes the bytes of `start..end`, written at `at`, that have not come before into the digest.
    fn digest_new(&mut self, start: Position, end: Position, at: Position) {
        let Some(mut digest) = self.digest else { return };
        let mut from = start.max(self.nxt);
        while from < end {
            let known = self.out_of_order.range(..=from).next_back();
            if let Some((_, &known)) = known.filter(|&(_, &known)| known > from) {
                from = known;
                continue;
            }
            let next = self.out_of_order.range(from..).next().map_or(end, |(&next, _)| next);
            let to = next.min(end);
            digest.add(from, at + (from - start), to - from);
            from = to;
        }
        self.digest = Some(digest);
    }

    fn keep_out_of_order(&mut self, mut start: Position, mut end: Position) {
        let known = self.out_of_order.range(..=start).next_back().map(|(&s, &e)| (s, e));
        if let Some((s, e)) = known
            && e >= end
        {
            self.dsack = Some((start, end));
            self.touch(s);
            return;
        }
        let touching: Vec<_> = self
            .out_of_order
            .range(..=end)
            .filter(|&(_, &e)| e >= start)
            .map(|(&s, &e)| (s, e))
            .collect();
        for (s, e) in touching {
            start = start.min(s);
            end = end.max(e);
            self.out_of_order.remove(&s);
            self.recent.retain(|&r| r != s);
        }
        self.out_of_order.insert(start, end);
        self.touch(start);
    }

    /// Discards what is out of order, which the other side has been told of (RFC 2018 section 8).
    pub fn renege(&mut self) {
        let kept = std::mem::take(&mut self.out_of_order);
        self.recent.clear();
        if let Some(digest) = &mut self.digest {
            kept.into_iter().for_each(|(start, end)| digest.remove(start, end - start));
        }
    }

    fn touch(&mut self, start: Position) {
        self.recent.retain(|&s| s != start);
        self.recent.insert(0, start);
    }

    /// Takes what has become in order.
    fn join(&mut self, _config: &TcpConfig) {
        while let Some((&start, &end)) = self.out_of_order.first_key_value()
            && start <= self.nxt
        {
            self.out_of_order.pop_first();
            self.recent.retain(|&s| s != start);
            self.nxt = self.nxt.max(end);
            self.ack_now = true;
        }
        if !self.out_of_order.is_empty() {
            self.ack_now = true;
        }
    }

    fn application_reads(&mut self, config: &TcpConfig, now: Instant) {
        if self.paused {
            return;
        }
        if config.read_rate.is_none() {
            self.read = self.nxt;
        } else if self.read < self.nxt {
            self.read_at = self.read_at.min(now + READ_INTERVAL);
        }
    }

    pub fn resume(&mut self, config: &TcpConfig, now: Instant) {
        self.paused = false;
        self.application_reads(config, now);
        self.note_window(config);
    }

    /// Bytes that may come.
    fn room(&self, config: &TcpConfig) -> i64 {
        let unread = self.nxt - self.read.min(self.nxt);
        (i64::from(config.buffer) - unread).max(0)
    }

    /// The window to advertise, in bytes, before scaling: never moves the edge back, and does not open by less
    /// than a segment (RFC 9293 section 3.8.6.2.2).
    fn window(&mut self, config: &TcpConfig, scale: u8) -> u16 {
        let offered = self.edge - self.nxt;
        let room = self.room(config);
        let worth = i64::from(config.mss).min(i64::from(config.buffer) / 2);
        let worth = if config.silly { 1 } else { worth };
        let window = if room >= offered + worth { room } else { offered.max(0) };
        let units = (window >> scale).min(65_535);
        let units = if units << scale < offered {
            (offered >> scale) + i64::from(offered & ((1 << scale) - 1) != 0)
        } else {
            units
        };
        self.edge = self.edge.max(self.nxt + (units << scale));
        units.min(65_535) as u16
    }

    /// A window that has opened by much is worth an ACK.
    fn note_window(&mut self, config: &TcpConfig) {
        let offered = (self.edge - self.nxt).max(0);
        let gain = self.room(config) - offered;
        let much = 2 * i64::from(config.mss);
        if gain >= much.min(i64::from(config.buffer) / 2) && offered < i64::from(config.buffer) / 2
        {
            self.ack_now = true;
        }
    }

    pub fn on_time(&mut self, config: &TcpConfig, now: Instant) {
        if self.ack_at <= now {
            self.ack_now = true;
        }
        if self.read_at <= now && !self.paused {
            let rate = i64::from(config.read_rate.unwrap_or(u32::MAX));
            self.read = self.nxt.min(self.read + rate);
            self.read_at = if self.read < self.nxt { now + READ_INTERVAL } else { Instant::NEVER };
            self.note_window(config);
        }
    }

    pub fn next(&self) -> Instant {
        let read = if self.paused { Instant::NEVER } else { self.read_at };
        self.ack_at.min(read)
    }

    /// Fills in the fields of a segment that leaves.
    pub fn acknowledge(&mut self, packet: &mut Packet, config: &TcpConfig, scale: u8, isn: u32) {
        let segment = &mut packet.segment;
        segment.flags = segment.flags.with(Flags::ACK);
        segment.ack = floodway_core::seq::Seq(isn.wrapping_add(self.nxt as u32));
        segment.window = self.window(config, scale);
        if config.ecn && self.echo {
            segment.flags = segment.flags.with(Flags::ECE);
        }
        if config.sack {
            let most = if config.timestamps { 3 } else { 4 };
            let seq = |at: Position| isn.wrapping_add(at as u32);
            let block = |(left, right)| SackBlock { left: seq(left), right: seq(right) };
            let dsack = self.dsack.take().map(block);
            let known = self.recent.iter().filter_map(|&s| Some((s, *self.out_of_order.get(&s)?)));
            let blocks: Vec<_> = dsack.into_iter().chain(known.map(block)).take(most).collect();
            segment.options.set_sack_blocks(&blocks);
        }
        self.unacked = 0;
        self.ack_now = false;
        self.ack_at = Instant::NEVER;
        self.acked = self.nxt;
    }

    /// Ranges that came out of order.
    pub fn out_of_order(&self) -> impl Iterator<Item = (Position, Position)> {
        self.out_of_order.iter().map(|(&start, &end)| (start, end))
    }

    /// Bytes that came out of order.
    pub fn out_of_order_bytes(&self) -> i64 {
        self.out_of_order.iter().map(|(start, end)| end - start).sum()
    }

    /// Something came out of order.
    pub fn has_gap(&self) -> bool {
        !self.out_of_order.is_empty()
    }

    /// All that the other side had to send has arrived.
    pub fn is_complete(&self) -> bool {
        self.fin.is_some_and(|fin| self.nxt >= fin)
    }

    /// Bytes of payload in order.
    pub fn bytes(&self) -> i64 {
        self.nxt - 1 - i64::from(self.is_complete())
    }
}
