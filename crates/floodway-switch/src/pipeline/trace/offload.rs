//! What the TCP offload and the inbound clamp of a port have to do with a frame between its guest and an uplink.

use floodway_core::offload::{Expectation, FlowSummary};
use floodway_wire::FiveTuple;

use super::{Dropped, Tracer};
use crate::api::trace::Outcome;
use crate::frame::Frame;
use crate::frame::describe::{Described, Direction, Trust, describe, is_intact};
use crate::pipeline::inbound;
use crate::state::port::Port;

impl Tracer {
    /// A frame of the guest of `port` that goes to an uplink.
    pub(super) fn leave(&mut self, port: &Port, frame: &Frame<'_>, bytes: &[u8]) {
        let described = describe(frame, Direction::FromGuest);
        if port.offload.is_active() {
            self.show(port, described.as_ref(), bytes, Direction::FromGuest);
        }
        if port.inbound.is_active() && described.is_some() {
            let why = "the link into the host is divided: the window may become smaller, and what asks for data may wait for its turn";
            self.step(&port.config.name, "inbound", Outcome::Decide, why);
        }
    }

    /// A frame from an uplink that goes to receive queue `pair` of `port`.
    pub(super) fn come_in(
        &mut self,
        port: &Port,
        pair: u16,
        frame: &Frame<'_>,
        bytes: &[u8],
    ) -> Result<(), Dropped> {
        let name = &*port.config.name;
        if port.inbound.is_active() {
            let passes = inbound::would_pass_from_network(port, self.now, frame);
            self.check(name, "inbound", passes, || {
                "UDP beyond the guest's rate (police_udp)".to_owned()
            })?;
            self.pass(name, "inbound", "within the guest's rate, or slowed down by its windows");
        }
        if port.offload.is_active() && pair < port.rx_running() && port.admits(frame) {
            let described = describe(frame, Direction::FromNetwork);
            self.show(port, described.as_ref(), bytes, Direction::FromNetwork);
        }
        Ok(())
    }

    /// What the offload knows of the frame's flow.
    fn show(
        &mut self,
        port: &Port,
        described: Option<&Described>,
        bytes: &[u8],
        direction: Direction,
    ) {
        let name = &*port.config.name;
        let Some(Described { meta, segment, trust, .. }) = described else {
            return self.pass(name, "offload", "passes by: no TCP segment with plain headers");
        };
        if *trust == Trust::Unverified && !is_intact(bytes, meta) {
            return self.pass(name, "offload", "passes by: its checksum is wrong");
        }
        let flow = match direction {
            Direction::FromGuest => meta.flow,
            Direction::FromNetwork => meta.flow.reversed(),
        };
        let (expectation, summary, draining) = {
            let machine = port.offload.machine();
            let engine = &machine.engine;
            (engine.expectation(&flow, segment), engine.flow(&flow), machine.draining)
        };
        let (outcome, mut why) = describe_expectation(expectation, summary.as_ref(), &flow);
        if draining {
            why.push_str("; the port is being drained");
        }
        self.step(name, "offload", outcome, why);
    }
}

/// What becomes of a segment, and why, in words.
fn describe_expectation(
    expectation: Expectation,
    summary: Option<&FlowSummary>,
    flow: &FiveTuple,
) -> (Outcome, String) {
    let peer = std::net::SocketAddr::new(flow.dst_ip(), flow.dst_port);
    match expectation {
        Expectation::Unknown => {
            let why = format!("passes: no flow to {peer} is known, whose SYN was not seen");
            (Outcome::Pass, why)
        }
        Expectation::Opens => (Outcome::Pass, format!("passes: would open the flow to {peer}")),
        Expectation::Opening => {
            (Outcome::Pass, format!("passes: the handshake of the flow to {peer} is not over"))
        }
        Expectation::Excluded(reason) => {
            let why = format!("passes: the flow to {peer} is never offloaded: {}", reason.name());
            (Outcome::Pass, why)
        }
        Expectation::Offline(reason) => {
            let why = format!("the flow to {peer} is offline: {}", reason.name());
            (Outcome::Decide, why)
        }
        Expectation::Reset => {
            let why = format!(
                "the connection to {peer} is reset: what was acknowledged for the guest is lost, or may be"
            );
            (Outcome::Decide, why)
        }
        Expectation::Online => (Outcome::Decide, summary.map_or_else(String::new, state_of)),
    }
}

/// The state of a flow that is online, in words.
fn state_of(flow: &FlowSummary) -> String {
    format!(
        "the flow is online: transmit {}, receive {}, last reason {}; {} bytes held, {} in flight, cwnd {}",
        flow.tx.name(),
        flow.rx.name(),
        flow.reason.name(),
        flow.held,
        flow.in_flight,
        flow.cwnd
    )
}
