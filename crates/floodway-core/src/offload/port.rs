//! What all flows of a port share. [`online`](super::online) says what heartbeat notices are for.

use std::collections::VecDeque;

use floodway_wire::FiveTuple;

use super::config::{Config, EarlyAck};
use super::counters::CounterCells;
use super::grant::Pool;
use super::greeting::Greeting;
use super::guest::GuestState;
use super::journal::Recorder;
use super::sender::{Env, Outgoing};
use super::sink::{Link, Sink};
use super::undelivered::Undelivered;
use crate::histogram::DurationHistogram;
use crate::tables::flow_table::FlowId;
use crate::tcp::Segment;
use crate::time::{Duration, Instant};

pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
/// How long a heartbeat, or the one in a managed notice, is valid from when the guest has read it. A guest is to be on its own window 300 ms after the switch has
/// died, and may have read the last one late.
pub const HEARTBEAT_LIFETIME_MS: u16 = 250;

/// How often a guest whose module is not heard gets a heartbeat while flows are online: a module answers it.
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);

/// Until when connections are doubted where none is.
pub(super) const CERTAIN: Instant = Instant::ZERO;

/// What a flow holds of what its port has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holdings {
    /// Frames stored.
    pub frames: u32,
    /// Bytes that what is kept counts for.
    pub kept: u32,
}

#[derive(Debug)]
pub(super) struct OffloadShared {
    pub config: Config,
    pub counters: CounterCells,
    /// Round trips that were measured.
    pub rtts: DurationHistogram,
    pub pool: Pool,
    /// Bytes kept of what was acknowledged for the guest.
    pub kept: u32,
    /// Bytes acknowledged to the guest that their peers have not acknowledged.
    pub owed: u64,
    /// The latest segment for the guest, if what its peer is told waits for its delivery.
    pub undelivered: Option<Undelivered>,
    /// Flows with something to send at the end of the batch.
    pub flagged: Vec<FlowId>,
    /// Flows that wait for room in the budget.
    pub waiting: VecDeque<FlowId>,
    pub heartbeat_at: Instant,
    pub heartbeat_link: Link,
    /// When a module was last asked for an answer.
    pub looked_for_module: Option<Instant>,
    pub draining: bool,
    /// Whether the guest is to hear that this is not the switch that it knew.
    pub greeting: Greeting,
    /// The guest's module has answered a notice.
    pub module_heard: bool,
    /// The module reads names in SYN-ACKs, and knows the switch.
    pub names_in_syn_acks: bool,
    /// Bytes are acknowledged to the guest early: as the configuration and [`module_heard`](Self::module_heard) have it.
    pub acks_early: bool,
    /// Whether the guest runs.
    pub guest: GuestState,
    /// Some flow could not come online for lack of room.
    pub short_of_room: bool,
    /// Where what is acknowledged is recorded.
    pub journal: Recorder,
    /// Until when connections in mid-stream are reset ([`adoption`](super::adoption)).
    pub doubtful_until: Instant,
}

/// One call of a machine.
pub(super) struct Call<'a, S> {
    pub now: Instant,
    pub id: FlowId,
    /// In the guest's direction.
    pub tuple: &'a FiveTuple,
    pub port: &'a mut OffloadShared,
    pub sink: &'a mut S,
}

impl<S> Call<'_, S> {
    pub fn env<'e>(&'e mut self, link: &'e Link, outgoing: Outgoing) -> Env<'e, S> {
        Env {
            now: self.now,
            config: &self.port.config,
            counters: &self.port.counters,
            rtts: &self.port.rtts,
            sink: self.sink,
            flow: self.tuple,
            link,
            outgoing,
        }
    }
}

