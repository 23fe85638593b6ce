//! Releasing: what leaves for the network, and when.
//!
//! Repairs come first, then new bytes, as long as `cwnd` has room, which in fast recovery is set by
//! proportional rate reduction (RFC 6937). A frame that does not fit into the quota is
//! cut at a multiple of the MSS.
//!
//! *Bursts*: a full queue drops what arrives beyond what has left it: the segment by which `cwnd` has grown, if it follows those that
//! the ACK has freed at once. So in congestion avoidance what the ACK says has been delivered leaves at once, one or two segments, or as much as
//! the flow's rate is in a millisecond. What else `cwnd` has room for leaves by itself, after the time that the burst takes at 1.2 times the flow's
//! rate (Linux's `tcp_pacing_ca_ratio`), or with the next ACK. It leaves within the round trip, so `cwnd` is in use and may grow
//! meanwhile, if what waits is less than two segments.
//!
//! *Pairs*: where the flow's rate is less than one segment in a millisecond, a segment waits for a second one: until the next ACK, or for the time that
//! a pair takes. It does not wait if that ACK is not due within half a round trip, nor if a third of `cwnd` may leave. After Linux's `tcp_tso_should_defer`, which
//! waits without a timer, at any rate, and only if something left within the last millisecond.
//!
//! *PSH* is at the end of each burst of more than one segment, and nowhere within, whatever the guest's frames had: their ends are not those of our
//! bursts. A receiver that has read all acknowledges at PSH (Linux from 6.7 on). Within a burst that would let the next one out before this one has
//! left the queue. Linux sets it in the last segment of each GSO packet, and not in single segments (`__tcp_transmit_skb`).

use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::{SackList, Timestamps};

use super::undo::Frto;
use super::{Env, Phase, Sender, Timer, initial_window};
use crate::congestion::MAX_CWND;
use crate::offload::counters::CounterCells;
use crate::offload::sink::{Sink, SynthesizedSegment, Transmission};
use crate::offload::state_pool::FreeList;
use crate::offload::store::{Chunk, Place};
use crate::seq::Seq;
use crate::tables::timer::ShortTime;
use crate::tcp::Ecn;
use crate::time::{Duration, Instant};

/// The longest wait between two probes of a closed window.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// The guest is given this long to send again what we could not store: more than two timeouts of its own.
const GAP_PATIENCE: Duration = Duration::from_millis(1000);
/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = 1_000_000;
/// Longer than any retransmission timeout, and short beside the 39 hours in which a [`ShortTime`] is unmistakable.
const LONG_IDLE: Duration = Duration::from_secs(3600);

