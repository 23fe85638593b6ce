//! What an earlier process has left of each connection, put together: a journal has a record for each direction in which bytes are owed.

use std::collections::BTreeMap;

use floodway_wire::FiveTuple;

use super::adopted::Adopted;
use super::age::Age;
use super::config::Config;
use super::connection::Connection;
use super::flow::{Flow, Phase};
use super::journal::{self, Creditor, Retained, Verdict};
use super::owing::receiver_of;
use super::packed_link::unpack;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::tcp::Segment;
use crate::time::Instant;

/// A record, with its frames if none is missing.
type Debt = (journal::Adopted, Option<Vec<Retained>>);

/// What a connection owes.
#[derive(Debug, Default)]
pub(super) struct Debts {
    to_guest: Option<Debt>,
    to_peer: Option<Debt>,
}

/// Returns what each connection owes, and how many records there were beyond one for each direction.
pub(super) fn by_connection(verdicts: Vec<Verdict>) -> (BTreeMap<FiveTuple, Debts>, u64) {
    let (mut connections, mut twice) = (BTreeMap::<FiveTuple, Debts>::new(), 0);
    for verdict in verdicts {
        let (flow, frames) = match verdict {
            Verdict::Whole(flow, frames) => (flow, Some(frames)),
            Verdict::Broken(flow) => (flow, None),
        };
        let debts = connections.entry(flow.tuple).or_default();
        let debt = match flow.creditor {
            Creditor::Guest => &mut debts.to_guest,
            Creditor::Peer => &mut debts.to_peer,
        };
        if debt.is_some() {
            twice += 1;
        } else {
            *debt = Some((flow, frames));
        }
    }
    (connections, twice)
}

impl Debts {
    /// The flow that goes on with the connection, or is to be reset because bytes are missing.
    pub fn into_flow<B: 'static>(
        self,
        now: Instant,
        config: &Config,
        revive: &mut impl FnMut(Creditor, &Retained) -> Option<(B, Segment)>,
    ) -> Flow<B> {
        let Self { to_guest, to_peer } = self;
        let Some([guest, peer, _]) =
            to_peer.as_ref().or(to_guest.as_ref()).map(|(flow, _)| flow.about)
        else {
            return Flow::new(unpack([0; 2]));
        };
        let mut flow = Flow::new(unpack([guest, peer]));
        let kept = to_guest.map(|(record, frames)| {
            let mut revive = |retained: &_| revive(Creditor::Guest, retained);
            (Adopted::new(&record, frames, now, &mut revive), record)
        });
        let Some((record, frames)) = to_peer else {
            if let Some((adopted, _)) = kept {
                flow.phase = Phase::Adopted(Box::new(adopted));
            }
            return flow;
        };
        let mut revive = |retained: &_| revive(Creditor::Peer, retained);
        let tx = frames.and_then(|f| Sender::adopt(&record, &f, now, config, &mut revive));
        let (kept, guest) = kept.unzip();
        let rx = kept.map_or(Ok(None), |kept| kept.into_receiver().map(Some).ok_or(()));
        flow.phase = match (tx, rx) {
            (Some(tx), Ok(kept)) => {
                flow.clock_noted = Age::at(now);
                flow.adopt_fin_of(&tx);
                Phase::Established(connection(&record, tx, kept))
            }
            _ => Phase::Adopted(Box::new(Adopted::broken(&record, guest.as_ref()))),
        };
        flow
    }
}

/// The connection of `record`, with what is `kept` for its guest.
fn connection<B: 'static>(
    record: &journal::Adopted,
    tx: Sender<B>,
    kept: Option<Receiver<B>>,
) -> Connection<B> {
    let mut rx = receiver_of(record);
    if let Some(kept) = kept {
        rx.take_over(kept);
    }
    Connection { rx, tx }
}
