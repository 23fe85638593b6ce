//! Traces: what the pipeline would do with a frame, stage by stage.
//!
//! # Theory of operation
//! **Goal**: an operator asks what becomes of a frame, and is told by every stage, with its reason. Nothing is sent or delivered, and
//! nothing of the switch changes: nothing is learned or refreshed, no counter moves, no token is taken, no guest is interrupted.
//!
//! **How**: a trace asks the functions by which the packet path decides ([`decide`]), in the same order. A bucket
//! of tokens, a meter's pair and a device's limit are asked as copies, the forwarding table by a peek, a receive queue by taking its
//! chains and putting them back ([`Fate`]). One lock is held at a time, as by any other reader, by the control socket's thread.
//!
//! **Not foretold**: what the TCP offload and the inbound clamp make of a segment of a connection that they follow. They decide by its
//! clock, its stored data and its peer; the trace says what state it is in, and goes on as if the segment passed.
//! Nor is it known whether a device will take a frame: what it has refused and failed so far is named.
//!
//! Frames are plain, as on a wire: in one piece, with complete checksums.
//!
//! **Invariant**: a verdict of dropped, waiting or delivered is what then happens to that frame (the property
//! test in `tests`).

mod destination;
mod offload;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use floodway_core::l2::{Entry, EntryKind, MacTable, NetworkId, Origin, PortId, Spoof, StormLimit};
use floodway_core::time::Instant;
use floodway_wire::MacAddr;
use floodway_wire::vnet::VnetHdr;

use crate::api::trace::{Outcome, TraceEnd, TraceStep};
use crate::frame::describe::{Special, special};
use crate::frame::{self, Frame, MAX_FRAME_LEN, vlan};
use crate::pipeline::decide::{
    self, Objection, Source, Verdict, accept, addresses, check_received, is_announcement,
};
use crate::pipeline::delivery::Delivery;
use crate::state::carried::Carried;
use crate::state::limit::PortLimit;
use crate::state::port::Port;
use crate::state::shared::Shared;
use crate::state::uplink::Uplink;
use crate::stats::DropReason;
use crate::sync::lock;

#[cfg(doc)]
use crate::queues::rx::Fate;

/// Steps of a frame that is on its way, and where it ends.
pub struct Tracer {
    delivery: Delivery,
    now: Instant,
    steps: Vec<TraceStep>,
    ends: Vec<TraceEnd>,
}

/// A stage has dropped the frame.
struct Dropped;

/// What a frame that comes from somewhere meets on its way.
struct Way<'a> {
    origin: Origin,
    /// The guest's port, if it comes from one.
    port: Option<&'a Port>,
    /// Name of the port or uplink.
    name: &'a str,
}