impl<B: 'static> Sender<B> {
    /// Releases all that may leave, and sets the timer.
    #[inline]
    pub fn pump<S: Sink<B>>(&mut self, env: &mut Env<'_, S>) {
        let repairs = self.store.has_waiting() || self.recovery.frto == Frto::Probing;
        if self.held() > 0 || repairs {
            return self.release_all(env);
        }
        self.cwnd_limited = false;
        self.watch_gap(env.now);
        if let Some(recovery) = self.recovery.get_mut() {
            recovery.clocked = 0;
        }
        self.set_timer(env);
        self.note_release_time(env.now);
    }

    /// [`pump`](Self::pump), where something waits for its release.
    fn release_all<S: Sink<B>>(&mut self, env: &mut Env<'_, S>) {
        self.restart_after_idle(env);
        let mut quota = self.window.cwnd.saturating_sub(self.pipe());
        let probing = self.recovery.frto == Frto::Probing;
        if !probing && self.store.has_waiting() {
            self.release_repairs(&mut quota, env);
        }
        let next = self.store.snd_nxt();
        let at_once = self.at_once(quota, env.now);
        let waits_for_pair = at_once == 0 && quota > 0 && self.recovery.release_at == Instant::ZERO;
        let mut room = at_once;
        self.release_new(&mut room, env);
        if probing && self.store.snd_nxt() == next && self.pipe() == 0 {
            // No new bytes: nothing tells whether the timeout was needless.
            self.recovery.frto = Frto::Off;
            self.release_repairs(&mut quota, env);
        }
        if at_once < quota {
            // A window that waits is in use only if no more than the growth waits.
            let unused = quota - (at_once - room);
            self.cwnd_limited &= unused < 2 * self.window.mss;
            if waits_for_pair {
                self.pause(2 * self.window.mss, env.now);
            } else if room < self.window.mss {
                self.pause(self.store.snd_nxt().since(next), env.now);
            }
        }
        if !waits_for_pair && let Some(recovery) = self.recovery.get_mut() {
            recovery.clocked = 0;
        }
        self.set_timer(env);
        self.note_release_time(env.now);
    }

    /// The timer fires when new bytes may leave, if that is sooner than what it is set for.
    #[inline]
    fn note_release_time(&mut self, now: Instant) {
        let at = self.recovery.release_at;
        if at > now
            && let Some(recovery) = self.recovery.get_mut()
            && recovery.timer.is_none_or(|(_, other)| other > at)
        {
            recovery.timer = Some((Timer::Release, at));
        }
    }

    /// RFC 5681 section 4.1: after an idle time the ACK clock is gone, and `cwnd` with it.
    fn restart_after_idle<S>(&mut self, env: &Env<'_, S>) {
        if self.store.records() > 0 || self.held() == 0 {
            return;
        }
        let rto = self.rto(env.config);
        let idle = match self.last_release {
            ShortTime::NEVER => Duration::MAX,
            last => env.now.since(last.near(env.now)),
        };
        let initial = initial_window(self.window.mss, env.config);
        self.controller.on_idle(idle, rto, initial, &mut self.window);
    }

    /// Forgets when something was released last, before a [`ShortTime`] means another time: the window is restarted then.
    /// Called while the flow is used, more often than every 38 hours.
    #[inline]
    pub fn forget_old_release(&mut self, now: Instant) {
        let last = self.last_release;
        if !last.is_never() && now.since(last.near(now)) > LONG_IDLE {
            self.last_release = ShortTime::NEVER;
        }
    }

    fn release_repairs<S: Sink<B>>(&mut self, quota: &mut u32, env: &mut Env<'_, S>) {
        while let Some(first) = self.store.next_lost() {
            if first.len() > self.window.mss {
                // The MSS has become smaller since.
                self.end_raise(env.now);
                self.store.cut(self.window.mss);
                continue;
            }
            let mut records = self.run_of_lost(&first, *quota);
            if records == 0 {
                if self.pipe() > 0 {
                    break;
                }
                // With nothing in flight nothing would ever make room.
                records = 1;
            }
            let bytes = self.repair(first.index, records, env);
            *quota = quota.saturating_sub(bytes);
        }
    }

    /// Returns the number of records from `first` on, which is lost, that may leave in one frame: lost, of one
    /// chunk, full but for the last, and of no more than `quota` bytes in all.
    fn run_of_lost(&self, first: &Place, quota: u32) -> usize {
        let Some(chunk) = self.store.chunk_at(first.start) else { return 0 };
        let most = if chunk.flags.contains(Flags::URG) { 1 } else { usize::MAX };
        let end = first.start + quota.min(MAX_CWND);
        let (mut records, mut next) = (0, Some(*first));
        while let Some(place) = next
            && place.sent.lost
            && !place.sent.in_repair
            && !place.sent.end.after(end.min(chunk.end()))
        {
            records += 1;
            let whole = place.len() == self.window.mss && records < most;
            next = whole.then(|| self.store.place(first.index + records)).flatten();
        }
        records
    }

    /// Sends `records` records from `index` on, which are lost, again, in one frame; returns its bytes.
    pub(super) fn repair<S: Sink<B>>(
        &mut self,
        index: usize,
        records: usize,
        env: &mut Env<'_, S>,
    ) -> u32 {
        let (Some(first), Some(last)) =
            (self.store.place(index), self.store.place(index + records - 1))
        else {
            return 0;
        };
        self.emit(first.start, last.sent.end, true, env);
        let mut once = true;
        for index in index..index + records {
            once &= self.store.place(index).is_some_and(|place| !place.sent.repeated);
            self.store.repaired(index, env.now);
        }
        self.recovery.repaired(first.start, last.sent.end, once);
        if index == 0 {
            // The answer to the repair is waited for as long as that to anything else.
            self.recovery.rto_base = env.now;
        }
        last.sent.end.since(first.start)
    }

    // One call, on the way of every ACK.
    #[inline(always)]
    fn release_new<S: Sink<B>>(&mut self, quota: &mut u32, env: &mut Env<'_, S>) {
        self.cwnd_limited = false;
        let burst = self.store.snd_nxt();
        while self.store.has_room(self.window.mss) {
            let start = self.store.snd_nxt();
            let Some(chunk) = self.store.chunk_at(start) else {
                self.watch_gap(env.now);
                break;
            };
            // An urgent pointer is right for one segment only.
            let urgent = chunk.flags.contains(Flags::URG);
            let len = chunk.end().since(start).min(if urgent { self.window.mss } else { u32::MAX });
            let in_rwnd = self.rwnd_edge.since(start);
            if in_rwnd == 0 {
                break;
            }
            let mut n = self.cut(len, (*quota).min(in_rwnd));
            if n == 0 && self.pipe() == 0 && self.store.records() == 0 {
                // A window of less than one segment, and nothing that could widen it.
                n = len.min(in_rwnd).min(self.window.mss);
            }
            if n < len && in_rwnd >= len {
                self.cwnd_limited = true;
            }
            let mut mss = self.window.mss;
            let mut raised = false;
            if self.recovery.black_hole.full > 0 {
                let most = if urgent { 0 } else { len.min(*quota).min(in_rwnd) };
                if let Some(full) = self.raised_size(env.now).filter(|&full| full <= most) {
                    (n, mss, raised) = (full, full, true);
                }
            }
            if n == 0 {
                break;
            }
            let mut release = self.header(chunk, start, start + n, false, env);
            release.mss = mss.min(u32::from(u16::MAX)) as u16;
            let full = (*quota).min(in_rwnd).saturating_sub(n) < mss;
            release.flags = self.push(release.flags, burst, start + n, full);
            let idle = self.store.records() == 0;
            env.sink.release(&chunk.frame, &release);
            self.emitted(&release, false, env.counters);
            self.store.released(start + n, env.now, mss);
            if raised {
                self.note_raise(start + n);
            }
            *quota = quota.saturating_sub(n);
            self.recovery.sent(n);
            self.last_release = ShortTime::not_before(env.now);
            if idle {
                self.recovery.rto_base = env.now;
            }
        }
        if self.store.snd_nxt() != burst {
            self.note_usage();
        }
    }

    /// New bytes have left: notes how much of `cwnd` is in use.
    #[inline]
    pub(super) fn note_usage(&mut self) {
        let (flight, una, next) = (self.pipe(), self.snd_una(), self.store.snd_nxt());
        self.recovery.usage.sent(flight, una, next, self.cwnd_limited);
    }

    /// Returns `flags` with PSH if `end` is where a burst of more than one segment ends, which began at `burst`, and without it while more is held: pushes
    /// are collapsed (RFC 9293 section 3.9.1.2).
    #[inline]
    fn push(&self, flags: Flags, burst: Seq, end: Seq, full: bool) -> Flags {
        let more = self.snd_max.after(end);
        if (full || !more) && end.since(burst) > self.window.mss {
            flags.with(Flags::PSH)
        } else if more {
            flags.without(Flags::PSH)
        } else {
            flags
        }
    }

    /// Of `quota` bytes of `cwnd`, those that may leave at once.
    #[inline]
    fn at_once(&self, quota: u32, now: Instant) -> u32 {
        let recovery = &*self.recovery;
        let answers_ack = recovery.release_at == Instant::ZERO;
        if now < recovery.release_at || (answers_ack && self.waits_for_pair(quota, now)) {
            return 0;
        }
        let mss = self.window.mss;
        let least = if !answers_ack && self.sends_pairs() { 2 * mss } else { mss };
        let always = recovery.clocked.clamp(least, 2 * mss);
        if quota.min(self.held()) <= always { quota } else { self.burst(always, quota) }
    }

    /// Returns `true` if what may leave, `quota` bytes, waits for the second segment of a pair.
    #[inline]
    fn waits_for_pair(&self, quota: u32, now: Instant) -> bool {
        if quota >= (2 * self.window.mss).min(self.window.cwnd / 3)
            || self.held() <= quota
            || !self.sends_pairs()
        {
            return false;
        }
        let age = self.store.place(0).map(|first| now.since(first.sent.at).as_nanos());
        let srtt = self.rtt.srtt_nanos().unwrap_or(0);
        age.is_some_and(|age| age >= u128::from(srtt / 2))
    }

    /// Returns `true` if the flow's rate is less than one segment in a millisecond.
    #[inline]
    fn sends_pairs(&self) -> bool {
        let (cwnd, mss) = (u64::from(self.window.cwnd), u64::from(self.window.mss));
        self.paced_over().is_some_and(|srtt| cwnd * MILLISECOND < mss * srtt)
    }

    /// Bytes of a millisecond at the flow's rate, but `least` at least and `most` at most. Outside congestion avoidance bursts are
    /// not limited.
    #[inline]
    fn burst(&self, least: u32, most: u32) -> u32 {
        let Some(srtt) = self.paced_over() else { return most };
        let in_srtt = u64::from(self.window.cwnd) * MILLISECOND;
        // Divided only where it lies between the two.
        if u64::from(most) * srtt <= in_srtt {
            most
        } else if u64::from(least) * srtt >= in_srtt {
            least
        } else {
            (in_srtt / srtt) as u32
        }
    }

    /// Returns the round trip in nanoseconds over which `cwnd` is spread: in congestion avoidance, with segments in flight, and if it is longer than a millisecond.
    #[inline]
    fn paced_over(&self) -> Option<u64> {
        let paced = self.recovery.phase == Phase::Open && !self.window.in_slow_start();
        self.rtt
            .srtt_nanos()
            .filter(|&srtt| paced && srtt > MILLISECOND && self.store.records() > 0)
    }

    /// A burst of `bytes` has left, and `cwnd` has room for more: the rest may leave without an ACK after the time that the burst takes.
    #[cold]
    fn pause(&mut self, bytes: u32, now: Instant) {
        if bytes == 0 || self.held() == 0 {
            return;
        }
        let srtt = self.rtt.srtt_nanos().unwrap_or(0);
        let nanos = srtt * u64::from(bytes) / u64::from(self.window.cwnd.max(1));
        self.recovery.release_at = now + Duration::from_nanos(nanos * 5 / 6);
    }

    /// Notes whether there is a [gap](Self::has_gap) now, and until when the guest may fill it. Called when the guest has sent something, and
    /// when all before a gap has left.
    #[inline]
    pub(super) fn watch_gap(&mut self, now: Instant) {
        if !self.has_gap() {
            return self.forget_gap();
        }
        self.acquire_state(&mut FreeList::default());
        if self.recovery.gap_until == Instant::NEVER {
            self.recovery.gap_until = now + GAP_PATIENCE;
        }
    }

    /// Returns `true` if the guest has sent what comes next and it is not stored. It went past us, and nobody but the guest can repeat it.
    #[inline]
    pub(super) fn has_gap(&self) -> bool {
        let next = self.store.snd_nxt();
        self.guest_nxt.after(next) && self.store.chunk_at(next).is_none()
    }

    /// Nobody waits for the guest to send again what is missing.
    #[inline]
    pub(super) fn forget_gap(&mut self) {
        if let Some(recovery) = self.recovery.get_mut() {
            recovery.gap_until = Instant::NEVER;
        }
    }

    /// Of `len` bytes what fits into `quota`: all, or a multiple of the MSS.
    #[inline]
    fn cut(&self, len: u32, quota: u32) -> u32 {
        let mss = self.window.mss;
        match quota {
            _ if len <= quota => len,
            // The common cases do without a division.
            _ if quota < mss => 0,
            _ if quota < 2 * mss => mss,
            _ => quota - quota % mss,
        }
    }

    /// Sends `start..end`, which lies within one chunk.
    fn emit<S: Sink<B>>(&mut self, start: Seq, end: Seq, again: bool, env: &mut Env<'_, S>) {
        let Some(chunk) = self.store.chunk_at(start) else { return };
        let release = self.header(chunk, start, end, again, env);
        env.sink.release(&chunk.frame, &release);
        self.emitted(&release, again, env.counters);
    }

    /// Notes what has left.
    #[inline]
    pub(super) fn emitted(&mut self, release: &Transmission, again: bool, counters: &CounterCells) {
        if let Some(timestamps) = release.timestamps {
            self.last_tsval = timestamps.value;
        }
        if again {
            counters.retransmitted().add(1);
            counters.retransmitted_bytes().add(u64::from(release.len));
        } else {
            self.cwr_due = false;
            counters.released().add(1);
        }
    }

    /// The header of `start..end`, which lies within `chunk`.
    #[inline]
    pub(super) fn header<S>(
        &self,
        chunk: &Chunk<B>,
        start: Seq,
        end: Seq,
        again: bool,
        env: &Env<'_, S>,
    ) -> Transmission {
        let whole = end == chunk.end();
        let fin = whole && chunk.fin;
        let mut flags = chunk.flags.without(Flags::FIN.with(Flags::CWR));
        if fin {
            flags = flags.with(Flags::FIN);
        } else if !whole {
            flags = flags.without(Flags::PSH);
        }
        let mut ecn = Ecn::NOT_ECT;
        if self.agreed.ecn() {
            // The echo belongs to the acknowledgement number, which is of now as well.
            flags = flags.without(Flags::ECE);
            flags = if env.outgoing.ece { flags.with(Flags::ECE) } else { flags };
            // RFC 3168 section 6.1.5; DCTCP keeps the mark (RFC 8257 section 3.5 is silent, Linux does).
            if !again || env.config.congestion.counts_marks() {
                ecn = chunk.ecn;
            }
        }
        if self.cwr_due && !again {
            flags = flags.with(Flags::CWR);
        }
        let tsval = later(later(self.last_tsval, chunk.tsval), env.outgoing.timestamps.value);
        Transmission {
            offset: chunk.offset + start.since(chunk.seq),
            len: end.since(start) - u32::from(fin),
            mss: self.window.mss.min(u32::from(u16::MAX)) as u16,
            seq: start,
            ack: env.outgoing.ack,
            window: env.outgoing.window,
            flags,
            timestamps: self
                .agreed
                .timestamps()
                .then_some(Timestamps { value: tsval, echo: env.outgoing.timestamps.echo }),
            ecn,
        }
    }

    /// Asks a receiver whose window is closed for its window, as its timer wants it. Goes on for as long as the
    /// receiver answers (RFC 1122 section 4.2.2.17).
    pub(super) fn probe_window<S: Sink<B>>(&mut self, env: &mut Env<'_, S>) {
        self.ask_for_window(env);
        self.rtt.back_off();
        self.note_unanswered(env);
        let wait = self.rto(env.config).min(MAX_PROBE_INTERVAL);
        self.recovery.timer = Some((Timer::WindowProbe, env.now + wait));
    }

    /// Sends a probe of the window: a segment of no use, which has to be acknowledged.
    pub(super) fn ask_for_window<S: Sink<B>>(&mut self, env: &mut Env<'_, S>) {
        env.counters.window_probes().add(1);
        env.sink.to_network(&SynthesizedSegment {
            flow: *env.flow,
            link: *env.link,
            seq: self.snd_una() - 1,
            ack: env.outgoing.ack,
            window: env.outgoing.window,
            flags: if env.outgoing.ece { Flags::ACK.with(Flags::ECE) } else { Flags::ACK },
            timestamps: self.agreed.timestamps().then_some(Timestamps {
                value: later(self.last_tsval, env.outgoing.timestamps.value),
                echo: env.outgoing.timestamps.echo,
            }),
            sack: SackList::default(),
        });
    }

    /// The clock of the guest, as its SYN had it.
    pub fn first_tsval(&mut self, timestamps: Option<Timestamps>) {
        self.last_tsval = timestamps.map_or(0, |t| t.value);
    }

    /// `TSval` of a segment that passes: never less than what is on the wire already.
    pub fn monotonic_tsval(&mut self, tsval: u32) -> u32 {
        self.last_tsval = later(self.last_tsval, tsval);
        self.last_tsval
    }
}

/// The later of two clock values, which wrap.
fn later(a: u32, b: u32) -> u32 {
    Seq(a).max(Seq(b)).0
}
