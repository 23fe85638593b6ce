//! A guest that moves to another host, whose switch goes on with its connections.

use std::rc::Rc;

use floodway_core::offload::journal::{Creditor, Journal, Retained};
use floodway_core::offload::{Carried, Offload, Resumption};
use floodway_core::time::Duration;

use super::World;
use super::dying::Memory;
use super::packet::Packet;

/// What the switch of the source has.
pub struct Aside {
    offload: Offload<Rc<Packet>>,
    records: Vec<Vec<u8>>,
    memory: Memory,
    /// Packets that did not come to the switch's offload before: none does now.
    bypass: u32,
}

impl World {
    /// The guest stops, and its connections with it: `memory` is the journal. What comes for it meanwhile is lost. `None` if something is owed that cannot be carried.
    pub fn set_aside(&mut self, memory: Memory) -> Option<Aside> {
        self.stop_guest();
        let mut records = Vec::new();
        let is_whole = self.switch.offload.export(&self.switch.actions, |record| {
            records.push(record.to_vec());
            true
        });
        if !is_whole {
            return None;
        }
        let offload = self.switch.offload.set_aside(0x5eed);
        assert!(self.switch.offload.is_empty());
        let bypass = std::mem::replace(&mut self.bypass, 1000);
        Some(Aside { offload, records, memory, bypass })
    }

    /// The guest goes on where it was.
    pub fn bring_back(&mut self, aside: Aside) -> Memory {
        self.bypass = aside.bypass;
        self.switch.offload.bring_back(aside.offload);
        self.drain(false);
        self.resume_guest();
        aside.memory
    }

    /// The connections go on at another host, which has got them so much later, and with a journal of its own, whose memory is returned. The first one forgets them.
    pub fn arrive(&mut self, aside: Aside, after: Duration) -> (Resumption, Memory) {
        let Aside { offload, records, memory, bypass } = aside;
        self.bypass = bypass;
        self.switch.offload.forget_aside(offload);
        let (_, verdicts, _) = Journal::adopt(memory.words, memory.layout);
        assert!(verdicts.is_empty(), "nothing is owed there any more: {verdicts:?}");
        let counters = self.switch.offload.counters();
        assert_eq!(counters.flows_opened, counters.flows_closed);
        let config = self.switch.offload.config().clone();
        self.switch.offload = Offload::new(config, 0x5eed);
        let memory = self.record();
        self.switch.behind += after;
        let found = self.import_moved(&records);
        self.drain(false);
        self.monitor.note_counters(&self.switch.offload.counters());
        (found, memory)
    }

    /// The switch, which knows no connection, goes on with those of `records`.
    pub fn import_moved(&mut self, records: &[Vec<u8>]) -> Resumption {
        let mut carried = Carried::of_port(&records[0]).unwrap();
        records[1..].iter().for_each(|record| carried.add(record));
        if !carried.is_readable() {
            return Resumption { refused: 1, ..Resumption::default() };
        }
        let kept = self.switch.actions.1.borrow().clone();
        let revive = |_: Creditor, retained: &Retained| {
            let frame = kept.get(retained.about as usize)?;
            Some((Rc::clone(frame), frame.segment))
        };
        let now = self.switch.time(self.now);
        self.switch.offload.import(carried, now, &self.switch.actions, revive)
    }
}
