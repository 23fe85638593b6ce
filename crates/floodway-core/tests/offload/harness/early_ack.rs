//! The rules T1 to T5 of early acknowledgement, as far as they show in what the guest is told.

use floodway_core::offload::{EarlyAck, FlowSummary};

use super::monitor::View;
use super::packet::Position;

/// What is known of early acknowledgement.
#[derive(Debug, Default)]
pub struct Promises {
    /// What the guest has sent, in order, and the parts of it that came out of order.
    sent: Position,
    parts: Vec<(Position, Position)>,
    /// Behind the guest's last byte.
    data_end: Position,
    /// The largest number that it was told.
    told: Position,
    /// The most by which that was ahead of the peer's.
    pub most_owed: i64,
}

impl Promises {
    /// The guest has sent the bytes `start..end`.
    pub fn guest_sent(&mut self, start: Position, end: Position) {
        self.sent = self.sent.max(1);
        self.data_end = self.data_end.max(end);
        self.parts.push((start, end));
        self.parts.sort_unstable();
        for &(start, end) in &self.parts {
            if start <= self.sent {
                self.sent = self.sent.max(end);
            }
        }
        let sent = self.sent;
        self.parts.retain(|&(_, end)| end > sent);
    }

    /// The guest is told that all up to `ack` is acknowledged, and of the right edge `edge`. Its peer has acknowledged up to `una`.
    pub fn guest_gets(&mut self, ack: Position, edge: Position, una: Position, view: &View<'_>) {
        let ahead = ack > self.told && ack > una;
        self.told = self.told.max(ack);
        if ack <= una {
            return;
        }
        let owed = ack - una;
        self.most_owed = self.most_owed.max(owed);
        // What it was told before it is told again.
        assert!(
            view.config.early_ack != EarlyAck::Never || !ahead,
            "the guest is told of more than the peer acknowledged"
        );
        assert!(ack <= self.sent, "T2: {ack} is acknowledged, {} has come in order", self.sent);
        assert!(ack < self.data_end, "T3: the last byte, {}, is acknowledged", self.data_end - 1);
        let most = i64::from(view.config.budget);
        assert!(edge - una <= most, "T4: {edge} is granted, {una} acknowledged, of {most}");
        let Some(summary) = view.summary.filter(|_| ahead) else { return };
        // The switch does not take every ACK that came: not one with an old clock.
        assert!(i64::from(summary.owed) >= owed, "T1: {owed} are owed, it says: {summary:?}");
        assert!(summary.owed < summary.held + summary.in_flight, "T1: not stored: {summary:?}");
        check_time(owed, &summary, view);
    }
}

/// T5: what is owed leaves, and is acknowledged, in time.
fn check_time(owed: i64, summary: &FlowSummary, view: &View<'_>) {
    let srtt = summary.srtt.expect("T5: nothing is known of the round trip").as_secs_f64();
    let time = srtt * (1.0 + owed as f64 / f64::from(summary.cwnd));
    // The switch counts whole microseconds.
    let most = view.config.early_ack_delay.as_secs_f64() * (1.0 + 1e-6 / srtt);
    assert!(time <= most, "T5: {owed} owed bytes take {time} s: {summary:?}");
}
