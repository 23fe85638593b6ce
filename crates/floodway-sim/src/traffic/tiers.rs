//! A web application of several tiers: a closed network of queues, whose servers call each other over TCP.
//!
//! # Theory of operation
//! **Visitors** are a fixed number. Each thinks for an exponential time, draws an *operation* from the mix, carries it
//! out, and thinks again. An operation is requests to the *front*, one after the other: a page, then what it shows.
//!
//! **Workers.** A request holds one of the front's workers from when it is read until the visitor has acknowledged
//! the answer (a server process that lingers until its socket is empty); requests that find none wait in order. The
//! worker calls the tiers behind, one call after the other; the request's processor time is spent in equal parts
//! before each call and before the answer. A tier answers a call after a wait that uses no processor (a
//! disk) and some processor time.
//!
//! **Connections.** Calls of a tier that is `fresh` make one each and close it behind the answer, as PHP does without
//! persistent connections; else each worker has one, made when it is first used. A visitor has one for all
//! its operations, or one for each.
//!
//! **Chance.** Each visitor has a generator of its own and does one thing at a time, so that its operations are the
//! same whatever they take. Times are exponential around their means.
//!
//! **Failure.** When a connection is given up, the operation that uses it counts as failed. What comes late for it is
//! known by its tag, which has the number of the visitor's operation.
//!
//! Invariants: a visitor has one request under way at most; a worker serves one request at most.

use std::collections::{BTreeMap, VecDeque};

use super::record::Record;
use super::sizes::Sizes;
use crate::engine::Rng;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::tcp::TcpConfig;
use crate::world::{App, Ctx};
use crate::{Duration, Instant};

/// A server behind the front.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Where it is.
    pub address: Address,
    /// Each call makes a connection of its own.
    pub fresh: bool,
}

/// A call of a tier.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which, by its place in [`TiersConfig::tiers`].
    pub tier: usize,
    /// Bytes of the question.
    pub request: u64,
    /// Mean time that the tier waits without its processor.
    pub wait: Duration,
    /// Mean processor time of the tier.
    pub service: Duration,
    /// Bytes of the answer.
    pub response: Sizes,
}

/// A request to the front.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its bytes.
    pub bytes: u64,
    /// Mean processor time of the front.
    pub service: Duration,
    /// What the front asks for.
    pub calls: Vec<Call>,
    /// Bytes of the answer.
    pub response: Sizes,
}

/// What a visitor does.
#[derive(Clone, Debug)]
pub struct Operation {
    /// How often, relative to the others.
    pub weight: f64,
    /// Its requests, in order; at least one.
    pub requests: Vec<Request>,
}

/// Settings.
#[derive(Clone, Debug)]
pub struct TiersConfig {
    /// Where the visitors are: visitor `n` at place `n` modulo their number.
    pub visitors_at: Vec<Address>,
    /// Visitors, fewer than 65 536.
    pub visitors: u32,
    /// Mean time that a visitor thinks before an operation.
    pub think: Duration,
    /// A visitor has one connection for all its operations.
    pub keep_alive: bool,
    /// The front.
    pub front: Address,
    /// Its workers, at least 1.
    pub workers: u32,
    /// The tiers behind.
    pub tiers: Vec<Tier>,
    /// The mix.
    pub operations: Vec<Operation>,
    /// All stacks.
    pub stack: TcpConfig,
    /// Seed of the run.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Thinking,
    /// The request is under way.
    Asking,
    /// It waits for a worker.
    Queued,
    /// The front computes.
    Preparing,
    /// The question is under way to a tier.
    Calling,
    /// The tier waits for its disk.
    Waiting,
    /// The tier computes.
    Serving,
    /// Its answer is under way.
    Returning,
    /// The front's answer is under way.
    Reading,
}

#[derive(Debug)]
struct Visitor {
    rng: Rng,
    flow: Option<FlowId>,
    /// Operations so far, the present one among them.
    number: u16,
    phase: Phase,
    operation: usize,
    request: usize,
    call: usize,
    /// Processor time of the front before each call and the answer.
    part: Duration,
    worker: u32,
    call_flow: Option<FlowId>,
    begun: Instant,
    bytes: u64,
}

/// A worker that is not free.
#[derive(Clone, Copy, Debug)]
struct Held {
    worker: u32,
    /// It has written its answer.
    answered: bool,
}

