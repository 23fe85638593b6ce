//! What a sender says of itself to another process, and what it believes of one ([`carried`](super::super::carried)).

use serde::{Deserialize, Serialize};

use super::ahead::Ahead;
use super::owed::MAX_SCALE;
use super::recovery::{Latest, Learnt};
use super::stall::RESERVE;
use super::{Agreed, Recovery, Sender};
use crate::congestion::{Controller, Window};
use crate::offload::frames::{Frames, Refused, Revived};
use crate::offload::journal::FlowPlace;
use crate::offload::state_pool::Pooled;
use crate::offload::store::is_near;
use crate::offload::store::state::StoreState;
use crate::offload::store::{Chunk, Store};
use crate::offload::summary::{Reason, TxState};
use crate::rtt::RttEstimator;
use crate::seq::Seq;
use crate::tables::timer::ShortTime;
use crate::time::Duration;

/// No round trip is longer: connections are given up before.
const MAX_RTT: Duration = Duration::from_secs(86_400);
/// Largest window that is believed: twice what a receiver can advertise.
const MAX_WINDOW: u32 = 1 << 31;

/// The fields of a [`Sender`], with the frames apart.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::offload) struct SenderState {
    store: StoreState,
    snd_max: Seq,
    advertised_edge: Seq,
    /// None while the sender is at rest.
    recovery: Option<Recovery>,
    window: Window,
    rwnd_edge: Seq,
    last_release: ShortTime,
    guest_nxt: Seq,
    last_tsval: u32,
    advertised_una: Seq,
    rtt: RttEstimator,
    controller: Controller,
    learnt: Learnt,
    agreed: Agreed,
    state: TxState,
    reason: Reason,
    data_measured: bool,
    asked: bool,
    cwnd_limited: bool,
    unanswered: u8,
    cwr_due: bool,
}

impl SenderState {
    /// Something is acknowledged to the guest that the peer has not acknowledged.
    pub fn owes(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.early.una.is_some())
    }

    /// What the peer has acknowledged.
    pub fn una(&self) -> Seq {
        self.store.una()
    }
}

