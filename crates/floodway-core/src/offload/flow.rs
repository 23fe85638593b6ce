//! One connection: its handshake, and the two machines that it gets when that is done.
//!
//! A connection is followed from its first SYN, whoever sends it, and simultaneous opens are
//! followed like any other: both SYNs have to be seen, and an acknowledgement of the guest's. What the two
//! SYNs agree on (scale, SACK, timestamps, ECN) is fixed from then on. SYNs with data (TCP Fast Open)
//! make the connection one that is never offloaded.

use floodway_wire::tcp::{Flags, OptionSummary};

use super::config::Config;
use super::grant::Charge;
use super::receiver::Receiver;
use super::segment::Segment;
use super::sender::{Agreed, Sender};
use super::sink::Link;
use super::spare::Spare;
use super::summary::TxState;
use crate::flow_table::FlowId;
use crate::seq::Seq;
use crate::time::{Duration, Instant};
use crate::timer::TimerQueue;

/// Largest shift that may be used (RFC 7323 section 2.3).
const MAX_SCALE: u8 = 14;

/// A handshake that took longer has lost something: its time is no round trip.
const SYN_TIMEOUT: Duration = Duration::from_secs(1);

/// One side's SYN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Syn {
    /// Behind the SYN.
    pub next: Seq,
    pub flags: Flags,
    pub window: u16,
    pub options: OptionSummary,
    has_data: bool,
    /// When it came first, and whether it came again.
    at: Instant,
    repeated: bool,
}

impl Syn {
    fn of(segment: &Segment, now: Instant) -> Self {
        Self {
            next: segment.seq + 1,
            flags: segment.flags,
            window: segment.window,
            options: segment.options,
            has_data: segment.len > 0,
            at: now,
            repeated: false,
        }
    }
}

/// Who sent a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Guest,
    Peer,
}

/// SYNs seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handshake {
    guest: Option<Syn>,
    peer: Option<Syn>,
}

impl Handshake {
    /// Takes in a SYN; false if it contradicts the one that was seen before.
    pub fn on_syn(&mut self, side: Side, segment: &Segment, now: Instant) -> bool {
        let seen = match side {
            Side::Guest => &mut self.guest,
            Side::Peer => &mut self.peer,
        };
        let syn = Syn::of(segment, now);
        match seen {
            Some(before) => {
                before.repeated = true;
                before.next == syn.next
            }
            None => {
                *seen = Some(syn);
                true
            }
        }
    }

    /// Both SYNs were seen, and `ack` acknowledges the guest's.
    pub fn is_over(&self, ack: Seq) -> bool {
        self.peer.is_some() && self.guest.is_some_and(|guest| !ack.before(guest.next))
    }

    /// The machines, if both SYNs were seen and `last`, which is from the peer, acknowledges the guest's.
    pub fn complete<B: 'static>(
        &self,
        last: &Segment,
        now: Instant,
        config: &Config,
    ) -> Option<Connection<B>> {
        let (guest, peer) = (self.guest?, self.peer?);
        if last.ack != guest.next || guest.has_data || peer.has_data {
            return None;
        }
        let (scaled, sack, timestamps) = (
            guest.options.window_scale.zip(peer.options.window_scale),
            guest.options.sack_permitted && peer.options.sack_permitted,
            guest.options.timestamps.is_some() && peer.options.timestamps.is_some(),
        );
        let (guest_scale, peer_scale) = scaled.unwrap_or((0, 0));
        let agreed = Agreed {
            sack,
            timestamps,
            ecn: offers_ecn(&guest, &peer) || offers_ecn(&peer, &guest),
            peer_scale: peer_scale.min(MAX_SCALE),
        };
        let mut tx = Sender::new(guest.next, agreed, &peer.options, config);
        let mut rx = Receiver::new(peer.next, guest_scale.min(MAX_SCALE));
        if last.has(Flags::SYN) {
            // The window of a SYN-ACK is not scaled.
            tx.follow_ack(guest.next, guest.next + u32::from(last.window));
        }
        if guest.flags.contains(Flags::ACK) {
            rx.first_window(guest.window);
        }
        rx.first_timestamps(guest.options.timestamps, peer.options.timestamps);
        tx.first_tsval(guest.options.timestamps);
        let rtt = now.since(guest.at);
        if !guest.repeated && rtt < SYN_TIMEOUT {
            // As Linux: the guest's own timer starts from this round trip.
            tx.rtt.sample(rtt, now);
        }
        Some(Connection { tx, rx })
    }
}

/// `first` asked for ECN in its SYN and `second` agreed (RFC 3168 section 6.1.1).
fn offers_ecn(first: &Syn, second: &Syn) -> bool {
    const BOTH: Flags = Flags::ECE.with(Flags::CWR);
    first.flags.contains(BOTH)
        && second.flags.contains(Flags::ECE.with(Flags::ACK))
        && !second.flags.contains(Flags::CWR)
}

