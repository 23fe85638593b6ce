//! Connections that always have more to send, from a time on until another.

use std::time::Duration;

use floodway_core::time::Instant;
use floodway_sim::flow::{FlowId, Side};
use floodway_sim::packet::Address;
use floodway_sim::tcp::TcpConfig;
use floodway_sim::world::{App, Ctx};

/// Bytes that are written at a time; a stream's end shows when the last are through.
const CHUNK: u64 = 32 << 10;
/// Chunks that are written and have not arrived.
const AHEAD: u32 = 4;

/// One connection.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub from: Address,
    pub to: Address,
    pub begin: Duration,
    pub end: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    flow: Option<FlowId>,
    /// Chunks on their way.
    ahead: u32,
    received: u64,
    ended: bool,
}

/// The application.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    stack: TcpConfig,
    states: Vec<State>,
}

impl Streams {
    pub fn new(streams: Vec<Stream>, stack: TcpConfig) -> Self {
        Self { states: vec![State::default(); streams.len()], streams, stack }
    }

    /// Bytes that a stream's receiver has got, in whole chunks.
    pub fn received(&self) -> impl Iterator<Item = u64> {
        self.states.iter().map(|state| state.received)
    }

    /// The streams themselves.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    fn begin(&mut self, n: u32, ctx: &mut Ctx<'_>) {
        let (Some(stream), Some(state)) =
            (self.streams.get(n as usize), self.states.get_mut(n as usize))
        else {
            return;
        };
        let flow = ctx.open(stream.from, stream.to, [&self.stack, &self.stack]);
        (state.flow, state.ahead) = (Some(flow), AHEAD);
        (0..AHEAD).for_each(|_| ctx.send(flow, Side::Client, CHUNK, n));
        ctx.after(stream.end.saturating_sub(ctx.now().since(Instant::ZERO)), 2 * n + 1);
    }
}

impl App for Streams {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        for (n, stream) in (0..).zip(&self.streams) {
            ctx.after(stream.begin, 2 * n);
        }
    }

    fn on_timer(&mut self, tag: u32, ctx: &mut Ctx<'_>) {
        let n = tag / 2;
        if tag.is_multiple_of(2) {
            return self.begin(n, ctx);
        }
        let Some(state) = self.states.get_mut(n as usize) else { return };
        state.ended = true;
        if let Some(flow) = state.flow {
            ctx.close(flow, Side::Client);
        }
    }

    fn on_message(&mut self, flow: FlowId, side: Side, n: u32, ctx: &mut Ctx<'_>) {
        let Some(state) = self.states.get_mut(n as usize) else { return };
        state.received += CHUNK;
        if !state.ended {
            return ctx.send(flow, Side::Client, CHUNK, n);
        }
        state.ahead -= 1;
        if state.ahead == 0 {
            ctx.close(flow, side);
        }
    }
}
