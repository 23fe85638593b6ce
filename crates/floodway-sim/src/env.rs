//! What all parts of a world share: time, packets, network, flows, and the way of a packet through a
//! stack.
//!
//! # Theory of operation
//! Something happens to an end of a flow (a segment, a deadline, a command); then [`Env::settle`] takes what
//! the connection wants to send, keeps its timer right and notes what the application is to be told. A
//! connection's event is never later than its deadline, but may be earlier: moving the deadline back, as each
//! ACK does, costs nothing, and an early event only looks and sets itself again.
//!
//! Where an address is decides who carries out commands and who takes packets: a bare machine at once, a VM when
//! it runs. What concerns VMs is queued in `vm_tasks` for the machine that they are on. Only a VM that works
//! sends, so its packets need no address on the way to its queue.
//!
//! If the network runs in parts, one end of a flow may be in another part: [`far`].

mod far;

pub use far::Part;
pub(crate) use far::{Membership, Update};

use std::collections::VecDeque;

use crate::cpu::CpuEvent;
use crate::engine::Clock;
use crate::flow::{FlowId, Flows, Side};
use crate::ids::AppId;
use crate::net::{Net, NetEvent};
use crate::packet::{self, Address, Body, Ecn, Packet, PacketId, Pool, TxCompletion};
use crate::tcp::{Connection, SenderStats, Stacks, State};
use crate::trace::{Passage, Point, Trace};
use crate::{Duration, Instant};

/// Everything that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// In the network.
    Net(NetEvent),
    /// A connection's deadline may have come.
    Deadline(FlowId, Side),
    /// An application's timer.
    App {
        /// Whose.
        app: AppId,
        /// Which.
        tag: u32,
    },
    /// A bare machine has computed.
    Computed {
        /// For whom.
        app: AppId,
        /// Which.
        tag: u32,
    },
    /// On the processors of a machine.
    Cpu {
        /// Which machine.
        machine: u32,
        /// What.
        event: CpuEvent,
    },
    /// The timer of a machine's hook.
    Hook {
        /// Which machine.
        machine: u32,
    },
    /// A machine's card interrupts for what it has gathered.
    Card {
        /// Which machine.
        machine: u32,
    },
    /// A VM's load wants to go on.
    Load {
        /// Which machine.
        machine: u32,
        /// Which VM.
        vm: u32,
    },
    /// The driver domain's event has reached a VM.
    Interrupt {
        /// Which machine.
        machine: u32,
        /// Which VM.
        vm: u32,
    },
    /// A guest's timer tick, where it costs a time slice.
    Tick {
        /// Which machine.
        machine: u32,
        /// Which VM.
        vm: u32,
    },
    /// An end in another part of the network has closed.
    FarClosed {
        /// Of which flow.
        flow: FlowId,
        /// Which end.
        side: Side,
        /// It has given up, or was refused.
        aborted: bool,
    },
    /// The server's half of a flow, in another part, is gone.
    Released(FlowId),
}

impl From<NetEvent> for Event {
    fn from(event: NetEvent) -> Self {
        Self::Net(event)
    }
}

/// What an application wants of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Sends what a connection has to send.
    Push {
        flow: FlowId,
        side: Side,
    },
    Write {
        flow: FlowId,
        side: Side,
        bytes: u64,
        /// Of a message of the first byte alone.
        first: Option<u32>,
        tag: u32,
    },
    Close {
        flow: FlowId,
        side: Side,
    },
    Datagram {
        flow: FlowId,
        side: Side,
        bytes: u32,
        tag: u32,
    },
    Compute {
        app: AppId,
        time: Duration,
        tag: u32,
    },
}

/// What an application is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Connected(FlowId, Side),
    Message(FlowId, Side, u32),
    /// All that this end has written is acknowledged.
    Sent(FlowId, Side),
    Datagram(FlowId, Side, u32),
    Computed(u32),
    Closed(FlowId),
}

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Bare { host: u32 },
    Vm { machine: u32, vm: u32 },
}

/// What a machine has to do for one of its VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VmTask {
    Command(Command),
    Deadline(FlowId, Side),
    /// Packets of a connection that waits for that have left the VM's queues.
    Completion(FlowId, Side),
}

/// What all parts of a world share.
#[derive(Debug, Default)]
pub struct Env {
    /// Time.
    pub clock: Clock<Event>,
    /// Packets.
    pub packets: Pool,
    /// The network.
    pub net: Net,
    /// Flows.
    pub flows: Flows,
    pub(crate) stacks: Stacks,
    pub(crate) places: Vec<Place>,
    /// Until when the module of the guest at each address counts on its switch.
    pub(crate) heartbeat_until: Vec<Instant>,
    /// What the senders at each address have done whose flows have ended.
    pub(crate) retired: Vec<SenderStats>,
    pub(crate) notices: VecDeque<(AppId, Notice)>,
    pub(crate) vm_tasks: VecDeque<(u32, u32, VmTask)>,
    /// What the stack of the VM that works now has sent: the VM takes it when the work is done.
    pub(crate) outgoing: Vec<PacketId>,
    /// Of a world that is a part of a network.
    pub(crate) membership: Option<Box<Membership>>,
    /// The way of packets, if somebody wants to know it.
    pub(crate) trace: Option<Box<Trace>>,
}

