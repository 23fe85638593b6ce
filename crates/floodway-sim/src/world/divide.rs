//! A world in parts.
//!
//! # Theory of operation
//! Each part is a world of its own: with the hosts, switches and links of a part of the network, and with each application's work
//! there ([`App::part`]). Hosts, addresses and applications have the same numbers in all of them, and components the generators that
//! they have in the whole world.

use std::sync::Arc;

use super::{App, World};
use crate::engine::Digest;
use crate::env::{Env, Event, Membership, Part, Place, Update};
use crate::flow::Flows;
use crate::net::{Crossing, NetEvent, NoDelay, Node, Partition, PortId};
use crate::packet::Packet;
use crate::{Duration, Instant};

/// Why a world cannot be run in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotDivide {
    /// Its run has begun.
    #[error("the run has begun: divide the world before")]
    Begun,
    /// It has machines that run VMs.
    #[error("there are machines with VMs: only bare machines run in parts")]
    Machines,
    /// An application does not implement [`App::part`].
    #[error("application {0} cannot be divided: it does not implement `App::part`")]
    App(u16),
    /// A link between parts has no delay.
    #[error(transparent)]
    NoDelay(#[from] NoDelay),
}

/// The parts of a world.
pub(crate) struct Whole {
    pub worlds: Vec<World>,
    /// Of each port of the network: its part, and its name there.
    pub ports: Vec<(u8, PortId)>,
    /// `None`: no part has an effect on another.
    pub look_ahead: Option<Duration>,
    /// The part of each address.
    pub part_of: Arc<[u8]>,
}

impl World {
    pub(crate) fn divide(self, parts: usize) -> Result<Whole, CannotDivide> {
        if self.started {
            return Err(CannotDivide::Begun);
        }
        if !self.machines.is_empty() {
            return Err(CannotDivide::Machines);
        }
        let partition = Partition::new(&self.env.net, parts);
        let look_ahead = partition.look_ahead(&self.env.net)?;
        let part = |place: &Place| match place {
            Place::Bare { host } => partition.part(Node::Host(*host)),
            Place::Vm { .. } => 0,
        };
        let part_of: Arc<[u8]> = self.env.places.iter().map(part).collect();
        let parts: Vec<Part> = (0..partition.parts())
            .map(|number| Part {
                number: number as u8,
                parts: partition.parts(),
                look_ahead: look_ahead.unwrap_or(Duration::MAX),
                part_of: Arc::clone(&part_of),
            })
            .collect();
        let apps: Result<Vec<_>, _> = parts.iter().map(|part| self.apps_of(part)).collect();
        let apps = apps?;
        let (nets, ports) = self.env.net.divide(&partition);
        let digest = self.digest.map(|_| Digest::default());
        let worlds = parts.into_iter().zip(nets).zip(apps).map(|((part, net), apps)| {
            let mut env = Env { net, ..Env::default() };
            self.env.places.iter().for_each(|&place| env.add_place(place));
            env.flows = Flows::of_part(part.number, part.parts, self.env.places.len());
            env.membership = Some(Box::new(Membership { part, updates: Vec::new() }));
            let machine_at = self.machine_at.clone();
            Self { env, machine_at, apps, digest, ..Self::default() }
        });
        Ok(Whole { worlds: worlds.collect(), ports, look_ahead, part_of })
    }

    /// The applications of a part.
    fn apps_of(&self, part: &Part) -> Result<Vec<Option<Box<dyn App>>>, CannotDivide> {
        let of = |(number, app): (u16, &Option<Box<dyn App>>)| {
            let of_part = app.as_ref().and_then(|app| app.part(part));
            of_part.map(Some).ok_or(CannotDivide::App(number))
        };
        (0..).zip(&self.apps).map(of).collect()
    }
}

/// What comes to a part from others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    at: Instant,
    /// The link that it comes by; what comes by none is behind the packets of its nanosecond.
    link: u32,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Packet(Node, Packet),
    Event(Event),
}

/// What a part does.
impl World {
    /// The time of its next event; [`Instant::NEVER`] if it has none.
    pub(crate) fn next_time(&self) -> Instant {
        let incoming = self.incoming.front().map_or(Instant::NEVER, |first| first.at);
        self.env.clock.next_time().min(incoming)
    }

    /// Packets that come from other parts and are not there yet.
    pub(super) fn incoming_packets(&self) -> usize {
        let packets = |incoming: &&Incoming| matches!(incoming.what, What::Packet(..));
        self.incoming.iter().filter(packets).count()
    }

    /// The packets that it has sent to other parts.
    pub(crate) const fn outbox(&mut self) -> &mut Vec<Crossing> {
        self.env.net.outbox()
    }

    /// Takes the updates for other parts, each with its receiver.
    pub(crate) fn updates(&mut self) -> impl Iterator<Item = (u8, Update)> {
        self.env.membership.iter_mut().flat_map(|it| it.updates.drain(..))
    }

    /// Takes an update of another part.
    pub(crate) fn apply(&mut self, update: Update) {
        if let Update::Event(at, event) = update {
            self.incoming.push_back(Incoming { at, link: u32::MAX, what: What::Event(event) });
        } else {
            self.env.apply(update);
        }
    }

    /// A packet of another part is under way to this one.
    pub(crate) fn receive(&mut self, crossing: &Crossing) {
        let Crossing { arrival: at, port: link, to, packet, .. } = *crossing;
        self.incoming.push_back(Incoming { at, link, what: What::Packet(to, packet) });
    }

    /// Puts all that has come in order, after the last of it.
    pub(crate) fn sort_incoming(&mut self) {
        // What comes by one link stays in the order in which it was sent.
        self.incoming.make_contiguous().sort_by_key(|incoming| (incoming.at, incoming.link));
    }

    /// Runs until `end`, as [`run`](Self::run) does; of the events of one nanosecond those from other parts come first.
    pub(crate) fn run_part(&mut self, end: Instant) {
        while let Some(&Incoming { at, what, .. }) = self.incoming.front()
            && at <= end
        {
            self.run(at - Duration::from_nanos(1));
            self.incoming.pop_front();
            self.env.clock.arrive(at);
            let event = match what {
                What::Event(event) => event,
                What::Packet(to, packet) => {
                    NetEvent::Arrive(to, self.env.packets.insert(packet)).into()
                }
            };
            self.take(event);
        }
        self.run(end);
    }
}