impl OffloadShared {
    pub fn new(config: Config) -> Self {
        Self {
            pool: Pool::new(config.budget),
            counters: CounterCells::default(),
            rtts: DurationHistogram::default(),
            kept: 0,
            owed: 0,
            undelivered: None,
            flagged: Vec::new(),
            waiting: VecDeque::new(),
            heartbeat_at: Instant::NEVER,
            heartbeat_link: Link::default(),
            looked_for_module: None,
            draining: false,
            greeting: Greeting::Done,
            module_heard: false,
            names_in_syn_acks: false,
            acks_early: acks_early(&config, false),
            guest: GuestState::Running,
            short_of_room: false,
            journal: None,
            doubtful_until: CERTAIN,
            config,
        }
    }

    pub fn wants_transmit(&self) -> bool {
        self.config.transmit && !self.draining
    }

    pub fn wants_receive(&self) -> bool {
        self.config.receive && !self.draining
    }

    /// Bytes that may be kept in addition for the guest.
    pub fn receive_room(&self) -> u32 {
        match self.guest {
            GuestState::Running => self.config.receive_budget.saturating_sub(self.kept),
            GuestState::Stopped | GuestState::Moved => 0,
        }
    }

    /// A flow holds `now` instead of `before`.
    #[inline]
    pub fn recount(&mut self, before: Holdings, now: Holdings) {
        self.pool.frames = self.pool.frames - before.frames + now.frames;
        self.kept = self.kept - before.kept + now.kept;
    }

    /// Follows a change of the configuration or of what is heard of a module.
    pub fn choose_early_acks(&mut self) {
        self.acks_early = acks_early(&self.config, self.module_heard);
    }

    /// Returns `true` if a flow that the SYN-ACK `segment` takes online can be named in it.
    pub fn may_name_in(&self, segment: &Segment) -> bool {
        self.names_in_syn_acks && segment.has_room && !self.acks_early
    }

    /// Looks for a module, if it is not known whether the guest has one.
    pub fn look_for_module(&mut self, now: Instant) {
        let wanted = self.acks_early && self.config.early_ack == EarlyAck::WithoutModule;
        if wanted && self.heartbeat_at == Instant::NEVER {
            let next = self.looked_for_module.map_or(now, |last| last + SEARCH_INTERVAL);
            self.heartbeat_at = now.max(next);
        }
    }

    /// The guest has sent a segment, under the header `link`, of a connection that another switch may have had ([`greeting`](super::greeting)).
    #[inline]
    pub fn greet<B, S: Sink<B>>(&mut self, link: &Link, sink: &mut S) {
        if self.greeting == Greeting::Wanted && self.guest == GuestState::Running {
            self.greet_now(*link, sink);
        }
    }

    /// The guest's nonce is known now.
    pub fn greet_again<B, S: Sink<B>>(&mut self, sink: &mut S) {
        if let Greeting::Asked(link) = self.greeting {
            self.greet_now(link, sink);
        }
    }

    #[cold]
    fn greet_now<B, S: Sink<B>>(&mut self, link: Link, sink: &mut S) {
        sink.heartbeat(&link, HEARTBEAT_LIFETIME_MS);
        self.greeting = Greeting::after_heartbeat(link, self.module_heard);
    }

    pub fn send_heartbeat<B, S: Sink<B>>(&mut self, now: Instant, sink: &mut S) {
        if self.heartbeat_at > now {
            return;
        }
        let never = self.acks_early && self.config.early_ack == EarlyAck::Always;
        if self.pool.online == 0 || self.guest != GuestState::Running || never {
            self.heartbeat_at = Instant::NEVER;
            return;
        }
        sink.heartbeat(&self.heartbeat_link, HEARTBEAT_LIFETIME_MS);
        self.looked_for_module = Some(now);
        let interval = if self.acks_early { SEARCH_INTERVAL } else { HEARTBEAT_INTERVAL };
        self.heartbeat_at = now + interval;
    }
}

/// Returns `true` if bytes are acknowledged early to a guest whose module is `heard`, or is not.
const fn acks_early(config: &Config, heard: bool) -> bool {
    match config.early_ack {
        EarlyAck::Never => false,
        EarlyAck::WithoutModule => !heard,
        EarlyAck::Always => true,
    }
}
