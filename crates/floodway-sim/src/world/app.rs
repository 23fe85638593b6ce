//! What applications see.

use std::any::Any;

use crate::engine::Timer;
use crate::env::{Command, Env, Event, Part};
use crate::flow::{FlowId, Flows, Side};
use crate::ids::AppId;
use crate::packet::Address;
use crate::tcp::{Connection, TcpConfig};
use crate::{Duration, Instant};

/// An application, with both ends of its flows in one object. All callbacks but `start` come from a
/// running machine: what an application in a VM does costs that VM's time.
pub trait App: Any + Send {
    /// The application of one [part](crate::parallel) of the network, which is asked before the run begins. It gets what happens at ends in that part
    /// and opens flows from clients there. `None` if it cannot be divided.
    fn part(&self, part: &Part) -> Option<Box<dyn App>> {
        let _ = part;
        None
    }

    /// The run begins.
    fn start(&mut self, ctx: &mut Ctx<'_>);

    /// A timer of [`Ctx::after`] has come.
    fn on_timer(&mut self, tag: u32, ctx: &mut Ctx<'_>) {
        let _ = (tag, ctx);
    }

    /// An end of a connection stands.
    fn on_connected(&mut self, flow: FlowId, side: Side, ctx: &mut Ctx<'_>) {
        let _ = (flow, side, ctx);
    }

    /// A message is complete at `side`.
    fn on_message(&mut self, flow: FlowId, side: Side, tag: u32, ctx: &mut Ctx<'_>) {
        let _ = (flow, side, tag, ctx);
    }

    /// All that was written at an end is acknowledged.
    fn on_sent(&mut self, flow: FlowId, side: Side, ctx: &mut Ctx<'_>) {
        let _ = (flow, side, ctx);
    }

    /// A datagram has come to `side`.
    fn on_datagram(&mut self, flow: FlowId, side: Side, tag: u32, ctx: &mut Ctx<'_>) {
        let _ = (flow, side, tag, ctx);
    }

    /// A computation of [`Ctx::compute`] is done.
    fn on_computed(&mut self, tag: u32, ctx: &mut Ctx<'_>) {
        let _ = (tag, ctx);
    }

    /// Both ends have closed, or one has given up. The flow is gone when this returns.
    fn on_closed(&mut self, flow: FlowId, ctx: &mut Ctx<'_>) {
        let _ = (flow, ctx);
    }
}

/// What an application can do.
pub struct Ctx<'a> {
    pub(super) env: &'a mut Env,
    pub(super) app: AppId,
}

impl Ctx<'_> {
    /// The present.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.env.clock.now()
    }

    /// All flows.
    #[must_use]
    pub fn flows(&self) -> &Flows {
        &self.env.flows
    }

    /// Calls [`App::on_timer`] after a delay.
    pub fn after(&mut self, delay: Duration, tag: u32) -> Timer {
        self.env.clock.after(delay, Event::App { app: self.app, tag })
    }

    /// Cancels a timer.
    pub fn cancel(&mut self, timer: Timer) {
        self.env.clock.cancel(timer);
    }

    /// Opens a connection from `client` to `server`; both stacks as told.
    pub fn open(&mut self, client: Address, server: Address, stacks: [&TcpConfig; 2]) -> FlowId {
        let to = self.env.part_of_server(client, server);
        let numbered = self.env.flows.next_number(client);
        let number = numbered as u32;
        // Spread over the circle, so that some wrap.
        let iss = |n: u32| n.wrapping_mul(0x9e37_79b9).wrapping_add(0x7fff_0000);
        let [client_stack, server_stack] = stacks.map(|stack| self.env.stacks.share(stack));
        let ends = [
            Some(Connection::connect(&client_stack, iss(2 * number))),
            Some(Connection::listen(&server_stack, iss(2 * number + 1))),
        ];
        let flow = self.env.flows.insert(self.app.0, numbered, to, [client, server], ends);
        self.env.send_opened(flow);
        self.env.command(client, Command::Push { flow, side: Side::Client });
        flow
    }

    /// A pair of addresses that exchange datagrams.
    pub fn open_datagrams(&mut self, client: Address, server: Address) -> FlowId {
        let to = self.env.part_of_server(client, server);
        let number = self.env.flows.next_number(client);
        let flow = self.env.flows.insert(self.app.0, number, to, [client, server], [None, None]);
        self.env.send_opened(flow);
        flow
    }

    /// Writes a message at one end of a connection.
    pub fn send(&mut self, flow: FlowId, side: Side, bytes: u64, tag: u32) {
        self.at_end(flow, side, Command::Write { flow, side, bytes, first: None, tag });
    }

    /// The same; the other end is told of the first byte, too, with a tag of its own.
    pub fn send_noting_first(
        &mut self,
        flow: FlowId,
        side: Side,
        bytes: u64,
        first: u32,
        tag: u32,
    ) {
        self.at_end(flow, side, Command::Write { flow, side, bytes, first: Some(first), tag });
    }

    /// Sends a datagram of `bytes` payload.
    pub fn send_datagram(&mut self, flow: FlowId, side: Side, bytes: u32, tag: u32) {
        self.at_end(flow, side, Command::Datagram { flow, side, bytes, tag });
    }

    /// Closes one end of a connection for sending.
    pub fn close(&mut self, flow: FlowId, side: Side) {
        self.at_end(flow, side, Command::Close { flow, side });
    }

    /// Uses `time` of the processor at an address, then calls [`App::on_computed`]. A bare machine has
    /// a processor for each computation.
    pub fn compute(&mut self, at: Address, time: Duration, tag: u32) {
        self.env.command(at, Command::Compute { app: self.app, time, tag });
    }

    /// Sets the code point of what one end sends from now on.
    pub fn set_dscp(&mut self, flow: FlowId, side: Side, dscp: u8) {
        if let Some(flow) = self.env.flows.get_mut(flow) {
            flow.end_mut(side).dscp = dscp;
        }
    }

    /// Forgets a pair of addresses that exchange datagrams.
    pub fn forget(&mut self, flow: FlowId) {
        self.env.flows.remove(flow);
    }

    fn at_end(&mut self, flow: FlowId, side: Side, command: Command) {
        if let Some(address) = self.env.flows.get(flow).map(|flow| flow.end(side).address) {
            self.env.command(address, command);
        }
    }
}