impl<B: 'static> Sender<B> {
    /// What it is, with its frames in `frames`.
    pub fn export(&self, frames: &mut Frames<'_, B>) -> SenderState {
        SenderState {
            store: self.store.export(frames),
            snd_max: self.snd_max,
            advertised_edge: self.advertised_edge,
            recovery: self.recovery.is_present().then(|| self.recovery.copy()),
            window: self.window,
            rwnd_edge: self.rwnd_edge,
            last_release: self.last_release,
            guest_nxt: self.guest_nxt,
            last_tsval: self.last_tsval,
            advertised_una: self.advertised_una,
            rtt: self.rtt.clone(),
            controller: self.controller.clone(),
            learnt: self.learnt,
            agreed: self.agreed,
            state: self.state,
            reason: self.reason,
            data_measured: self.data_measured,
            asked: self.asked,
            cwnd_limited: self.cwnd_limited,
            unanswered: self.unanswered,
            cwr_due: self.cwr_due,
        }
    }

    /// A sender that is as `state` says. What it has acknowledged early is at `place` of the journal.
    ///
    /// # Errors
    /// The state contradicts itself.
    pub fn import(
        state: SenderState,
        place: Option<FlowPlace>,
        frames: &mut Revived<'_, B>,
    ) -> Result<Self, Refused> {
        let mut recovery = Pooled::EMPTY;
        if let Some(state) = state.recovery {
            *recovery = state;
            let Ahead { una, .. } = recovery.early;
            recovery.early = Ahead { place, counted: 0, open: una.is_some(), ..recovery.early };
            recovery.note_divergence();
        }
        let mut sender = Self {
            store: Store::import(state.store, frames)?,
            snd_max: state.snd_max,
            advertised_edge: state.advertised_edge,
            recovery,
            window: state.window,
            rwnd_edge: state.rwnd_edge,
            last_release: state.last_release,
            guest_nxt: state.guest_nxt,
            last_tsval: state.last_tsval,
            advertised_una: state.advertised_una,
            rtt: state.rtt,
            controller: state.controller,
            learnt: state.learnt,
            agreed: state.agreed,
            state: state.state,
            reason: state.reason,
            data_measured: state.data_measured,
            asked: state.asked,
            cwnd_limited: state.cwnd_limited,
            unanswered: state.unanswered,
            cwr_due: state.cwr_due,
        };
        if !sender.has_gap() {
            sender.forget_gap();
        }
        if sender.is_possible() { Ok(sender) } else { Err(Refused) }
    }

    /// What was acknowledged early lies in the journal at this place; all before the first number is acknowledged by the peer, all before the second to the guest.
    pub fn debt(&self) -> Option<(FlowPlace, Seq, Seq)> {
        let Ahead { place, una, .. } = self.recovery.early;
        Some((place?, self.snd_una(), una?))
    }

    /// Something is acknowledged to the guest that the peer has not acknowledged.
    pub fn has_debt(&self) -> bool {
        self.recovery.early.una.is_some()
    }

    /// Returns `false` if a stranger has written it.
    fn is_possible(&self) -> bool {
        self.are_numbers_possible()
            && self.is_store_possible()
            && self.is_recovery_possible()
            && self.rtt.is_possible()
            && self.controller.is_possible()
            && self.agreed.peer_scale() <= MAX_SCALE
            && (1..=u32::from(u16::MAX)).contains(&self.window.mss)
            && (1..=MAX_WINDOW).contains(&self.window.cwnd)
    }

    fn are_numbers_possible(&self) -> bool {
        let una = self.snd_una();
        let numbers = [self.advertised_edge, self.rwnd_edge, self.guest_nxt, self.advertised_una];
        !self.snd_max.before(una)
            && is_near(self.snd_max, una)
            && numbers.into_iter().all(|number| is_near(number, una))
    }

    /// What is stored reaches to `snd_max`, and nothing is while it is offline.
    fn is_store_possible(&self) -> bool {
        let (next, end) = (self.store.snd_nxt(), self.store.last().map(Chunk::end));
        match self.is_online() {
            true => {
                end.unwrap_or(next) == self.snd_max
                    && !next.after(self.snd_max)
                    && !self.snd_max.after(self.advertised_edge + 1)
            }
            false => end.is_none() && self.store.records() == 0,
        }
    }

    fn is_recovery_possible(&self) -> bool {
        let (recovery, una) = (&*self.recovery, self.snd_una());
        let Ahead { una: early, recorded, sent_before, place, .. } = recovery.early;
        let numbers = [early, sent_before, place.map(|_| recorded)];
        let is_stored = |ack: Seq| ack.after(una) && !ack.after(self.snd_max);
        let latest = recovery.latest.is_none_or(|Latest { rtt, .. }| rtt <= MAX_RTT);
        numbers.into_iter().flatten().all(|number| is_near(number, una))
            && early.is_none_or(|ack| self.is_online() && is_stored(ack))
            && recovery.stall.withheld <= RESERVE
            && recovery.repairs.is_possible()
            && latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::config::Config;
    use crate::offload::state_pool::FreeList;
    use crate::time::Instant;

    #[test]
    fn a_gap_is_believed_only_where_bytes_are_missing() {
        let until = Instant::from_millis(1);
        for (guest_nxt, expected) in [(100, Instant::NEVER), (101, until)] {
            let mut tx = Sender::<u32>::new(Seq(100), Agreed::default(), 1460, &Config::default());
            tx.acquire_state(&mut FreeList::default());
            tx.recovery.gap_until = until;
            tx.guest_nxt = Seq(guest_nxt);
            let state = tx.export(&mut Frames::new(&|_| unreachable!("nothing is stored")));
            let mut frames = |_, _: &_| None;
            let tx = Sender::import(state, None, &mut Revived::<u32>::new(&[], &mut frames));
            assert_eq!(tx.map(|tx| tx.next_timeout()), Ok(expected));
        }
    }
}
