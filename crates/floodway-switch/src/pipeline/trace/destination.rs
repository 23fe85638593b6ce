//! The end of a frame's way: a port's receive queue, or what is before an uplink's device.

use std::sync::Arc;

use floodway_core::l2::PortId;

use super::{Dropped, Tracer, Way};
use crate::api::trace::Outcome;
use crate::frame::Frame;
use crate::frame::vnet_offload::Offloads;
use crate::pipeline::decide::Verdict;
use crate::queues::rx::{Fate, RxFeatures};
use crate::state::port::Port;
use crate::state::uplink::Uplink;
use crate::stats::DropReason;
use crate::sync::lock;

impl Tracer {
    /// The way of a frame that the table has an answer for.
    pub(super) fn go(
        &mut self,
        way: &Way<'_>,
        verdict: Verdict,
        frame: &Frame<'_>,
        bytes: &[u8],
    ) -> Result<(), Dropped> {
        let leaves = match verdict {
            Verdict::To { dst, .. } => self.delivery.ports.uplink(dst).is_some(),
            Verdict::Flood => true,
            Verdict::Drop(_) => return Ok(()),
        };
        let is_shown = |port: &&Port| leaves && port.network == way.origin.network;
        if let Some(port) = way.port.filter(is_shown) {
            self.leave(port, frame, bytes);
        }
        match verdict {
            Verdict::To { dst, pair } => self.arrive(way, dst, pair, frame, bytes),
            _ => {
                self.flood(way, frame);
                Ok(())
            }
        }
    }

    fn arrive(
        &mut self,
        way: &Way<'_>,
        dst: PortId,
        pair: u16,
        frame: &Frame<'_>,
        bytes: &[u8],
    ) -> Result<(), Dropped> {
        let port = self.delivery.ports.get(dst.index()).cloned();
        if let Some(port) = port {
            if way.port.is_none() && port.network == way.origin.network {
                self.come_in(&port, pair, frame, bytes)?;
            }
            self.reach_port(way, &port, pair, frame);
        } else if let Some(uplink) = self.delivery.ports.uplink(dst).cloned() {
            self.reach_uplink(way, &uplink, frame);
        }
        Ok(())
    }

    fn flood(&mut self, way: &Way<'_>, frame: &Frame<'_>) {
        let ports = Arc::clone(&self.delivery.ports);
        for port in ports.flooded(way.origin) {
            self.reach_port(way, port, 0, frame);
        }
        for uplink in ports.flooded_uplinks(way.origin) {
            self.reach_uplink(way, uplink, frame);
        }
    }

    /// A port's receive queue `pair`, as [`Delivery::deliver`](crate::pipeline::delivery::Delivery::deliver) gives it frames.
    fn reach_port(&mut self, way: &Way<'_>, port: &Port, pair: u16, frame: &Frame<'_>) {
        port.carried.put_tag(way.origin.network, frame, |frame| {
            self.reach_queue(way, port, pair, frame);
        });
    }

    fn reach_queue(&mut self, way: &Way<'_>, port: &Port, pair: u16, frame: &Frame<'_>) {
        let name = &*port.config.name;
        let _ = self.check_port(way, port, frame).map(|()| {
            let running = pair < port.rx_running();
            let pair = if running { pair } else { 0 };
            let (fate, free, waiting) = {
                let mut rx = port.pairs[usize::from(pair)].rx();
                (rx.fate(frame), rx.available(), rx.pending())
            };
            let buffers = buffers(free, waiting);
            match fate {
                Fate::Placed { buffers: used } => {
                    let why = format!("placed in {used} of the guest's receive buffers; {buffers}");
                    self.end(name, "queue", Outcome::Deliver, why);
                }
                Fate::Waits => {
                    let why = format!("the guest has too few receive buffers; {buffers}");
                    self.end(name, "queue", Outcome::Wait, why);
                }
                Fate::WaitsForGuest => {
                    let why = "the guest has stopped; waits a second or two for it to go on";
                    self.end(name, "queue", Outcome::Wait, why);
                }
                Fate::Dropped(reason) => {
                    let why = format!("{}; {buffers}", why_not(reason));
                    let _ = self.drop::<()>(name, "queue", reason, why);
                }
            }
        });
    }

    fn check_port(&mut self, way: &Way<'_>, port: &Port, frame: &Frame<'_>) -> Result<(), Dropped> {
        let name = &*port.config.name;
        if !self.delivery.ports.connects(way.origin, port.id) {
            return self.drop(name, "port", DropReason::Isolated, "one of both ports is isolated");
        }
        if !port.admits(frame) {
            let why = format!(
                "{} bytes: larger than the port's mtu = {} allows",
                frame.len, port.config.mtu
            );
            return self.drop(name, "port", DropReason::Oversize, why);
        }
        self.pass(name, "port", state_of(port));
        // What comes for a guest that has stopped is not measured.
        if port.rx_running() > 0 {
            self.check_rate(name, &port.limits.rx, frame)?;
        }
        Ok(())
    }

