//! Transfers given as a list, so that another simulator, or another variant, can be offered the same work.
//!
//! # Theory of operation
//! A transfer goes over the connection of its pair, if one was opened before and stays open; else over one of its own,
//! which is closed behind it. What happens when is known from the start, so one timer at a time is enough.
//!
//! In a part of the network it does what senders there have to do, and records the transfers that receivers there got.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::record::Record;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::tcp::TcpConfig;
use crate::world::{App, Ctx, Part};
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

/// Marks the tag of a transfer, which is its entry, that has a connection of its own.
const OWN: u32 = 1 << 31;

/// The application.
#[derive(Debug)]
pub struct Replay {
    entries: Arc<[Entry]>,
    stack: TcpConfig,
    open: BTreeMap<(Address, Address), FlowId>,
    /// Nanoseconds at which each entry was complete, zero if it was not: pages of zeros that nobody writes to cost a part
    /// nothing.
    done: Vec<u64>,
    part: Option<Part>,
}

impl Replay {
    /// Does what is in the list, which is sorted by time. Both ends of all connections have the same stack.
    ///
    /// # Panics
    /// If the list is not sorted, or has two billion entries.
    #[must_use]
    pub fn new(entries: Vec<Entry>, stack: TcpConfig) -> Self {
        assert!(entries.is_sorted_by_key(|entry| entry.start), "the list goes back in time");
        assert!(entries.len() < OWN as usize, "the list is too long");
        Self::of(entries.into(), stack, None)
    }

    fn of(entries: Arc<[Entry]>, stack: TcpConfig, part: Option<Part>) -> Self {
        let done = vec![0; entries.len()];
        Self { entries, stack, open: BTreeMap::new(), done, part }
    }

    /// What became of the transfer of an entry; `None` if it is not complete.
    #[must_use]
    pub fn record(&self, entry: usize) -> Option<Record> {
        let Entry { start, work, .. } = self.entries.get(entry)?;
        let done = self.done.get(entry).filter(|done| **done > 0);
        match work {
            Work::Open => None,
            Work::Transfer(bytes) => {
                let done = Instant::from_nanos(*done?);
                Some(Record { begun: Instant::ZERO + *start, done, bytes: *bytes })
            }
        }
    }

    /// Sets the timer for the first entry from `entry` on whose sender is here.
    fn schedule(&self, entry: usize, ctx: &mut Ctx<'_>) {
        let is_here = |entry: &Entry| self.part.as_ref().is_none_or(|part| part.has(entry.from));
        let mut rest = (entry..).zip(&self.entries[entry..]);
        if let Some((entry, next)) = rest.find(|(_, entry)| is_here(entry)) {
            let delay = (Instant::ZERO + next.start).since(ctx.now());
            ctx.after(delay, entry as u32);
        }
    }
}

impl App for Replay {
    fn part(&self, part: &Part) -> Option<Box<dyn App>> {
        let entries = Arc::clone(&self.entries);
        Some(Box::new(Self::of(entries, self.stack, Some(part.clone()))))
    }

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
                let own = if permanent.is_none() { OWN } else { 0 };
                ctx.send(flow, Side::Client, bytes, tag | own);
                if permanent.is_none() {
                    ctx.close(flow, Side::Client);
                }
            }
        }
    }

    fn on_message(&mut self, flow: FlowId, side: Side, tag: u32, ctx: &mut Ctx<'_>) {
        self.done[(tag & !OWN) as usize] = ctx.now().as_nanos();
        if tag & OWN != 0 {
            ctx.close(flow, side);
        }
    }
}
