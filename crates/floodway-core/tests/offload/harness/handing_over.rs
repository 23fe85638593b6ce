//! A switch that hands over to the next one.

use std::rc::Rc;

use floodway_core::offload::journal::{Creditor, Journal, Retained};
use floodway_core::offload::{Carried, Offload, Resumption};
use floodway_core::time::Duration;

use super::World;
use super::dying::Memory;

/// What stands for the payload of frames in records.
const PAYLOAD: u8 = 7;

/// Records as text, a line each.
pub fn encode(records: &[Vec<u8>]) -> String {
    let line = |record: &Vec<u8>| {
        let digits: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
        digits + "\n"
    };
    records.iter().map(line).collect()
}

impl World {
    /// What the switch says of its connections.
    pub fn export(&self) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        self.switch.offload.export(&self.switch.actions, |record| {
            records.push(record.to_vec());
            true
        });
        records
    }

    /// The same without the bytes of frames.
    pub fn export_without_frames(&self) -> Vec<Vec<u8>> {
        let mut records = self.export();
        for record in &mut records {
            while record.last() == Some(&PAYLOAD) {
                record.pop();
            }
        }
        records
    }

    /// Another switch takes over what `records` say, and what the journal in `memory` has.
    pub fn import(&mut self, records: &[Vec<u8>], memory: Option<Memory>) -> Resumption {
        let config = self.switch.offload.config().clone();
        let now = self.switch.time(self.now);
        self.switch.offload = Offload::new(config, 0x5eed);
        let mut carried = Carried::of_port(&records[0]).unwrap();
        records[1..].iter().for_each(|record| carried.add(record));
        let kept = self.switch.actions.1.borrow();
        let revive = |_: Creditor, retained: &Retained| {
            let frame = kept.get(retained.about as usize)?;
            Some((Rc::clone(frame), frame.segment))
        };
        let offload = &mut self.switch.offload;
        if let Some(Memory { words, layout }) = memory {
            let found = Journal::adopt(words, layout);
            offload.adopt_carried(found, &mut carried, now, revive);
        }
        let found = offload.take_over(carried, now, revive);
        self.monitor.note_counters(&self.switch.offload.counters());
        found
    }

    /// Another switch takes over.
    pub fn hand_over(&mut self, memory: Option<Memory>) -> Resumption {
        let records = self.export();
        self.import(&records, memory)
    }

    /// Another switch takes over, and nothing is refused.
    pub fn hand_over_whole(&mut self) {
        let offload = &self.switch.offload;
        let before = (offload.online(), offload.used(), offload.owed());
        let found = self.hand_over(None);
        let offload = &self.switch.offload;
        assert_eq!((found.online, found.refused), (before.0, 0));
        assert_eq!((offload.online(), offload.used(), offload.owed()), before);
    }

    /// Both ends send something now and then, of which nothing need fit, and time goes on.
    pub fn use_switch_at_random(&mut self, rounds: u32) {
        let flow = self.flow;
        for round in 0..rounds {
            let end = self.now + Duration::from_millis(self.random.next() % 400);
            for _ in 0..200 {
                if self.switch.next_timeout() > end {
                    break;
                }
                self.now = self.now.max(self.switch.next_timeout());
                self.switch.on_time(self.now);
            }
            self.now = end;
            let len = (self.random.next() % 3_000) as u32;
            let mut packet = self.peer_segment(len * (round % 2));
            let ahead = (self.random.next() % 20_000) as u32;
            packet.segment.ack += ahead;
            self.switch.peer_sends(end, &flow, &packet);
            self.switch.offload.on_delivered(round % 3 > 0);
            let packet = self.guest_segment(i64::from(ahead) - 5_000, len);
            self.switch.guest_sends(end, &flow, &packet);
            self.switch.flush(end);
            self.switch.take_actions();
        }
    }
}
