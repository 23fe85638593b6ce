//! A connection over the last minutes: what the picture of a connection is drawn from.

use std::collections::VecDeque;

use floodway_switch::api::control::{FlowKey, FlowStatus};
use serde::Serialize;

use super::series::{Columns, History, Series, push, tail};

/// States of the transmit side; samples have positions in this list.
const TX: [&str; 5] = ["OFFLINE", "ACTIVE", "NO_BUFFER", "PACKET_LOSS", "LEAVING"];
/// States of the receive side.
const RX: [&str; 4] = ["OFFLINE", "ACTIVE", "NO_BUFFER", "UNEXPECTED_SEQ"];

/// Figures by what they are called in documents. Bytes, and microseconds.
const NAMES: [&str; 9] =
    ["tx", "rx", "cwnd", "ssthresh", "held", "in_flight", "granted", "kept", "srtt_us"];

/// No threshold has been found yet from here on, as in Linux.
const NO_THRESHOLD: u32 = 1 << 30;

/// The last minutes of a connection.
#[derive(Debug)]
pub struct FlowPage {
    port: String,
    key: FlowKey,
    times: VecDeque<u64>,
    series: Series<{ NAMES.len() }>,
    now: Option<FlowStatus>,
    problem: Option<String>,
}

impl FlowPage {
    /// One of which nothing is known yet.
    #[must_use]
    pub fn new(port: &str, key: FlowKey) -> Self {
        let (times, series) = Default::default();
        Self { port: port.to_owned(), key, times, series, now: None, problem: None }
    }

    /// Notes what the connection is at `time`; with none, it has ended.
    pub fn note(&mut self, time: u64, flow: Option<FlowStatus>) {
        push(&mut self.times, time);
        self.series.push(flow.as_ref().map_or([None; NAMES.len()], sample));
        self.now = flow;
        self.problem = None;
    }

    /// Notes that nothing is known at `time`, and why.
    pub fn fail(&mut self, time: u64, problem: String) {
        self.note(time, None);
        self.problem = Some(problem);
    }

    /// When it was looked at last.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.times.back().copied()
    }
}

impl History for FlowPage {
    fn document(&self, reset: bool, last: usize) -> impl Serialize {
        Document {
            reset,
            port: &self.port,
            key: &self.key,
            tx_states: &TX,
            rx_states: &RX,
            times: tail(&self.times, last),
            now: self.now.as_ref(),
            problem: self.problem.as_deref(),
            series: self.series.last(&NAMES, last),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    reset: bool,
    port: &'a str,
    #[serde(flatten)]
    key: &'a FlowKey,
    tx_states: &'a [&'static str],
    rx_states: &'a [&'static str],
    times: Vec<u64>,
    now: Option<&'a FlowStatus>,
    problem: Option<&'a str>,
    series: Columns<'a, { NAMES.len() }>,
}

fn sample(flow: &FlowStatus) -> [Option<f64>; NAMES.len()] {
    let position = |states: &[&str], state: &str| {
        states.iter().position(|known| *known == state).map(|position| position as f64)
    };
    let bytes = |bytes: u32| Some(f64::from(bytes));
    [
        position(&TX, &flow.tx),
        position(&RX, &flow.rx),
        bytes(flow.cwnd),
        bytes(flow.ssthresh).filter(|_| flow.ssthresh < NO_THRESHOLD),
        bytes(flow.held),
        bytes(flow.in_flight),
        bytes(flow.granted),
        bytes(flow.kept),
        flow.srtt_us.map(|us| us as f64),
    ]
}

/// What a connection of a list is called; none if that cannot be read.
#[must_use]
pub fn key(flow: &FlowStatus) -> Option<FlowKey> {
    let (guest, peer) = (flow.guest.parse().ok()?, flow.peer.parse().ok()?);
    Some(FlowKey { guest, peer, vlan: flow.vlan })
}

#[cfg(test)]
mod tests {
    use floodway_core::offload::{RxState, TxState};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_state_of_the_offload_is_known() {
        use {RxState as R, TxState as T};
        let tx = [T::Offline, T::Active, T::NoBuffer, T::PacketLoss, T::Leaving];
        assert_eq!(tx.map(TxState::name), TX);
        assert_eq!([R::Offline, R::Active, R::NoBuffer, R::UnexpectedSeq].map(RxState::name), RX);
    }

    #[test]
    fn a_connection_that_ends_leaves_a_gap_and_its_past() {
        let flow = FlowStatus {
            port: "vm1".into(),
            guest: "10.0.0.1:40000".into(),
            peer: "10.0.0.9:80".into(),
            tx: "PACKET_LOSS".into(),
            rx: "OFFLINE".into(),
            cwnd: 14_480,
            ssthresh: u32::MAX,
            srtt_us: Some(93),
            ..FlowStatus::default()
        };
        let mut page = FlowPage::new("vm1", key(&flow).unwrap());
        page.note(1000, Some(flow));
        page.note(2000, None);
        let value = serde_json::to_value(page.all()).unwrap();
        let series = |name: &str| value["series"][name].clone();
        assert_eq!((series("tx"), series("cwnd")), (json!([3, null]), json!([14_480, null])));
        assert_eq!((series("ssthresh"), &value["now"]), (json!([null, null]), &Value::Null));
        assert_eq!((&value["guest"], page.time()), (&json!("10.0.0.1:40000"), Some(2000)));
    }
}