impl Env {
    /// The next address is here.
    pub(crate) fn add_place(&mut self, place: Place) {
        self.places.push(place);
        self.heartbeat_until.push(Instant::ZERO);
        self.retired.push(SenderStats::default());
    }

    /// A packet passes a point.
    #[inline]
    pub(crate) fn note(&mut self, point: Point, id: PacketId) {
        if let Some(trace) = &mut self.trace {
            let (at, packet) = (self.clock.now(), *self.packets.get(id));
            trace.note(Passage { at, point, id, packet });
        }
    }

    /// An event has left something for others to do.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        !self.vm_tasks.is_empty() || !self.notices.is_empty() || self.packets.has_tx_completion()
    }

    pub(crate) fn place(&self, address: Address) -> Place {
        self.places[address.0 as usize]
    }

    pub(crate) fn command(&mut self, address: Address, command: Command) {
        match self.place(address) {
            Place::Bare { .. } => match command {
                Command::Compute { app, time, tag } => {
                    self.clock.after(time, Event::Computed { app, tag });
                }
                _ => self.execute(command),
            },
            Place::Vm { machine, vm } => {
                self.vm_tasks.push_back((machine, vm, VmTask::Command(command)));
            }
        }
    }

    /// Carries out a command where it belongs, now.
    pub(crate) fn execute(&mut self, command: Command) {
        match command {
            Command::Push { flow, side } => self.settle(flow, side),
            Command::Write { flow, side, bytes, first, tag } => {
                if let Some(flow) = self.flows.get_mut(flow) {
                    flow.end_mut(side).write(bytes, first, tag);
                }
                if flow.crosses() {
                    self.send_written(flow, side);
                }
                self.settle(flow, side);
            }
            Command::Close { flow, side } => {
                if let Some(flow) = self.flows.get_mut(flow)
                    && let Some(connection) = &mut flow.end_mut(side).connection
                {
                    connection.close();
                }
                self.settle(flow, side);
            }
            Command::Datagram { flow, side, bytes, tag } => {
                let Some(flow) = self.flows.get(flow) else { return };
                let body = Body::Datagram { len: bytes, tag };
                let packet = self.packets.insert(Packet::of(flow, side, body, Ecn::NotEct));
                self.send(packet);
            }
            Command::Compute { app, tag, .. } => {
                self.notices.push_back((app, Notice::Computed(tag)));
            }
        }
    }

    /// A packet has reached the stack of its destination.
    #[inline]
    pub(crate) fn input(&mut self, id: PacketId) {
        if self.trace.is_some() {
            let bare = matches!(self.place(self.packets.get(id).dst), Place::Bare { .. });
            self.note(if bare { Point::PeerReceived } else { Point::Received }, id);
        }
        let packet = self.packets.get(id);
        let (flow, side) = (packet.flow, packet.from.other());
        match &packet.body {
            Body::Tcp(segment) => {
                let ce = packet.ecn == Ecn::Ce;
                let end = self.flows.get_mut(flow).map(|flow| flow.end_mut(side));
                if let Some(connection) = end.and_then(|end| end.connection.as_mut()) {
                    connection.on_segment(segment, ce, self.clock.now());
                }
                self.packets.remove(id);
                self.settle(flow, side);
            }
            Body::Datagram { tag, .. } => {
                if let Some(flow) = self.flows.get(flow) {
                    let notice = Notice::Datagram(flow.id(), side, *tag);
                    self.notices.push_back((AppId(flow.app), notice));
                }
                self.packets.remove(id);
            }
            Body::Notice(notice) => {
                let notice = *notice;
                let packet = self.packets.remove(id);
                self.notice(&packet, notice);
            }
        }
    }

    /// The event of a connection's deadline has come: says whether the deadline has, too.
    pub(crate) fn is_due(&mut self, flow: FlowId, side: Side) -> bool {
        let now = self.clock.now();
        let Some(end) = self.flows.get_mut(flow).map(|flow| flow.end_mut(side)) else {
            return false;
        };
        end.armed = Instant::NEVER;
        let deadline = end.connection.as_ref().map_or(Instant::NEVER, Connection::next_timeout);
        if deadline > now {
            self.arm(flow, side);
            return false;
        }
        true
    }

    /// Does what is due at a connection.
    pub(crate) fn timeout(&mut self, flow: FlowId, side: Side) {
        let now = self.clock.now();
        if let Some(end) = self.flows.get_mut(flow).map(|flow| flow.end_mut(side))
            && let Some(connection) = &mut end.connection
        {
            connection.set_queued(end.queued, end.queue_taken);
            connection.on_timeout(now);
        }
        self.settle(flow, side);
    }

    /// A flow has ended: so have its timers.
    pub(crate) fn forget(&mut self, id: FlowId) {
        self.send_released(id);
        if let Some(flow) = self.flows.remove(id) {
            for side in [Side::Client, Side::Server] {
                let end = flow.end(side);
                self.clock.cancel(end.timer);
                if let Some(connection) = &end.connection {
                    self.retired[end.address.0 as usize] += *connection.sender().stats();
                }
            }
        }
    }

    /// The guest's module hears from its switch.
    fn notice(&mut self, packet: &Packet, notice: packet::Notice) {
        let managed = match notice {
            packet::Notice::Heartbeat { lifetime } => {
                self.heartbeat_until[packet.dst.0 as usize] = self.clock.now() + lifetime;
                return;
            }
            packet::Notice::Managed { lifetime } => {
                self.heartbeat_until[packet.dst.0 as usize] = self.clock.now() + lifetime;
                true
            }
            packet::Notice::Offline => false,
        };
        let side = packet.from.other();
        if let Some(flow) = self.flows.get_mut(packet.flow)
            && let Some(connection) = &mut flow.end_mut(side).connection
        {
            connection.set_managed(managed);
        }
        self.settle(packet.flow, side);
    }

    /// Sends what an end has to send, sets its timer, and notes what there is to tell.
    #[inline]
    pub(crate) fn settle(&mut self, id: FlowId, side: Side) {
        let now = self.clock.now();
        while let Some(packet) = self.next_segment(id, side, now) {
            self.send(packet);
        }
        self.arm(id, side);
        self.tell(id, side);
    }

    /// Takes the next segment that an end has to send.
    #[inline]
    fn next_segment(&mut self, id: FlowId, side: Side, now: Instant) -> Option<PacketId> {
        let Self { flows, packets, heartbeat_until, .. } = self;
        let flow = flows.get_mut(id)?;
        packets.insert_with(|packet| {
            let end = flow.end_mut(side);
            let connection = end.connection.as_mut()?;
            connection.set_heartbeat(heartbeat_until[end.address.0 as usize]);
            connection.set_queued(end.queued, end.queue_taken);
            let segment = packet.body.segment_mut();
            let ecn = connection.poll(now, segment)?;
            let charged = connection.tsq_enabled() && segment.seq_len() > 0;
            packet.charge = if charged { packet.len() } else { 0 };
            end.queued += u64::from(packet.charge);
            end.queue_taken += u64::from(packet.charge);
            packet.set_head(flow, side, ecn);
            Some(())
        })
    }

    /// Some of what an end has sent has left its host's queues.
    pub(crate) fn tx_completion(&mut self, done: TxCompletion) {
        let Some(flow) = self.flows.get_mut(done.flow) else { return };
        let end = flow.end_mut(done.side);
        end.queued = end.queued.saturating_sub(done.bytes.into());
        if !end.connection.as_ref().is_some_and(Connection::waits_for_queue) {
            return;
        }
        match self.places[end.address.0 as usize] {
            Place::Bare { .. } => self.settle(done.flow, done.side),
            Place::Vm { machine, vm } => {
                let task = VmTask::Completion(done.flow, done.side);
                self.vm_tasks.push_back((machine, vm, task));
            }
        }
    }

    /// A stack sends a packet.
    fn send(&mut self, packet: PacketId) {
        let place = self.place(self.packets.get(packet).src);
        match place {
            Place::Bare { host } => {
                self.note(Point::PeerSent, packet);
                self.net.send(host, packet, &mut self.packets, &mut self.clock);
            }
            Place::Vm { .. } => self.outgoing.push(packet),
        }
    }

    fn arm(&mut self, id: FlowId, side: Side) {
        let Some(end) = self.flows.get_mut(id).map(|flow| flow.end_mut(side)) else { return };
        let deadline = end.connection.as_ref().map_or(Instant::NEVER, Connection::next_timeout);
        if deadline >= end.armed {
            return;
        }
        end.armed = deadline;
        if !self.clock.reschedule(end.timer, deadline) {
            end.timer = self.clock.at(deadline, Event::Deadline(id, side));
        }
    }

    fn tell(&mut self, id: FlowId, side: Side) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let app = AppId(flow.app);
        let end = flow.end_mut(side);
        let Some(connection) = &end.connection else { return };
        let (delivered, closed) = (connection.receiver().delivered(), connection.is_closed());
        if connection.is_established() && !end.told_connected {
            end.told_connected = true;
            self.notices.push_back((app, Notice::Connected(id, side)));
        }
        let sent = end.awaits_ack && connection.sender().backlog() == 0;
        if sent {
            end.awaits_ack = false;
            self.notices.push_back((app, Notice::Sent(id, side)));
        }
        let newly_closed = closed && !end.told_closed;
        let aborted = connection.state() == State::Aborted;
        end.told_closed |= closed;
        let other = flow.end_mut(side.other());
        while let Some(tag) = other.take_message(delivered) {
            self.notices.push_back((app, Notice::Message(id, side, tag)));
        }
        if newly_closed && (aborted || other.told_closed) {
            self.notices.push_back((app, Notice::Closed(id)));
        }
        if newly_closed && id.crosses() {
            self.send_closed(id, side, aborted);
        }
    }
}