/// The application. A record is of an operation, from its first call to the last byte of its last answer.
#[derive(Debug)]
pub struct Tiers {
    config: TiersConfig,
    visitors: Vec<Visitor>,
    free: Vec<u32>,
    /// Visitors whose requests wait for a worker.
    waiting: VecDeque<u32>,
    /// By the connection on which the request came.
    held: BTreeMap<FlowId, Held>,
    /// Connections that stay, by tier and worker.
    permanent: BTreeMap<(usize, u32), FlowId>,
    /// Operation and record.
    records: Vec<(usize, Record)>,
    failed: u64,
}

/// Bits of a tag for the visitor; above is the number of its operation.
const VISITOR_BITS: u32 = 16;

impl Tiers {
    /// An application with these settings.
    ///
    /// # Panics
    /// If there is no operation, one without requests, a call of a tier that does not exist, no worker, or too many visitors.
    #[must_use]
    pub fn new(config: TiersConfig) -> Self {
        assert!(config.visitors < 1 << VISITOR_BITS, "{} visitors", config.visitors);
        assert!(config.workers > 0 && !config.visitors_at.is_empty(), "nobody to serve or to ask");
        let whole = |o: &Operation| !o.requests.is_empty();
        assert!(!config.operations.is_empty() && config.operations.iter().all(whole), "no request");
        let mut calls = config.operations.iter().flat_map(|o| &o.requests).flat_map(|r| &r.calls);
        assert!(calls.all(|call| call.tier < config.tiers.len()), "no such tier");
        let visitor = |n: u32| Visitor {
            rng: Rng::new(config.seed, "tiers", n.into()),
            flow: None,
            number: 0,
            phase: Phase::Thinking,
            operation: 0,
            request: 0,
            call: 0,
            part: Duration::ZERO,
            worker: 0,
            call_flow: None,
            begun: Instant::ZERO,
            bytes: 0,
        };
        let visitors = (0..config.visitors).map(visitor).collect();
        let free = (0..config.workers).rev().collect();
        Self {
            config,
            visitors,
            free,
            waiting: VecDeque::new(),
            held: BTreeMap::new(),
            permanent: BTreeMap::new(),
            records: Vec::new(),
            failed: 0,
        }
    }

    /// Operations that are complete, each with its place in the mix, in the order of completion.
    #[must_use]
    pub fn records(&self) -> &[(usize, Record)] {
        &self.records
    }

    /// Operations that failed.
    #[must_use]
    pub const fn failed(&self) -> u64 {
        self.failed
    }

    /// Workers that serve a request now.
    #[must_use]
    pub const fn busy_workers(&self) -> u32 {
        self.config.workers - self.free.len() as u32
    }

    fn tag(&self, visitor: u32) -> u32 {
        u32::from(self.visitors[visitor as usize].number) << VISITOR_BITS | visitor
    }

    /// The visitor of a tag, if that is of its present operation and it is in that phase.
    fn awaited(&self, tag: u32, phase: Phase) -> Option<u32> {
        let visitor = tag & ((1 << VISITOR_BITS) - 1);
        let is = self.tag(visitor) == tag && self.visitors[visitor as usize].phase == phase;
        is.then_some(visitor)
    }

    /// The present request of a visitor.
    fn request(&self, visitor: u32) -> &Request {
        let v = &self.visitors[visitor as usize];
        &self.config.operations[v.operation].requests[v.request]
    }

    fn think(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let v = &mut self.visitors[visitor as usize];
        v.number = v.number.wrapping_add(1);
        v.phase = Phase::Thinking;
        let pause = v.rng.exponential(self.config.think);
        ctx.after(pause, self.tag(visitor));
    }

    fn begin(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let v = &mut self.visitors[visitor as usize];
        let mut left = v.rng.unit() * self.config.operations.iter().map(|o| o.weight).sum::<f64>();
        let drawn = self.config.operations.iter().position(|operation| {
            left -= operation.weight;
            left < 0.0
        });
        v.operation = drawn.unwrap_or(self.config.operations.len() - 1);
        (v.request, v.begun, v.bytes) = (0, ctx.now(), 0);
        self.ask(visitor, ctx);
    }