    /// An uplink's meter, queue and device.
    fn reach_uplink(&mut self, way: &Way<'_>, uplink: &Uplink, frame: &Frame<'_>) {
        let (source, now, name) = (way.origin.port, self.now, &*uplink.config.name);
        let ask = |frame: &Frame<'_>| uplink.egress().with(|it| it.forecast(source, frame, now));
        let forecast = uplink.carried.put_tag(way.origin.network, frame, ask);
        let class = match forecast.metered {
            true => format!("class {}", forecast.class.name()),
            false => "no meter: class low".to_owned(),
        };
        let why = match way.port.filter(|_| forecast.metered) {
            Some(_) if forecast.class.name() == "high" => "a small flow",
            Some(_) => "no small flow: the pair or the VM is over its rate",
            None => "by its code point",
        };
        self.pass(name, "meter", if forecast.metered { format!("{class}: {why}") } else { class });
        let failed = failures(uplink);
        let (backlog, device) = (forecast.backlog, &uplink.config.device);
        if !forecast.present {
            let why = format!("device {device} is not there{failed}");
            let _ = self.drop::<()>(name, "queue", DropReason::UplinkError, why);
        } else if forecast.waits || uplink.egress().is_uncut(source) {
            let why = format!(
                "waits behind {} packets, {} bytes of its class for device {device}{failed}",
                backlog.packets, backlog.bytes
            );
            self.end(name, "queue", Outcome::Wait, why);
        } else {
            let why = format!("nothing waits: goes to device {device} at once{failed}");
            self.end(name, "queue", Outcome::Deliver, why);
        }
    }
}

/// What the device has not sent so far, in words; empty if nothing.
fn failures(uplink: &Uplink) -> String {
    let reasons = [DropReason::UplinkError, DropReason::UplinkRefused, DropReason::UplinkFull];
    let failed = reasons.iter().map(|&reason| (reason, uplink.sent.traffic.drops(reason)));
    let failed = failed.filter(|&(_, frames)| frames > 0);
    let texts: Vec<_> =
        failed.map(|(reason, frames)| format!("{frames} {}", reason.name())).collect();
    match texts.is_empty() {
        true => String::new(),
        false => format!("; drops there so far: {}", texts.join(", ")),
    }
}

fn buffers(free: Option<u16>, (frames, bytes): (usize, usize)) -> String {
    let waiting = match frames {
        0 => "nothing waits".to_owned(),
        _ => format!("{frames} frames, {bytes} bytes wait"),
    };
    match free {
        Some(free) => format!("{free} buffers are free, {waiting}"),
        None => waiting,
    }
}

const fn why_not(reason: DropReason) -> &'static str {
    match reason {
        DropReason::QueueFull => {
            "the guest gives no receive buffers back and its queue is full (queue_bytes of the port)"
        }
        DropReason::NoLargeBuffer => {
            "it fits no receive buffer of the guest, which takes a frame in one (no MRG_RXBUF)"
        }
        DropReason::PortDown => "no guest runs here",
        DropReason::BadDescriptor => {
            "the guest's receive ring is malformed: the frame would break it"
        }
        _ => "dropped",
    }
}

/// The port's state, in words.
fn state_of(port: &Port) -> String {
    let mut facts = vec![match (port.rx_running(), port.is_connected()) {
        (0, false) => "no front-end is connected".to_owned(),
        (0, true) => "connected, and no receive ring runs".to_owned(),
        (rings, _) => format!("running, {rings} receive rings"),
    }];
    if port.is_departed() {
        facts.push("its guest has stopped".to_owned());
    }
    if let Some((_, reason)) = lock(&port.quarantine).reason() {
        facts.push(format!("quarantined: {reason}"));
    }
    let (is_logged, features) = {
        let rx = port.pairs[0].rx();
        (rx.is_logged(), rx.features())
    };
    if is_logged {
        facts.push("migrating: what is written is noted in the dirty log".to_owned());
    }
    facts.push(format!("mtu {}", port.config.mtu));
    if port.rx_running() > 0 {
        facts.push(format!("takes {}", taken(features)));
    }
    facts.join(", ")
}

/// What a guest takes, in words.
fn taken(features: RxFeatures) -> String {
    let RxFeatures { mergeable, offloads: Offloads { csum, tso4, tso6, .. }, .. } = features;
    let all = [
        (mergeable, "frames in several buffers"),
        (csum, "unfinished checksums"),
        (tso4, "IPv4 GSO packets"),
        (tso6, "IPv6 GSO packets"),
    ];
    let taken: Vec<_> = all.into_iter().filter_map(|(has, what)| has.then_some(what)).collect();
    if taken.is_empty() { "plain frames only".to_owned() } else { taken.join(", ") }
}
