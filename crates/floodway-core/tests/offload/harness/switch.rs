//! The offload with a sink that turns what it is told into packets.

use std::cell::RefCell;
use std::rc::Rc;

use floodway_core::offload::journal::Image;
use floodway_core::offload::{
    self, Config, Edit, FlowNotice, FlowSummary, Link, Offload, Segment, Sink, SynthesizedSegment,
    Transmission, Verdict,
};
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;

use super::packet::Packet;

/// What the offload wants to happen, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    ToNetwork(Packet),
    ToGuest(Packet),
    Redeliver(Packet),
    Heartbeat,
    Name(FiveTuple, FlowNotice),
    /// What passes to the guest next bears the name of its flow.
    NameInside,
}

/// What the offload wants, and frames of which a journal has kept the number.
#[derive(Debug, Default)]
pub struct Actions(pub Vec<Action>, pub RefCell<Vec<Rc<Packet>>>);

/// Stands for the payload of any packet.
const PAYLOAD: &[u8] = &[7; 1 << 16];

impl Sink<Rc<Packet>> for Actions {
    fn release(&mut self, frame: &Rc<Packet>, release: &Transmission) {
        self.0.push(Action::ToNetwork(frame.released(release)));
    }

    fn to_network(&mut self, segment: &SynthesizedSegment) {
        self.0.push(Action::ToNetwork(Packet::synthesized(segment)));
    }

    fn to_guest(&mut self, segment: &SynthesizedSegment) {
        self.0.push(Action::ToGuest(Packet::synthesized(segment)));
    }

    fn redeliver(&mut self, frame: &Rc<Packet>, edit: &Edit) {
        self.0.push(Action::Redeliver(Packet::clone(frame).edited(edit)));
    }

    fn heartbeat(&mut self, _link: &Link, _lifetime_ms: u16) {
        self.0.push(Action::Heartbeat);
    }

    fn notify_flow(&mut self, flow: &FiveTuple, _link: &Link, naming: FlowNotice) {
        self.0.push(Action::Name(*flow, naming));
    }

    fn image<'f>(&self, frame: &'f Rc<Packet>) -> Image<'f> {
        let mut kept = self.1.borrow_mut();
        kept.push(Rc::clone(frame));
        let about = kept.len() as u64 - 1;
        Image { about, bytes: &PAYLOAD[..frame.segment.len as usize] }
    }
}

/// The switch with one port.
#[derive(Debug)]
pub struct Switch {
    pub offload: Offload<Rc<Packet>>,
    pub actions: Actions,
    pub link: Link,
    /// Frames that the switch has no memory for: `keep` answers `None`.
    pub no_memory: bool,
    /// How far the engine's clock is behind the world's.
    pub behind: Duration,
    /// How often `handle_timeout` was called without time going on.
    idle_calls: u32,
    last_call: Instant,
}

impl Switch {
    pub fn new(config: Config) -> Self {
        Self {
            offload: Offload::new(config, 0x5eed),
            actions: Actions::default(),
            link: Link::default(),
            no_memory: false,
            behind: Duration::ZERO,
            idle_calls: 0,
            last_call: Instant::ZERO,
        }
    }

    /// The engine's time when the world says `now`.
    pub fn time(&self, now: Instant) -> Instant {
        now - self.behind
    }

    /// When the engine's next timeout is due, in the world's time.
    pub fn next_timeout(&self) -> Instant {
        match self.offload.next_timeout() {
            Instant::NEVER => Instant::NEVER,
            due => due + self.behind,
        }
    }

    /// A segment from the guest; what becomes of it is behind the other actions.
    pub fn guest_sends(&mut self, now: Instant, flow: &FiveTuple, packet: &Packet) -> Verdict {
        let keep = || (!self.no_memory).then(|| Rc::new(packet.clone()));
        let segment: Segment = packet.segment;
        let now = self.time(now);
        let sink = &mut self.actions;
        let shown = offload::Packet::new(flow, &self.link, &segment);
        let verdict = self.offload.from_guest(now, &shown, keep, sink);
        if let Verdict::Pass(edit) = verdict {
            self.pass(packet, &edit, Action::ToNetwork);
        }
        verdict
    }

    /// A segment from the network, on the flow as it is in the guest's direction.
    pub fn peer_sends(&mut self, now: Instant, flow: &FiveTuple, packet: &Packet) -> Verdict {
        let keep = || (!self.no_memory).then(|| Rc::new(packet.clone()));
        let (segment, reversed) = (packet.segment, flow.reversed());
        let now = self.time(now);
        let sink = &mut self.actions;
        let shown = offload::Packet::new(&reversed, &self.link, &segment);
        let verdict = self.offload.from_network(now, &shown, keep, sink);
        if let Verdict::Pass(edit) = verdict {
            self.pass(packet, &edit, Action::ToGuest);
        }
        verdict
    }

    fn pass(&mut self, packet: &Packet, edit: &Edit, action: impl FnOnce(Packet) -> Action) {
        if edit.append_name {
            assert!(packet.segment.has_room, "a name without room");
            self.actions.0.push(Action::NameInside);
        }
        self.actions.0.push(action(packet.clone().edited(edit)));
    }

    pub fn flush(&mut self, now: Instant) {
        self.offload.flush(self.time(now), &mut self.actions);
    }

    pub fn on_time(&mut self, now: Instant) {
        let now = self.time(now);
        if self.offload.next_timeout() > now {
            return;
        }
        let (due, before) = (self.offload.is_due(now), self.actions.0.len());
        self.idle_calls = if now == self.last_call { self.idle_calls + 1 } else { 0 };
        assert!(self.idle_calls < 1000, "handle_timeout makes no progress at {now:?}");
        self.last_call = now;
        self.offload.handle_timeout(now, &mut self.actions);
        assert!(due || self.actions.0.len() == before, "something was due at {now:?}");
    }

    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions.0)
    }

    pub fn summary(&self, flow: &FiveTuple) -> Option<FlowSummary> {
        let mut from = 0;
        loop {
            let (page, next) = self.offload.flows(from, 64);
            if let Some(found) = page.into_iter().find(|f| f.flow == *flow) {
                return Some(found);
            }
            from = next?;
        }
    }
}