    /// Sends the present request.
    fn ask(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let from = self.config.visitors_at[visitor as usize % self.config.visitors_at.len()];
        let (bytes, tag) = (self.request(visitor).bytes, self.tag(visitor));
        let stacks = [&self.config.stack; 2];
        let v = &mut self.visitors[visitor as usize];
        v.phase = Phase::Asking;
        let flow = *v.flow.get_or_insert_with(|| ctx.open(from, self.config.front, stacks));
        ctx.send(flow, Side::Client, bytes, tag);
    }

    /// A request has come to the front.
    fn arrive(&mut self, visitor: u32, flow: FlowId, ctx: &mut Ctx<'_>) {
        // Its connection's last answer is complete, or there would be no other request.
        self.release(flow, ctx);
        self.visitors[visitor as usize].phase = Phase::Queued;
        self.waiting.push_back(visitor);
        self.employ(ctx);
    }

    /// Gives free workers what waits.
    fn employ(&mut self, ctx: &mut Ctx<'_>) {
        while !self.free.is_empty()
            && let Some(visitor) = self.waiting.pop_front()
            && let Some(worker) = self.free.pop()
        {
            let (service, parts) = {
                let request = self.request(visitor);
                (request.service, request.calls.len() as u32 + 1)
            };
            let v = &mut self.visitors[visitor as usize];
            v.part = v.rng.exponential(service) / parts;
            (v.worker, v.call) = (worker, 0);
            if let Some(flow) = v.flow {
                self.held.insert(flow, Held { worker, answered: false });
            }
            self.prepare(visitor, ctx);
        }
    }

    fn release(&mut self, flow: FlowId, ctx: &mut Ctx<'_>) {
        if let Some(held) = self.held.remove(&flow) {
            self.free.push(held.worker);
            self.employ(ctx);
        }
    }

    fn prepare(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let tag = self.tag(visitor);
        let v = &mut self.visitors[visitor as usize];
        v.phase = Phase::Preparing;
        ctx.compute(self.config.front, v.part, tag);
    }

    /// The front has computed: the next call, or the answer.
    fn proceed(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let call = self.visitors[visitor as usize].call;
        match self.request(visitor).calls.get(call) {
            Some(call) => {
                let (tier, bytes) = (call.tier, call.request);
                self.call(visitor, tier, bytes, ctx);
            }
            None => self.answer(visitor, ctx),
        }
    }

    fn call(&mut self, visitor: u32, tier: usize, bytes: u64, ctx: &mut Ctx<'_>) {
        let (tag, stacks) = (self.tag(visitor), [&self.config.stack; 2]);
        let v = &mut self.visitors[visitor as usize];
        v.phase = Phase::Calling;
        let to = &self.config.tiers[tier];
        let mut open = || ctx.open(self.config.front, to.address, stacks);
        let flow = match to.fresh {
            true => open(),
            false => *self.permanent.entry((tier, v.worker)).or_insert_with(open),
        };
        v.call_flow = Some(flow);
        ctx.send(flow, Side::Client, bytes, tag);
    }

    /// A call has come to its tier.
    fn serve(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let wait = self.present_call(visitor).wait;
        if wait.is_zero() {
            return self.compute(visitor, ctx);
        }
        let tag = self.tag(visitor);
        let v = &mut self.visitors[visitor as usize];
        v.phase = Phase::Waiting;
        ctx.after(v.rng.exponential(wait), tag);
    }

    fn present_call(&self, visitor: u32) -> &Call {
        &self.request(visitor).calls[self.visitors[visitor as usize].call]
    }

    /// The tier computes.
    fn compute(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let tag = self.tag(visitor);
        let (tier, service) = {
            let call = self.present_call(visitor);
            (call.tier, call.service)
        };
        let v = &mut self.visitors[visitor as usize];
        v.phase = Phase::Serving;
        let time = v.rng.exponential(service);
        ctx.compute(self.config.tiers[tier].address, time, tag);
    }

    /// The tier answers.
    fn respond(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let tag = self.tag(visitor);
        let (fresh, sizes) = {
            let call = self.present_call(visitor);
            (self.config.tiers[call.tier].fresh, call.response.clone())
        };
        let v = &mut self.visitors[visitor as usize];
        v.phase = Phase::Returning;
        let bytes = sizes.sample(&mut v.rng);
        if let Some(flow) = v.call_flow {
            ctx.send(flow, Side::Server, bytes, tag);
            if fresh {
                ctx.close(flow, Side::Server);
            }
        }
    }

