//! What a receiver says of itself to another process, and what it believes of one ([`carried`](super::super::carried)).

use serde::{Deserialize, Serialize};

use super::Receiver;
use crate::offload::echo::Echo;
use crate::offload::frames::{Framed, Frames, Refused, Revived};
use crate::offload::guest::MAX_REDELIVERIES;
use crate::offload::journal::FlowPlace;
use crate::offload::keeping::{Keeping, Kept, charge};
use crate::offload::reports::Reports;
use crate::offload::sender::PeerSide;
use crate::offload::sender::owed::MAX_SCALE;
use crate::offload::state_pool::Pooled;
use crate::offload::store::is_near;
use crate::offload::summary::RxState;
use crate::seq::Seq;
use crate::time::Instant;

/// What the guest has not acknowledged itself.
#[derive(Debug, Serialize, Deserialize)]
struct KeepingState {
    frames: Vec<Framed>,
    dup_acks: u8,
    redeliveries: u8,
    redeliver_at: Instant,
    redelivery_due: bool,
    all_due: bool,
    recover: Option<Seq>,
    repeat: Option<(Seq, Seq)>,
    reports: Reports,
}

/// The fields of a [`Receiver`], with the frames apart.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::offload) struct ReceiverState {
    /// None while nothing is kept.
    keeping: Option<KeepingState>,
    peer: PeerSide,
    acked: Seq,
    rcv_nxt: Seq,
    highest: Seq,
    guest_ack: Seq,
    guest_edge: Seq,
    advertised_edge: Seq,
    guest_tsval: u32,
    ts_recent: u32,
    guest_scale: u8,
    state: RxState,
    ack_due: bool,
    echo: Echo,
}

impl ReceiverState {
    /// What the guest has acknowledged, and what was acknowledged for it.
    pub fn acknowledged(&self) -> [Seq; 2] {
        [self.guest_ack, self.acked]
    }
}

impl<B: 'static> Receiver<B> {
    /// What it is, with its frames in `frames`.
    pub fn export(&self, frames: &mut Frames<'_, B>) -> ReceiverState {
        ReceiverState {
            keeping: self.keeping.is_present().then(|| self.keeping.export(frames)),
            peer: self.peer,
            acked: self.acked,
            rcv_nxt: self.rcv_nxt,
            highest: self.highest,
            guest_ack: self.guest_ack,
            guest_edge: self.guest_edge,
            advertised_edge: self.advertised_edge,
            guest_tsval: self.guest_tsval,
            ts_recent: self.ts_recent,
            guest_scale: self.guest_scale,
            state: self.state,
            ack_due: self.ack_due,
            echo: self.echo,
        }
    }

    /// A receiver that is as `state` says. What it keeps is at `place` of the journal.
    ///
    /// # Errors
    /// The state contradicts itself, or the frames do not hold what it says.
    pub fn import(
        state: ReceiverState,
        place: Option<FlowPlace>,
        frames: &mut Revived<'_, B>,
    ) -> Result<Self, Refused> {
        let mut keeping = Pooled::EMPTY;
        if let Some(kept) = state.keeping {
            *keeping = Keeping::import(&kept, state.guest_ack, frames)?;
            keeping.place = place;
        }
        let receiver = Self {
            keeping,
            peer: state.peer,
            acked: state.acked,
            rcv_nxt: state.rcv_nxt,
            highest: state.highest,
            guest_ack: state.guest_ack,
            guest_edge: state.guest_edge,
            advertised_edge: state.advertised_edge,
            guest_tsval: state.guest_tsval,
            ts_recent: state.ts_recent,
            guest_scale: state.guest_scale,
            state: state.state,
            ack_due: state.ack_due,
            echo: state.echo,
        };
        if receiver.is_possible() { Ok(receiver) } else { Err(Refused) }
    }

    /// What is kept lies in the journal at this place; all before the first number is acknowledged by the guest, all before the second for it.
    pub fn debt(&self) -> Option<(FlowPlace, Seq, Seq)> {
        Some((self.keeping.place?, self.guest_ack, self.acked))
    }

    /// Returns `false` if a stranger has written it.
    fn is_possible(&self) -> bool {
        let from = self.guest_ack;
        let numbers = [
            self.peer.nxt,
            self.acked,
            self.rcv_nxt,
            self.highest,
            self.guest_edge,
            self.advertised_edge,
        ];
        let kept_up_to = self.keeping.kept.back().map(|last| last.end);
        let reports = &self.keeping.reports;
        let may_report = self.state == RxState::UnexpectedSeq || reports.is_at_rest();
        may_report
            && reports.is_possible(self.acked, self.highest)
            && numbers.into_iter().all(|number| is_near(number, from))
            && kept_up_to.is_none_or(|end| end == self.acked)
            && (kept_up_to.is_some() || !self.acked.after(from))
            && self.guest_scale <= MAX_SCALE
    }
}

impl<B: 'static> Keeping<B> {
    fn export(&self, frames: &mut Frames<'_, B>) -> KeepingState {
        KeepingState {
            frames: self.kept.iter().map(|kept| frames.add(&kept.frame)).collect(),
            dup_acks: self.dup_acks,
            redeliveries: self.redeliveries,
            redeliver_at: self.redeliver_at,
            redelivery_due: self.redelivery_due,
            all_due: self.all_due,
            recover: self.recover,
            repeat: self.repeat,
            reports: self.reports,
        }
    }

    /// What is kept for a guest that has acknowledged all before `guest_ack`: frames in order, without a gap.
    fn import(
        state: &KeepingState,
        guest_ack: Seq,
        frames: &mut Revived<'_, B>,
    ) -> Result<Self, Refused> {
        let mut keeping = Self {
            dup_acks: state.dup_acks,
            redeliveries: state.redeliveries.min(MAX_REDELIVERIES),
            redeliver_at: state.redeliver_at,
            redelivery_due: state.redelivery_due,
            all_due: state.all_due,
            recover: state.recover,
            repeat: state.repeat,
            reports: state.reports,
            ..Self::EMPTY
        };
        for framed in &state.frames {
            let (frame, segment) = frames.take(framed)?;
            let (end, last) = (segment.end(), keeping.kept.back().map(|last: &Kept<B>| last.end));
            let follows = last.map_or(!segment.seq.after(guest_ack), |last| last == segment.seq);
            if !follows || !end.after(guest_ack) || !is_near(end, guest_ack) {
                return Err(Refused);
            }
            let has_timestamps = segment.options.timestamps.is_some();
            let (charge, flags) = (charge(&segment), segment.flags);
            keeping.kept_bytes += charge;
            keeping.kept.push_back(Kept { frame, end, charge, flags, has_timestamps });
        }
        Ok(keeping)
    }
}