impl Tracer {
    /// A tracer of frames that come at `now`.
    #[must_use]
    pub fn new(shared: &Arc<Shared>, now: Instant) -> Self {
        Self {
            delivery: Delivery::new(Arc::clone(shared)),
            now,
            steps: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Traces a frame that the guest of `port` sends. Returns the stages and where it ends.
    #[must_use]
    pub fn from_guest(mut self, port: &Port, bytes: &[u8]) -> (Vec<TraceStep>, Vec<TraceEnd>) {
        frame::with_slice(VnetHdr::default(), bytes, |frame| {
            let name = &*port.config.name;
            let way = Way { origin: port.origin(), port: Some(port), name };
            let _ = self.trace_from_guest(&way, port, frame, bytes);
        });
        (self.steps, self.ends)
    }

    /// Traces a frame that has arrived by `uplink`. Returns the stages and where it ends.
    #[must_use]
    pub fn from_uplink(mut self, uplink: &Uplink, bytes: &[u8]) -> (Vec<TraceStep>, Vec<TraceEnd>) {
        frame::with_slice(VnetHdr::default(), bytes, |frame| {
            let _ = self.trace_received(uplink, frame, bytes);
        });
        (self.steps, self.ends)
    }

    fn trace_from_guest(
        &mut self,
        way: &Way<'_>,
        port: &Port,
        frame: &Frame<'_>,
        bytes: &[u8],
    ) -> Result<(), Dropped> {
        if frame.len > MAX_FRAME_LEN {
            let why = format!("{} bytes; no frame has more than {MAX_FRAME_LEN}", frame.len);
            return self.drop(way.name, "parse", DropReason::BadDescriptor, why);
        }
        self.check_len(way.name, frame)?;
        self.check_ring(port)?;
        self.check_rate(way.name, &port.limits.tx, frame)?;
        if !port.is_trunk() || special(frame.prefix) == Some(Special::Notice) {
            return self.trace_sent(way, port, frame, bytes);
        }
        self.take_tag(way.name, &port.carried, frame, bytes, |tracer, network, frame, bytes| {
            let origin = Origin { network, ..way.origin };
            tracer.trace_sent(&Way { origin, ..*way }, port, frame, bytes)
        })
    }

    /// A frame of a guest, whose tag was taken off on a trunk port.
    fn trace_sent(
        &mut self,
        way: &Way<'_>,
        port: &Port,
        frame: &Frame<'_>,
        bytes: &[u8],
    ) -> Result<(), Dropped> {
        if let Err(objection) = decide::check_source(port, frame.prefix) {
            let why = objection_of(port, objection);
            return self.drop(way.name, "source", objection.reason(frame.prefix), why);
        }
        self.pass(way.name, "source", policy_of(port));
        let (verdict, _) = self.look_up(way, frame, false)?;
        if verdict == Verdict::Flood {
            let limit = port.carried.get(way.origin.network).map(|of| lock(&of.storm).clone());
            self.storm(way.name, limit, frame)?;
        }
        self.go(way, verdict, frame, bytes)
    }

    /// Takes the tag off a frame if it has one, and goes on in the network that this means.
    fn take_tag<T>(
        &mut self,
        at: &str,
        carried: &Carried<T>,
        frame: &Frame<'_>,
        bytes: &[u8],
        go_on: impl FnOnce(&mut Self, NetworkId, &Frame<'_>, &[u8]) -> Result<(), Dropped>,
    ) -> Result<(), Dropped> {
        let filtered = DropReason::VlanFiltered;
        match (special(frame.prefix), vlan::outer_vid(frame.prefix)) {
            (Some(Special::Tagged), None) => self.drop(at, "vlan", filtered, "no 802.1Q tag"),
            (Some(Special::Tagged), Some(vid)) => {
                let bytes = vlan::bytes_without_tag(bytes);
                vlan::without_tag(frame, |frame| match special(frame.prefix) {
                    None => {
                        let network = self.find(at, carried, vid)?;
                        go_on(self, network, frame, &bytes)
                    }
                    Some(_) => self.drop(at, "vlan", filtered, "guests take no second tag"),
                })
            }
            _ => {
                let network = self.find(at, carried, 0)?;
                go_on(self, network, frame, bytes)
            }
        }
    }

    /// The network that a VLAN identifier means.
    fn find<T>(&mut self, at: &str, carried: &Carried<T>, vid: u16) -> Result<NetworkId, Dropped> {
        let Some(network) = carried.network_of(vid) else {
            let why = match vid {
                0 => format!("{at} carries no network without tags"),
                vid => format!("{at} carries no network of VLAN {vid}"),
            };
            return self.drop(at, "vlan", DropReason::VlanFiltered, why);
        };
        let vlan = if vid == 0 { "no tag".to_owned() } else { format!("VLAN {vid}") };
        self.pass(at, "vlan", format!("{vlan}: network {}", network.0));
        Ok(network)
    }

    /// A rate limit, if there is one.
    fn check_rate(
        &mut self,
        at: &str,
        limit: &PortLimit,
        frame: &Frame<'_>,
    ) -> Result<(), Dropped> {
        if !limit.is_limited() {
            return Ok(());
        }
        if !limit.would_admit(frame, self.now) {
            let why = "beyond the port's rate ([port.limit])";
            return self.drop(at, "limit", DropReason::RateLimit, why);
        }
        self.pass(at, "limit", "within the port's rate");
        Ok(())
    }

    fn check_len(&mut self, at: &str, frame: &Frame<'_>) -> Result<(), Dropped> {
        let why = || format!("{} bytes: shorter than an Ethernet header", frame.len);
        self.check(at, "parse", frame::check_len(frame.len), why)?;
        self.pass(at, "parse", format!("{} bytes", frame.len));
        Ok(())
    }

    /// A transmit queue takes nothing from a guest that has not started it, and discards what comes from one that is not enabled.
    fn check_ring(&mut self, port: &Port) -> Result<(), Dropped> {
        let name = &*port.config.name;
        let (is_running, is_enabled) = {
            let tx = port.pairs[0].tx();
            (tx.is_running(), tx.is_enabled())
        };
        match (is_running, is_enabled) {
            (true, false) => {
                let why = "the front-end has not enabled the transmit ring: frames are discarded";
                self.drop(name, "queue", DropReason::PortDown, why)
            }
            (true, true) => Ok(()),
            (false, _) => {
                self.pass(name, "queue", "no guest runs here; traced as if one did");
                Ok(())
            }
        }
    }

    fn trace_received(
        &mut self,
        uplink: &Uplink,
        frame: &Frame<'_>,
        bytes: &[u8],
    ) -> Result<(), Dropped> {
        let name = &*uplink.config.name;
        self.check_len(name, frame)?;
        if special(frame.prefix) == Some(Special::Notice) {
            let why = "of the type by which the switch speaks to guests";
            return self.drop(name, "source", DropReason::ForgedNotice, why);
        }
        self.take_tag(name, &uplink.carried, frame, bytes, |tracer, network, frame, bytes| {
            tracer.trace_in(uplink, network, frame, bytes)
        })
    }

    fn trace_in(
        &mut self,
        uplink: &Uplink,
        network: NetworkId,
        frame: &Frame<'_>,
        bytes: &[u8],
    ) -> Result<(), Dropped> {
        let name = &*uplink.config.name;
        self.check(name, "parse", check_received(frame).map(drop), String::new)?;
        let way = Way { origin: Origin { port: uplink.id, network }, port: None, name };
        let (verdict, dst) = self.look_up(&way, frame, is_announcement(frame))?;
        if verdict == Verdict::Flood {
            let limit = uplink.flood_limit(network, dst).map(|limit| lock(limit).clone());
            self.storm(name, limit, frame)?;
        }
        self.go(&way, verdict, frame, bytes)
    }

    /// Asks the table for the source and the destination.
    fn look_up(
        &mut self,
        way: &Way<'_>,
        frame: &Frame<'_>,
        announcement: bool,
    ) -> Result<(Verdict, MacAddr), Dropped> {
        let (dst, src) = addresses(frame.prefix);
        let shared = Arc::clone(&self.delivery.shared);
        let tables = shared.tables();
        let table = tables.of(way.origin.network);
        let source = accept(table.peek(src, way.origin.port, announcement, self.now));
        let verdict = source.map(|source| match way.port {
            Some(_) => self.delivery.look_up(table, way.origin, frame),
            None => self.delivery.look_up_received(table, way.origin, source, frame),
        });
        let places = (self.place_of(table, src), self.place_of(table, dst));
        drop(tables);
        self.show_source(way, src, source, places.0)?;
        let verdict = verdict.unwrap_or_else(Verdict::Drop);
        self.show_destination(way, dst, verdict, places.1)?;
        Ok((verdict, dst))
    }

    fn show_source(
        &mut self,
        way: &Way<'_>,
        src: MacAddr,
        source: Result<Source, DropReason>,
        place: Option<String>,
    ) -> Result<(), Dropped> {
        let known = |otherwise: &str| place.unwrap_or_else(|| otherwise.to_owned());
        let why = match source {
            Err(reason) => {
                let why = format!("source {src} {}", known("is no address of a host"));
                return self.drop(way.name, "table", reason, why);
            }
            Ok(Source::Changed) => "is new here, and would be learned".to_owned(),
            Ok(Source::Known) => known("is not learned: the port has as many as it may"),
        };
        self.pass(way.name, "table", format!("source {src} {why}"));
        Ok(())
    }

    fn show_destination(
        &mut self,
        way: &Way<'_>,
        dst: MacAddr,
        verdict: Verdict,
        place: Option<String>,
    ) -> Result<(), Dropped> {
        let place = place.unwrap_or_else(|| match dst.is_multicast() {
            true => "is a group: to all".to_owned(),
            false => "is not known: to all".to_owned(),
        });
        let why = format!("network {}, destination {dst} {place}", way.origin.network.0);
        match verdict {
            Verdict::Drop(reason) => {
                self.drop(way.name, "look-up", reason, format!("{why}{}", no_way(reason)))
            }
            Verdict::To { .. } | Verdict::Flood => {
                self.pass(way.name, "look-up", why);
                Ok(())
            }
        }
    }

    /// Where the table has an address, in words.
    fn place_of(&self, table: &MacTable, mac: MacAddr) -> Option<String> {
        let Entry { port, kind, .. } = table.entry_of(mac, self.now)?;
        let name = self.name_of(port);
        Some(match kind {
            EntryKind::Static => format!("is at {name}, by the configuration"),
            EntryKind::Learned { idle } => {
                format!("is at {name}, learned, last seen {} s ago", idle.as_secs())
            }
        })
    }

    fn name_of(&self, id: PortId) -> String {
        match self.delivery.ports.get(id.index()) {
            Some(port) => port.config.name.clone(),
            None => {
                let uplink = self.delivery.ports.uplink(id);
                uplink.map(|uplink| uplink.config.name.clone()).unwrap_or_default()
            }
        }
    }

    /// Asks a copy of the limit that holds for a flooded frame.
    fn storm(
        &mut self,
        at: &str,
        limit: Option<StormLimit>,
        frame: &Frame<'_>,
    ) -> Result<(), Dropped> {
        let admits = limit.as_ref().is_some_and(|it| it.would_admit(frame.segments(), self.now));
        let reason = match limit.and_then(|limit| limit.available(self.now)) {
            None => "no limit of flooded frames".to_owned(),
            Some(left) => format!("{left} flooded frames may pass now"),
        };
        match admits {
            true => self.pass(at, "storm", reason),
            false => return self.drop(at, "storm", DropReason::Storm, reason),
        }
        Ok(())
    }
}

/// Steps.
impl Tracer {
    fn step(&mut self, at: &str, stage: &str, outcome: Outcome, reason: impl Into<String>) {
        let (stage, at, reason) = (stage.to_owned(), at.to_owned(), reason.into());
        self.steps.push(TraceStep { stage, at, outcome, drop: None, reason });
    }

    fn pass(&mut self, at: &str, stage: &str, reason: impl Into<String>) {
        self.step(at, stage, Outcome::Pass, reason);
    }

    /// The frame ends here.
    fn end(&mut self, at: &str, stage: &str, outcome: Outcome, reason: impl Into<String>) {
        self.step(at, stage, outcome, reason);
        self.ends.push(TraceEnd { at: at.to_owned(), outcome, drop: None });
    }

    /// The frame ends here, dropped. Returns an error, whatever `T` would have been.
    fn drop<T>(
        &mut self,
        at: &str,
        stage: &str,
        drop: DropReason,
        reason: impl Into<String>,
    ) -> Result<T, Dropped> {
        self.end(at, stage, Outcome::Drop, reason);
        let name = Some(drop.name().to_owned());
        if let (Some(step), Some(end)) = (self.steps.last_mut(), self.ends.last_mut()) {
            (step.drop, end.drop) = (name.clone(), name);
        }
        Err(Dropped)
    }

    /// Goes on if `result` says so.
    fn check(
        &mut self,
        at: &str,
        stage: &str,
        result: Result<(), DropReason>,
        why: impl FnOnce() -> String,
    ) -> Result<(), Dropped> {
        match result {
            Ok(()) => Ok(()),
            Err(reason) => self.drop(at, stage, reason, why()),
        }
    }
}

/// What the port objects to, in words.
fn objection_of(port: &Port, objection: Objection) -> String {
    let ips = || port.config.ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match objection {
        Objection::Notice => "of the type by which the switch speaks to guests".to_owned(),
        Objection::Tagged => {
            "a VLAN tag; the port's network is set by its configuration".to_owned()
        }
        Objection::Source(_) | Objection::Inside(Spoof::Mac) => match port.config.mac {
            Some(mac) => format!("the guest may send from {mac} only (mac of the port)"),
            None => "a link-layer address in it is not the frame's source".to_owned(),
        },
        Objection::Inside(Spoof::Ip) => {
            format!("an IP address that is not among the guest's: {} (ips of the port)", ips())
        }
        Objection::Inside(Spoof::Router) => {
            "a router's message; the guest may send none (allow_router of the port)".to_owned()
        }
        Objection::Inside(Spoof::DhcpServer) => {
            "a DHCP server's message; the guest may send none (allow_dhcp_server of the port)"
                .to_owned()
        }
    }
}

/// What the port checks, in words.
fn policy_of(port: &Port) -> String {
    let mac = port.config.mac.map_or_else(|| "any address".to_owned(), |mac| mac.to_string());
    let ips = if port.config.ips.is_empty() { "any IP address" } else { "its IP addresses" };
    let tags = if port.is_trunk() { "VLAN tags of its networks" } else { "no VLAN tag" };
    format!("the guest may send from {mac} and {ips}; {tags}")
}

/// Why a frame goes nowhere, where that is not clear from its destination.
fn no_way(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Hairpin => "; that is where it comes from",
        DropReason::Isolated => {
            "; one of both ports is isolated, or they are of different networks"
        }
        DropReason::Oversize => "; the frame is larger than the network's mtu allows",
        DropReason::NoDestination => ", and no other port or uplink of the network runs",
        _ => "",
    }
}
