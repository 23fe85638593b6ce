//! The common segment of the guest, in few instructions.
//!
//! # Theory of operation
//! Header prediction, as Van Jacobson did for receivers (1988): nearly every segment of a guest that sends is the
//! next in order, within its grant, and meets a flow in which nothing is lost and nothing else is going on. What
//! [`Sender::on_data`] and [`Sender::pump`] do with it comes down to one of two:
//! - *Hold*: bytes before it are held already, so it has to wait as they do. Nothing that lets them go has changed
//!   since they were last tried.
//! - *Release*: nothing is held, and all of it fits into both windows.
//!
//! Invariant: a predicted segment leaves the machine as the long way would, but for the tail loss probe,
//! which a segment that is only held does not put off, and for the limit on bursts ([`super::output`]): a segment behind which
//! nothing is held leaves whole.

use super::{Env, Phase, Sender};
use crate::offload::config::Config;
use crate::offload::sink::Sink;
use crate::offload::summary::TxState;
use crate::tables::timer::ShortTime;
use crate::tcp::Segment;
use crate::time::Instant;

/// What becomes of a segment of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::offload) enum Predicted {
    Hold,
    Release,
}

impl<B: 'static> Sender<B> {
    /// The guest is granted what it needs, and has left nothing out.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.state == TxState::Active && self.guest_nxt == self.snd_max
    }

    /// What is in flight is what was sent, and nothing is to be told of it.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        let open = self.recovery.phase == Phase::Open && self.recovery.dup_bytes == 0;
        let full_sized = self.recovery.black_hole.full == 0;
        open && full_sized && self.store.is_quiet() && !self.cwr_due
    }

    /// A segment with data is the next in order, within the grant, and no reason for a smaller MSS.
    #[inline]
    pub fn is_next(&self, segment: &Segment) -> bool {
        let end = segment.seq + segment.len;
        let gso = u32::from(segment.gso_size);
        (segment.seq == self.snd_max)
            & !end.after(self.advertised_edge)
            & ((gso == 0) | (gso >= self.window.mss))
    }

    /// What becomes of the next segment in order of a sender that [is plain](Self::is_plain), if that can be
    /// told at once; `quiet` is [`Sender::is_quiet`].
    #[inline]
    pub fn predict(
        &self,
        segment: &Segment,
        quiet: bool,
        now: Instant,
        config: &Config,
    ) -> Option<Predicted> {
        let start = self.store.snd_nxt();
        if start != self.snd_max {
            return Some(Predicted::Hold);
        }
        let end = segment.seq + segment.len;
        let out = start.since(self.snd_una());
        let fits = out + segment.len <= self.window.cwnd
            && !end.after(self.rwnd_edge)
            && self.store.has_room(self.window.mss);
        // After an idle time `cwnd` may have to be restarted.
        let warm = out > 0 || self.is_warm(now, config);
        (quiet && fits && warm).then_some(Predicted::Release)
    }

    fn is_warm(&self, now: Instant, config: &Config) -> bool {
        !self.last_release.is_never() && now <= self.last_release.near(now) + config.min_rto
    }

    /// Stores a predicted segment.
    #[inline]
    pub fn store_predicted(&mut self, segment: &Segment, frame: B) {
        self.store.append(segment, frame);
        self.snd_max = segment.end();
        self.guest_nxt = self.snd_max;
    }

    /// Releases a segment that was just stored.
    #[inline]
    pub fn release_predicted<S: Sink<B>>(&mut self, env: &mut Env<'_, S>) {
        let Some(chunk) = self.store.last() else { return };
        let (start, end) = (chunk.seq, chunk.end());
        let release = self.header(chunk, start, end, false, env);
        env.sink.release(&chunk.frame, &release);
        self.emitted(&release, false, env.counters);
        if self.store.records() == 0 {
            self.recovery.rto_base = env.now;
        }
        self.store.released(end, env.now, self.window.mss);
        self.last_release = ShortTime::not_before(env.now);
        self.cwnd_limited = false;
        self.note_usage();
        self.set_timer(env);
    }
}
