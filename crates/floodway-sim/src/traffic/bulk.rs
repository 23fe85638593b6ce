//! Bulk transfers: each flow sends a number of bytes, or without end.

use super::record::Record;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::tcp::TcpConfig;
use crate::world::{App, Ctx};
use crate::{Duration, Instant};

/// More than any run can transfer.
const ENDLESS: u64 = 1 << 50;

/// One transfer.
#[derive(Clone, Debug)]
pub struct BulkFlow {
    /// Sender.
    pub from: Address,
    /// Receiver.
    pub to: Address,
    /// Bytes; `None` does not end.
    pub bytes: Option<u64>,
    /// When it begins.
    pub start: Duration,
    /// Both stacks.
    pub stack: TcpConfig,
}

/// Bulk transfers, each on a connection of its own, which is closed behind it.
#[derive(Debug, Default)]
pub struct Bulk {
    transfers: Vec<BulkFlow>,
    flows: Vec<Option<FlowId>>,
    begun: Vec<Instant>,
    records: Vec<Option<Record>>,
}

impl Bulk {
    /// These transfers.
    #[must_use]
    pub fn new(transfers: Vec<BulkFlow>) -> Self {
        let n = transfers.len();
        let (flows, begun) = (vec![None; n], vec![Instant::ZERO; n]);
        Self { transfers, flows, begun, records: vec![None; n] }
    }

    /// The flow of a transfer, while it is under way.
    #[must_use]
    pub fn flow(&self, transfer: usize) -> Option<FlowId> {
        self.flows.get(transfer).copied().flatten()
    }

    /// What became of each transfer; `None` if it is not complete.
    #[must_use]
    pub fn records(&self) -> &[Option<Record>] {
        &self.records
    }
}

impl App for Bulk {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        for (n, transfer) in (0..).zip(&self.transfers) {
            ctx.after(transfer.start, n);
        }
    }

    fn on_timer(&mut self, tag: u32, ctx: &mut Ctx<'_>) {
        let n = tag as usize;
        let transfer = &self.transfers[n];
        let flow = ctx.open(transfer.from, transfer.to, [&transfer.stack, &transfer.stack]);
        ctx.send(flow, Side::Client, transfer.bytes.unwrap_or(ENDLESS), tag);
        if transfer.bytes.is_some() {
            ctx.close(flow, Side::Client);
        }
        (self.flows[n], self.begun[n]) = (Some(flow), ctx.now());
    }

    fn on_message(&mut self, flow: FlowId, side: Side, tag: u32, ctx: &mut Ctx<'_>) {
        let n = tag as usize;
        let bytes = self.transfers[n].bytes.unwrap_or(ENDLESS);
        self.records[n] = Some(Record { begun: self.begun[n], done: ctx.now(), bytes });
        ctx.close(flow, side);
    }

    fn on_closed(&mut self, flow: FlowId, _: &mut Ctx<'_>) {
        if let Some(place) = self.flows.iter_mut().find(|place| **place == Some(flow)) {
            *place = None;
        }
    }
}