    /// The tier's answer has come to the front.
    fn returned(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let fresh = self.config.tiers[self.present_call(visitor).tier].fresh;
        let v = &mut self.visitors[visitor as usize];
        v.call += 1;
        if let Some(flow) = v.call_flow.take().filter(|_| fresh) {
            ctx.close(flow, Side::Client);
        }
        self.prepare(visitor, ctx);
    }

    /// The front answers.
    fn answer(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let (tag, sizes) = (self.tag(visitor), self.request(visitor).response.clone());
        let last = self.is_last(visitor);
        let v = &mut self.visitors[visitor as usize];
        v.phase = Phase::Reading;
        let bytes = sizes.sample(&mut v.rng);
        v.bytes += bytes;
        let Some(flow) = v.flow else { return };
        if let Some(held) = self.held.get_mut(&flow) {
            held.answered = true;
        }
        ctx.send(flow, Side::Server, bytes, tag);
        if last && !self.config.keep_alive {
            ctx.close(flow, Side::Server);
        }
    }

    fn is_last(&self, visitor: u32) -> bool {
        let v = &self.visitors[visitor as usize];
        v.request + 1 == self.config.operations[v.operation].requests.len()
    }

    /// The visitor has the front's answer.
    fn answered(&mut self, visitor: u32, ctx: &mut Ctx<'_>) {
        let last = self.is_last(visitor);
        let v = &mut self.visitors[visitor as usize];
        if !last {
            v.request += 1;
            return self.ask(visitor, ctx);
        }
        let record = Record { begun: v.begun, done: ctx.now(), bytes: v.bytes };
        self.records.push((v.operation, record));
        if !self.config.keep_alive
            && let Some(flow) = v.flow.take()
        {
            ctx.close(flow, Side::Client);
        }
        self.think(visitor, ctx);
    }
}

impl App for Tiers {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        (0..self.config.visitors).for_each(|visitor| self.think(visitor, ctx));
    }

    fn on_timer(&mut self, tag: u32, ctx: &mut Ctx<'_>) {
        if let Some(visitor) = self.awaited(tag, Phase::Thinking) {
            self.begin(visitor, ctx);
        } else if let Some(visitor) = self.awaited(tag, Phase::Waiting) {
            self.compute(visitor, ctx);
        }
    }

    fn on_computed(&mut self, tag: u32, ctx: &mut Ctx<'_>) {
        if let Some(visitor) = self.awaited(tag, Phase::Preparing) {
            self.proceed(visitor, ctx);
        } else if let Some(visitor) = self.awaited(tag, Phase::Serving) {
            self.respond(visitor, ctx);
        }
    }

    fn on_message(&mut self, flow: FlowId, _: Side, tag: u32, ctx: &mut Ctx<'_>) {
        if let Some(visitor) = self.awaited(tag, Phase::Asking) {
            self.arrive(visitor, flow, ctx);
        } else if let Some(visitor) = self.awaited(tag, Phase::Calling) {
            self.serve(visitor, ctx);
        } else if let Some(visitor) = self.awaited(tag, Phase::Returning) {
            self.returned(visitor, ctx);
        } else if let Some(visitor) = self.awaited(tag, Phase::Reading) {
            self.answered(visitor, ctx);
        }
    }

    fn on_sent(&mut self, flow: FlowId, side: Side, ctx: &mut Ctx<'_>) {
        let answered = self.held.get(&flow).is_some_and(|held| held.answered);
        if side == Side::Server && answered {
            self.release(flow, ctx);
        }
    }

    fn on_closed(&mut self, flow: FlowId, ctx: &mut Ctx<'_>) {
        self.permanent.retain(|_, permanent| *permanent != flow);
        let uses = |v: &Visitor| v.flow == Some(flow) || v.call_flow == Some(flow);
        let Some(visitor) = self.visitors.iter().position(uses) else {
            return self.release(flow, ctx);
        };
        // Given up: nothing that is complete uses a connection that has ended.
        self.failed += 1;
        let v = &mut self.visitors[visitor];
        let asked = v.flow.take();
        v.call_flow = None;
        let visitor = visitor as u32;
        self.waiting.retain(|waiting| *waiting != visitor);
        for flow in asked.into_iter().chain([flow]) {
            self.release(flow, ctx);
        }
        self.think(visitor, ctx);
    }
}
