//! Transfers one after the other, each on a new connection: the vFlood paper's test program.
//!
//! A transfer is timed from the call that opens its connection to the receiver's last byte. Transfers that run
//! side by side are as many lanes of the same kind.

use super::record::Record;
use crate::engine::Rng;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::tcp::TcpConfig;
use crate::world::{App, Ctx};
use crate::{Duration, Instant};

/// Settings.
#[derive(Clone, Debug)]
pub struct SeriesConfig {
    /// Sender.
    pub from: Address,
    /// Receivers; lane `n` sends to receiver `n` modulo their number.
    pub to: Vec<Address>,
    /// Bytes of each transfer.
    pub bytes: u64,
    /// Transfers at the same time.
    pub lanes: u32,
    /// Transfers in all.
    pub count: u32,
    /// Mean of the exponential pause before each transfer, so that transfers meet all phases of
    /// schedules.
    pub gap: Duration,
    /// The sender's stack and the receivers'.
    pub stacks: [TcpConfig; 2],
    /// Seed of the run.
    pub seed: u64,
}

/// The application.
#[derive(Debug)]
pub struct Series {
    config: SeriesConfig,
    rng: Rng,
    begun: Vec<Instant>,
    started: u32,
    /// Lane and record.
    records: Vec<(u32, Record)>,
}

impl Series {
    /// An application with these settings.
    #[must_use]
    pub fn new(config: SeriesConfig) -> Self {
        let rng = Rng::new(config.seed, "series", u64::from(config.from.0));
        let begun = vec![Instant::ZERO; config.lanes as usize];
        Self { config, rng, begun, started: 0, records: Vec::new() }
    }

    /// Transfers that are complete, with their lanes, in the order of completion.
    #[must_use]
    pub fn records(&self) -> &[(u32, Record)] {
        &self.records
    }

    /// All transfers are complete.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.records.len() as u32 >= self.config.count
    }

    fn next(&mut self, lane: u32, ctx: &mut Ctx<'_>) {
        if self.started < self.config.count {
            self.started += 1;
            ctx.after(self.rng.exponential(self.config.gap), lane);
        }
    }
}

impl App for Series {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        for lane in 0..self.config.lanes {
            self.next(lane, ctx);
        }
    }

    fn on_timer(&mut self, lane: u32, ctx: &mut Ctx<'_>) {
        let to = self.config.to[lane as usize % self.config.to.len()];
        let [sender, receiver] = &self.config.stacks;
        let flow = ctx.open(self.config.from, to, [sender, receiver]);
        ctx.send(flow, Side::Client, self.config.bytes, lane);
        ctx.close(flow, Side::Client);
        self.begun[lane as usize] = ctx.now();
    }

    fn on_message(&mut self, flow: FlowId, side: Side, lane: u32, ctx: &mut Ctx<'_>) {
        let (begun, bytes) = (self.begun[lane as usize], self.config.bytes);
        self.records.push((lane, Record { begun, done: ctx.now(), bytes }));
        ctx.close(flow, side);
        self.next(lane, ctx);
    }
}
