//! Datagrams that come back: ping, and the echo server of the small-flows paper.

use std::collections::VecDeque;

use super::record::Record;
use crate::engine::Rng;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::world::{App, Ctx};
use crate::{Duration, Instant};

/// Settings.
#[derive(Clone, Copy, Debug)]
pub struct EchoConfig {
    /// Who asks.
    pub from: Address,
    /// Who answers.
    pub to: Address,
    /// Bytes of payload, both ways.
    pub bytes: u32,
    /// Gap between datagrams: its mean if it is `random`.
    pub gap: Duration,
    /// Gaps are exponential.
    pub random: bool,
    /// Datagrams in all.
    pub count: u32,
    /// Seed of the run.
    pub seed: u64,
}

/// The application. A record is of one round trip.
#[derive(Debug)]
pub struct Echo {
    config: EchoConfig,
    rng: Rng,
    flow: Option<FlowId>,
    /// Numbers and times of those under way.
    asked: VecDeque<(u32, Instant)>,
    sent: u32,
    records: Vec<Record>,
}

impl Echo {
    /// An application with these settings.
    #[must_use]
    pub fn new(config: EchoConfig) -> Self {
        let rng = Rng::new(config.seed, "echo", u64::from(config.to.0));
        Self { config, rng, flow: None, asked: VecDeque::new(), sent: 0, records: Vec::new() }
    }

    /// Round trips that are complete.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    fn schedule(&mut self, ctx: &mut Ctx<'_>) {
        if self.sent < self.config.count {
            let gap = self.config.gap;
            ctx.after(if self.config.random { self.rng.exponential(gap) } else { gap }, 0);
        }
    }
}

impl App for Echo {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        self.flow = Some(ctx.open_datagrams(self.config.from, self.config.to));
        self.schedule(ctx);
    }

    fn on_timer(&mut self, _: u32, ctx: &mut Ctx<'_>) {
        let Some(flow) = self.flow else { return };
        self.asked.push_back((self.sent, ctx.now()));
        ctx.send_datagram(flow, Side::Client, self.config.bytes, self.sent);
        self.sent += 1;
        self.schedule(ctx);
    }

    fn on_datagram(&mut self, flow: FlowId, side: Side, tag: u32, ctx: &mut Ctx<'_>) {
        if side == Side::Server {
            ctx.send_datagram(flow, Side::Server, self.config.bytes, tag);
            return;
        }
        // What was asked before this one and is not back is lost, or late: it does not count.
        while let Some((number, begun)) = self.asked.pop_front() {
            if number == tag {
                let bytes = u64::from(self.config.bytes);
                self.records.push(Record { begun, done: ctx.now(), bytes });
                break;
            }
        }
    }
}