/// An established connection.
#[derive(Debug)]
pub(super) struct Connection<B> {
    pub tx: Sender<B>,
    pub rx: Receiver<B>,
}

/// How far the connection is.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are established, and near their entry")]
pub(super) enum Phase<B> {
    /// Boxed, so that the others are no larger for it.
    Opening(Box<Handshake>),
    Established(Connection<B>),
    /// It cannot be offloaded.
    Excluded,
}

/// An entry of the flow table.
#[derive(Debug)]
pub(super) struct Flow<B> {
    pub phase: Phase<B>,
    pub link: Link,
    /// When its timer in the queue fires: never later than [`Flow::next_timeout`]. A timeout that moves away leaves it
    /// alone.
    pub fires: Instant,
    /// What the pool has counted for it.
    pub charged: Charge,
    /// What the pool has counted for what is kept of it.
    pub kept: u32,
    /// Behind the guest's FIN, and the peer's.
    pub fins: [Option<Seq>; 2],
    /// When the module is told once more that the flow is managed.
    pub name_at: Instant,
    /// When the guest hears of the ACKs that were merged so far.
    pub ack_at: Instant,
    /// Times that it will be told.
    pub names_left: u8,
    /// When a leaving flow may go offline.
    pub leave_at: Instant,
    /// It is on the list of flows that have something to send at the end of the batch.
    pub flagged: bool,
    /// A window update is due at the end of the batch.
    pub update_due: bool,
    /// It is on the list of flows that wait for room in the budget.
    pub waiting: bool,
}

impl<B: 'static> Flow<B> {
    pub fn new(link: Link) -> Self {
        Self {
            phase: Phase::Opening(Box::default()),
            link,
            fires: Instant::NEVER,
            charged: Charge::default(),
            kept: 0,
            fins: [None; 2],
            name_at: Instant::NEVER,
            ack_at: Instant::NEVER,
            names_left: 0,
            leave_at: Instant::NEVER,
            flagged: false,
            update_due: false,
            waiting: false,
        }
    }

    /// A word of each of its cache lines, for no other purpose than to have them in the cache.
    #[inline]
    pub fn load(&self) -> u32 {
        let Phase::Established(Connection { tx, rx }) = &self.phase else { return 0 };
        let lines = tx.load() ^ rx.load() ^ u32::from(self.names_left);
        lines ^ self.charged.bytes ^ self.fires.as_nanos() as u32
    }

    /// Sees to it that the flow's timer fires in time.
    #[inline]
    pub fn set_timer(&mut self, id: FlowId, timers: &mut TimerQueue) {
        let due = self.next_timeout();
        if due < self.fires && timers.schedule(id, due) {
            self.fires = due;
        }
    }

    /// Makes sure that there is a place for what a segment with data brings.
    #[inline]
    pub fn wake(&mut self, side: Side, spare: &mut Spare<B>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        match side {
            Side::Guest => {
                connection.tx.wake(&mut spare.recoveries);
                connection.tx.store.fill(&mut spare.lists);
            }
            Side::Peer => connection.rx.wake(&mut spare.keeping),
        }
    }

    /// Gives up what is not needed while nothing is under way.
    #[inline]
    pub fn rest(&mut self, spare: &mut Spare<B>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        connection.tx.rest(spare);
        connection.rx.rest(&mut spare.keeping);
    }

    /// Gives up all that is stored or kept.
    pub fn give(&mut self, spare: &mut Spare<B>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        connection.tx.give(spare);
        connection.rx.give(&mut spare.keeping);
    }

    pub fn connection(&self) -> Option<&Connection<B>> {
        match &self.phase {
            Phase::Established(connection) => Some(connection),
            Phase::Opening(_) | Phase::Excluded => None,
        }
    }

    /// Nothing would be lost with it.
    pub fn may_go(&self) -> bool {
        self.connection().is_none_or(|c| !c.tx.is_online() && c.rx.is_settled())
    }

    /// It is online for nothing.
    pub fn is_unused(&self) -> bool {
        self.connection()
            .is_some_and(|c| c.tx.is_online() && c.tx.state != TxState::Leaving && c.tx.is_idle())
    }

    /// Both sides have closed and acknowledged each other's FIN.
    pub fn is_closed(&self) -> bool {
        let [Some(guest), Some(peer)] = self.fins else { return false };
        self.connection()
            .is_some_and(|c| !c.tx.snd_una().before(guest) && !c.rx.guest_ack().before(peer))
    }

    /// Notes a FIN.
    pub fn note_fin(&mut self, side: Side, segment: &Segment) {
        if segment.has(Flags::FIN) {
            self.fins[side as usize] = Some(segment.end());
        }
    }
}
