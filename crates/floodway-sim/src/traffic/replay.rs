//! Transfers given as a list, so that another simulator, or another variant, can be offered the same work.
//!
//! # Theory of operation
//! A transfer goes over the connection of its pair, if one was opened before and stays open; else over one of its own,
//! which is closed behind it. What happens when is known from the start, so one timer at a time is enough.

use std::collections::BTreeMap;

use super::record::Record;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::tcp::TcpConfig;
use crate::world::{App, Ctx};
use crate::{Duration, Instant};

/// What happens at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The pair gets a connection that stays open.
    Open,
    /// A transfer of so many bytes.
    Transfer(u64),
}

/// A line of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub start: Duration,
    /// Who sends.
    pub from: Address,
    /// Who receives.
    pub to: Address,
    /// What.
    pub work: Work,
}

/// The application.
#[derive(Debug)]
pub struct Replay {
    entries: Vec<Entry>,
    stack: TcpConfig,
    open: BTreeMap<(Address, Address), FlowId>,
    done: Vec<Option<Instant>>,
}

impl Replay {
    /// Does what is in the list, which is sorted by time. Both ends of all connections have the same stack.
    ///
    /// # Panics
    /// If the list is not sorted.
    #[must_use]
    pub fn new(entries: Vec<Entry>, stack: TcpConfig) -> Self {
        assert!(entries.is_sorted_by_key(|entry| entry.start), "the list goes back in time");
        let done = vec![None; entries.len()];
        Self { entries, stack, open: BTreeMap::new(), done }
    }

    /// What became of the transfer of an entry; `None` if it is not complete.
    #[must_use]
    pub fn record(&self, entry: usize) -> Option<Record> {
        let (Entry { start, work, .. }, done) = (self.entries.get(entry)?, *self.done.get(entry)?);
        match work {
            Work::Open => None,
            Work::Transfer(bytes) => {
                Some(Record { begun: Instant::ZERO + *start, done: done?, bytes: *bytes })
            }
        }
    }

    fn schedule(&self, entry: usize, ctx: &mut Ctx<'_>) {
        if let Some(next) = self.entries.get(entry) {
            let delay = (Instant::ZERO + next.start).since(ctx.now());
            ctx.after(delay, entry as u32);
        }
    }
}

impl App for Replay {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        self.schedule(0, ctx);
    }

    fn on_timer(&mut self, tag: u32, ctx: &mut Ctx<'_>) {
        self.schedule(tag as usize + 1, ctx);
        let Entry { from, to, work, .. } = self.entries[tag as usize];
        let permanent = self.open.get(&(from, to)).copied();
        let flow = permanent.unwrap_or_else(|| ctx.open(from, to, [&self.stack, &self.stack]));
        match work {
            Work::Open => {
                self.open.insert((from, to), flow);
            }
            Work::Transfer(bytes) => {
                ctx.send(flow, Side::Client, bytes, tag);
                if permanent.is_none() {
                    ctx.close(flow, Side::Client);
                }
            }
        }
    }

    fn on_message(&mut self, flow: FlowId, side: Side, tag: u32, ctx: &mut Ctx<'_>) {
        self.done[tag as usize] = Some(ctx.now());
        let Entry { from, to, .. } = self.entries[tag as usize];
        if self.open.get(&(from, to)) != Some(&flow) {
            ctx.close(flow, side);
        }
    }
}
