//! Partition and aggregate: one query goes to all workers at once, and counts when the last has answered.
//!
//! The answers meet at the aggregator's link: incast.

use super::record::Record;
use crate::engine::Rng;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::tcp::TcpConfig;
use crate::world::{App, Ctx};
use crate::{Duration, Instant};

/// Settings.
#[derive(Clone, Debug)]
pub struct AggregateConfig {
    /// Who asks.
    pub aggregator: Address,
    /// Who answers.
    pub workers: Vec<Address>,
    /// Bytes of the request to each worker.
    pub request: u64,
    /// Bytes of each answer.
    pub response: u64,
    /// Processor time per request at a worker.
    pub service: Duration,
    /// Mean of the exponential pause between an answered query and the next.
    pub pause: Duration,
    /// All stacks.
    pub stack: TcpConfig,
    /// Seed of the run.
    pub seed: u64,
}

/// The application. A record is from the query to the last byte of the last answer.
#[derive(Debug)]
pub struct Aggregate {
    config: AggregateConfig,
    rng: Rng,
    flows: Vec<FlowId>,
    asked: Instant,
    missing: usize,
    records: Vec<Record>,
}

impl Aggregate {
    /// An application with these settings.
    #[must_use]
    pub fn new(config: AggregateConfig) -> Self {
        let rng = Rng::new(config.seed, "aggregate", u64::from(config.aggregator.0));
        let records = Vec::new();
        Self { config, rng, flows: Vec::new(), asked: Instant::ZERO, missing: 0, records }
    }

    /// Queries that are complete.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}

impl App for Aggregate {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        let stacks = [&self.config.stack, &self.config.stack];
        let open = |&worker| ctx.open(self.config.aggregator, worker, stacks);
        self.flows = self.config.workers.iter().map(open).collect();
        ctx.after(self.rng.exponential(self.config.pause), 0);
    }

    fn on_timer(&mut self, _: u32, ctx: &mut Ctx<'_>) {
        (self.asked, self.missing) = (ctx.now(), self.flows.len());
        for (n, &flow) in (0..).zip(&self.flows) {
            ctx.send(flow, Side::Client, self.config.request, n);
        }
    }

    fn on_message(&mut self, _: FlowId, side: Side, worker: u32, ctx: &mut Ctx<'_>) {
        if side == Side::Server {
            ctx.compute(self.config.workers[worker as usize], self.config.service, worker);
            return;
        }
        self.missing -= 1;
        if self.missing == 0 {
            let bytes = self.config.response * self.flows.len() as u64;
            self.records.push(Record { begun: self.asked, done: ctx.now(), bytes });
            ctx.after(self.rng.exponential(self.config.pause), 0);
        }
    }

    fn on_computed(&mut self, worker: u32, ctx: &mut Ctx<'_>) {
        let flow = self.flows[worker as usize];
        ctx.send(flow, Side::Server, self.config.response, worker);
    }
}
