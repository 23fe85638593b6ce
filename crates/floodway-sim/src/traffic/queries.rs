//! Request and response over permanent connections.
//!
//! # Theory of operation
//! A client sends a request; the server computes for a while and answers with a number of bytes. *Closed*: the next
//! request follows the answer after a pause to think. *Open*: requests come at exponential gaps, whatever is
//! unanswered; those of one client share a connection and are answered in order.

use std::collections::VecDeque;

use super::record::Record;
use super::sizes::Sizes;
use crate::engine::Rng;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::tcp::TcpConfig;
use crate::world::{App, Ctx};
use crate::{Duration, Instant};

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// After each answer, with an exponential pause of this mean.
    Closed(Duration),
    /// With exponential gaps of this mean.
    Open(Duration),
}

/// Settings.
#[derive(Clone, Debug)]
pub struct QueryConfig {
    /// Clients, each with a connection of its own.
    pub clients: Vec<Address>,
    /// The server.
    pub server: Address,
    /// Bytes of a request.
    pub request: u64,
    /// Bytes of an answer.
    pub response: Sizes,
    /// Processor time per request at the server.
    pub service: Duration,
    /// When requests come.
    pub arrivals: Arrivals,
    /// All stacks.
    pub stack: TcpConfig,
    /// Seed of the run.
    pub seed: u64,
}

#[derive(Debug)]
struct Client {
    flow: Option<FlowId>,
    rng: Rng,
    asked: VecDeque<Instant>,
    answers: VecDeque<u64>,
}

/// The application. A record is from the request's call to the answer's last byte.
#[derive(Debug)]
pub struct Queries {
    config: QueryConfig,
    clients: Vec<Client>,
    records: Vec<Record>,
}

impl Queries {
    /// An application with these settings.
    #[must_use]
    pub fn new(config: QueryConfig) -> Self {
        let client = |n| Client {
            flow: None,
            rng: Rng::new(config.seed, "queries", u64::from(config.server.0) << 32 | n),
            asked: VecDeque::new(),
            answers: VecDeque::new(),
        };
        let clients = (0..config.clients.len() as u64).map(client).collect();
        Self { config, clients, records: Vec::new() }
    }

    /// Answers that are complete, in the order of completion.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    fn schedule(&mut self, client: u32, ctx: &mut Ctx<'_>) {
        let (Arrivals::Closed(mean) | Arrivals::Open(mean)) = self.config.arrivals;
        let pause = self.clients[client as usize].rng.exponential(mean);
        ctx.after(pause, client);
    }
}

impl App for Queries {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        for n in 0..self.config.clients.len() {
            let stacks = [&self.config.stack, &self.config.stack];
            let flow = ctx.open(self.config.clients[n], self.config.server, stacks);
            self.clients[n].flow = Some(flow);
            self.schedule(n as u32, ctx);
        }
    }

    fn on_timer(&mut self, n: u32, ctx: &mut Ctx<'_>) {
        let client = &mut self.clients[n as usize];
        if let Some(flow) = client.flow {
            client.asked.push_back(ctx.now());
            ctx.send(flow, Side::Client, self.config.request, n);
        }
        if matches!(self.config.arrivals, Arrivals::Open(_)) {
            self.schedule(n, ctx);
        }
    }

    fn on_message(&mut self, _: FlowId, side: Side, n: u32, ctx: &mut Ctx<'_>) {
        if side == Side::Server {
            ctx.compute(self.config.server, self.config.service, n);
            return;
        }
        let client = &mut self.clients[n as usize];
        if let (Some(begun), Some(bytes)) = (client.asked.pop_front(), client.answers.pop_front()) {
            self.records.push(Record { begun, done: ctx.now(), bytes });
        }
        if matches!(self.config.arrivals, Arrivals::Closed(_)) {
            self.schedule(n, ctx);
        }
    }

    fn on_computed(&mut self, n: u32, ctx: &mut Ctx<'_>) {
        let client = &mut self.clients[n as usize];
        let bytes = self.config.response.sample(&mut client.rng);
        client.answers.push_back(bytes);
        if let Some(flow) = client.flow {
            ctx.send(flow, Side::Server, bytes, n);
        }
    }

    fn on_closed(&mut self, flow: FlowId, _: &mut Ctx<'_>) {
        self.clients.iter_mut().filter(|c| c.flow == Some(flow)).for_each(|c| c.flow = None);
    }
}
