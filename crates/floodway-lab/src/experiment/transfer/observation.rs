//! One transfer, and what of it is timed.

use floodway_guest::transfer::{Arrival, Sent};

use super::{Direction, Transfer};

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Data from the contended VM.
    DataOut,
    /// Data to the contended VM.
    DataIn,
    /// From `connect` to the last byte of the reply.
    Whole,
    /// All flows of a round together.
    Aggregate,
}

impl Measure {
    /// What `flows` of a scenario are measured by.
    pub fn of(scenario: &Transfer, flows: &[u32]) -> Vec<Self> {
        let together = flows.iter().sum::<u32>() > 1 && !scenario.back_to_back;
        match scenario.direction {
            Direction::Out if together => vec![Self::DataOut, Self::Whole, Self::Aggregate],
            Direction::Out => vec![Self::DataOut, Self::Whole],
            Direction::In => vec![Self::DataIn, Self::Whole],
            Direction::Both => vec![Self::DataOut, Self::DataIn, Self::Whole],
        }
    }

    /// In names of rows. A direction that is the only one needs no name.
    pub fn name(self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Self::DataOut, Direction::Both) => "data-phase out",
            (Self::DataIn, Direction::Both) => "data-phase in",
            (Self::DataOut | Self::DataIn, _) => "data-phase",
            (Self::Whole, _) => "whole",
            (Self::Aggregate, _) => "aggregate",
        }
    }
}

/// One transfer as both ends saw it.
#[derive(Clone, Debug)]
pub struct Observation {
    /// At the source.
    pub sent: Sent,
    /// At the sink, if it came whole.
    pub arrival: Option<Arrival>,
}

impl Observation {
    /// Whether it came to its end.
    pub fn is_complete(&self) -> bool {
        self.sent.error.is_none() && self.arrival.is_some()
    }

    /// Whether other bytes came than were sent.
    pub fn is_broken(&self) -> bool {
        self.arrival.is_some_and(|arrival| !arrival.intact)
    }

    /// What a measure of one flow took.
    pub(super) fn nanoseconds(&self, measure: Measure, direction: Direction) -> Option<u64> {
        match (measure, direction) {
            (Measure::DataOut, Direction::Both) => Some(self.sent.reply_ns),
            (Measure::DataOut, _) => {
                self.arrival.map(|arrival| arrival.last_ns.saturating_sub(arrival.first_ns))
            }
            (Measure::DataIn, _) => self.sent.acked_ns,
            (Measure::Whole, _) => Some(self.sent.whole_ns),
            (Measure::Aggregate, _) => None,
        }
    }
}
