//! Rounds of transfers, each on a new connection: what the lab measures on real VMs.
//!
//! # Theory of operation
//! A round opens all its connections at once and ends when every connection has its receiver's reply of one byte and nothing unacknowledged. Back to back, each connection is followed at once by the next one of its place, however long the others still
//! take, until every place has had its rounds. Before each round is a pause of random length, so that rounds meet all phases of schedules. The sender
//! connects. Of each transfer the times are kept at which its application and its receiver's see what happens; in a
//! VM that is when the VM runs. So a round whose pause ends while its VM waits for a CPU begins when the VM has one, as in
//! an application that has slept: its clock cannot start before it runs.

use crate::engine::Rng;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::tcp::TcpConfig;
use crate::world::{App, Ctx};
use crate::{Duration, Instant};

/// Settings.
#[derive(Clone, Debug)]
pub struct TransfersConfig {
    /// Sender.
    pub from: Address,
    /// Receivers, and how many connections of a round go to each.
    pub to: Vec<(Address, u32)>,
    /// Bytes of each transfer.
    pub bytes: u64,
    /// Rounds.
    pub rounds: u32,
    /// The connections of a round do not wait for each other: each is followed at once by the next.
    pub back_to_back: bool,
    /// Longest pause before a round. Pauses are uniform from 0 to this.
    pub gap: Duration,
    /// The sender's stack and the receivers'.
    pub stacks: [TcpConfig; 2],
    /// Seed of the run.
    pub seed: u64,
}

/// A transfer that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Its connection.
    pub flow: FlowId,
    /// Round, from zero.
    pub round: u32,
    /// Receiver, by its place in [`TransfersConfig::to`].
    pub receiver: u32,
    /// When the sender opened the connection: its VM runs then.
    pub begun: Instant,
    /// When the connection stood for the sender.
    pub connected: Instant,
    /// When the first byte was with the receiver.
    pub first: Instant,
    /// When the last byte was with the receiver.
    pub last: Instant,
    /// When the sender knew that all was acknowledged, by the receiver or by a switch for it.
    pub acknowledged: Instant,
    /// When the sender had the receiver's reply.
    pub replied: Instant,
    /// Bytes.
    pub bytes: u64,
}

/// The tags of messages.
const FIRST: u32 = 0;
const LAST: u32 = 1;
const REPLY: u32 = 2;
/// Bytes of a reply.
const REPLY_BYTES: u64 = 1;

/// The application.
#[derive(Debug)]
pub struct Transfers {
    config: TransfersConfig,
    rng: Rng,
    round: u32,
    running: Vec<Transfer>,
    done: Vec<Transfer>,
}

impl Transfers {
    /// An application with these settings.
    #[must_use]
    pub fn new(config: TransfersConfig) -> Self {
        let rng = Rng::new(config.seed, "transfers", u64::from(config.from.0));
        Self { config, rng, round: 0, running: Vec::new(), done: Vec::new() }
    }

    /// Transfers that are complete, in the order of completion.
    #[must_use]
    pub fn complete(&self) -> &[Transfer] {
        &self.done
    }

    /// All rounds are over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.round >= self.config.rounds && self.running.is_empty()
    }

    fn pause(&mut self, ctx: &mut Ctx<'_>) {
        if self.round < self.config.rounds {
            let longest = self.config.gap.as_nanos() as u64;
            ctx.after(Duration::from_nanos(self.rng.below(longest + 1)), self.round);
        }
    }

    fn begin(&mut self, ctx: &mut Ctx<'_>) {
        for place in 0..self.config.to.len() {
            for _ in 0..self.config.to[place].1 {
                self.open(place as u32, self.round, ctx);
            }
        }
        self.round = if self.config.back_to_back { self.config.rounds } else { self.round + 1 };
    }

    fn open(&mut self, receiver: u32, round: u32, ctx: &mut Ctx<'_>) {
        let (to, _) = self.config.to[receiver as usize];
        let [from, at] = &self.config.stacks;
        let flow = ctx.open(self.config.from, to, [from, at]);
        ctx.send_noting_first(flow, Side::Client, self.config.bytes, FIRST, LAST);
        let transfer = Transfer {
            flow,
            round,
            receiver,
            begun: ctx.now(),
            connected: Instant::NEVER,
            first: Instant::NEVER,
            last: Instant::NEVER,
            acknowledged: Instant::NEVER,
            replied: Instant::NEVER,
            bytes: self.config.bytes,
        };
        self.running.push(transfer);
    }

    /// A transfer is over: the next one of its place, or the next round.
    fn go_on(&mut self, over: &Transfer, ctx: &mut Ctx<'_>) {
        if self.config.back_to_back && over.round + 1 < self.config.rounds {
            self.open(over.receiver, over.round + 1, ctx);
        } else if self.running.is_empty() {
            self.pause(ctx);
        }
    }

    fn note(&mut self, flow: FlowId, change: impl FnOnce(&mut Transfer), ctx: &mut Ctx<'_>) {
        let Some(at) = self.running.iter().position(|running| running.flow == flow) else { return };
        let transfer = &mut self.running[at];
        change(transfer);
        if transfer.replied == Instant::NEVER || transfer.acknowledged == Instant::NEVER {
            return;
        }
        let over = self.running.remove(at);
        self.done.push(over);
        self.go_on(&over, ctx);
    }
}

impl App for Transfers {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        self.pause(ctx);
    }

    fn on_timer(&mut self, round: u32, ctx: &mut Ctx<'_>) {
        ctx.compute(self.config.from, Duration::ZERO, round);
    }

    fn on_computed(&mut self, _: u32, ctx: &mut Ctx<'_>) {
        self.begin(ctx);
    }

    fn on_connected(&mut self, flow: FlowId, side: Side, ctx: &mut Ctx<'_>) {
        if side == Side::Client {
            let now = ctx.now();
            self.note(flow, |transfer| transfer.connected = now, ctx);
        }
    }

    fn on_message(&mut self, flow: FlowId, side: Side, tag: u32, ctx: &mut Ctx<'_>) {
        let now = ctx.now();
        let change = move |transfer: &mut Transfer| match tag {
            REPLY => transfer.replied = now,
            _ => {
                transfer.first = transfer.first.min(now);
                if tag == LAST {
                    transfer.last = now;
                }
            }
        };
        if tag == LAST {
            ctx.send(flow, side, REPLY_BYTES, REPLY);
        }
        if tag != FIRST {
            ctx.close(flow, side);
        }
        self.note(flow, change, ctx);
    }

    fn on_sent(&mut self, flow: FlowId, side: Side, ctx: &mut Ctx<'_>) {
        if side == Side::Client {
            let now = ctx.now();
            self.note(flow, |transfer| transfer.acknowledged = now, ctx);
        }
    }

    fn on_closed(&mut self, flow: FlowId, ctx: &mut Ctx<'_>) {
        // Given up: it goes on without it.
        if let Some(at) = self.running.iter().position(|running| running.flow == flow) {
            let over = self.running.remove(at);
            self.go_on(&over, ctx);
        }
    }
}
