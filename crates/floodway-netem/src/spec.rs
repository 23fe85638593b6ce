//! The description of an emulated path, as a file or from the lab.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::model::{
    self, ETHERNET_OVERHEAD, Forwarding, LinkConfig, LossModel, PortConfig, QueueConfig, Rate,
};

/// Queue of a link that does not say: about 100 full frames.
const DEFAULT_QUEUE_BYTES: u32 = 150_000;
const DEFAULT_SPIN_US: u32 = 50;
const MAX_PORTS: usize = 64;

/// What joins the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Two ports, joined.
    Path,
    /// Any number of ports with MAC learning.
    Switch,
}

/// A whole path or switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What joins the ports.
    pub kind: Kind,
    /// Seed of all that is random.
    #[serde(default = "one")]
    pub seed: u64,
    /// How long before a packet is due the process stops sleeping, in microseconds, 0..=1000. What
    /// the kernel's timers are late by.
    #[serde(default = "default_spin_us")]
    pub spin_us: u32,
    /// Runs as a `SCHED_RR` thread of this priority, 1..=99. Without it, as an ordinary thread with
    /// the shortest slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realtime_priority: Option<u32>,
    /// Two ports of a path, 2..=64 of a switch.
    pub port: Vec<PortSpec>,
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// An existing interface, such as one end of a veth pair, through packet sockets. It must be
    /// up, and should have no addresses.
    #[default]
    Packet,
    /// A tap that is created if need be; its interface *is* the host's network card.
    Tap,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// Unique.
    pub name: String,
    /// Network interface.
    pub device: String,
    /// How it is opened.
    #[serde(default)]
    pub kind: DeviceKind,
    /// Network namespace of the interface, a name as in `ip netns`; the process's own without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// From the host to the joint; without it, frames pass as fast as the host makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<LinkSpec>,
    /// From the joint to the host.
    #[serde(default)]
    pub egress: LinkSpec,
}

impl PortSpec {
    /// A port at an existing interface, with links that do nothing.
    #[must_use]
    pub fn packet(name: &str, namespace: Option<&str>, device: &str) -> Self {
        Self {
            name: name.into(),
            device: device.into(),
            kind: DeviceKind::Packet,
            namespace: namespace.map(Into::into),
            ingress: None,
            egress: LinkSpec::default(),
        }
    }

    /// A port at a tap of its own, with links that do nothing.
    #[must_use]
    pub fn tap(name: &str, namespace: Option<&str>, device: &str) -> Self {
        Self { kind: DeviceKind::Tap, ..Self::packet(name, namespace, device) }
    }
}

/// Packets that vanish.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Loss {
    /// Each packet with this probability.
    Random(f64),
    /// Bursts, by the model of Gilbert and Elliott.
    Burst(BurstLoss),
}

/// Parameters of the Gilbert-Elliott model; see [`LossModel`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstLoss {
    /// Probability that a packet is the first of a bad time.
    pub good_to_bad: f64,
    /// Probability that a packet is the first of a good time again: 1 / mean length of a bad time.
    pub bad_to_good: f64,
    /// Loss in good times.
    #[serde(default)]
    pub loss_good: f64,
    /// Loss in bad times.
    #[serde(default = "always")]
    pub loss_bad: f64,
}

/// Packets that are held back so that others overtake them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Which share of packets, 0 to 1.
    pub probability: f64,
    /// How much later they arrive, in milliseconds.
    pub extra_ms: f64,
}

/// One direction of a link. The default does nothing to packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSpec {
    /// Rate on the wire in Mbit/s, overhead included, 0.001..=100000; as fast as can be without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_mbit: Option<f64>,
    /// Bytes that each frame costs besides those from Ethernet header to payload, 0..=1000. The
    /// default is that of Ethernet, where 1500 bytes of IP packet are 1538 bytes of wire.
    pub overhead_bytes: u32,
    /// Propagation delay in milliseconds, 0..=60000.
    pub delay_ms: f64,
    /// The delay varies by at most this much, uniformly, in milliseconds; not above `delay_ms`.
    /// Packets keep their order.
    pub jitter_ms: f64,
    /// Bytes of frames that may wait (in the low class, if there are two), 1514..=1 GiB.
    pub queue_bytes: u32,
    /// Bytes that may wait in the high class; the same as `queue_bytes` without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_queue_bytes: Option<u32>,
    /// Bytes waiting from which on ECN-capable packets are marked; never without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecn_bytes: Option<u32>,
    /// DSCP values, 0..=63, of the class that is served first. None: one class.
    pub high_dscp: Vec<u8>,
    /// Packets that vanish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Packets that are overtaken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<Reorder>,
    /// Share of packets that arrive twice, 0 to 1.
    pub duplicate: f64,
    /// Share of packets with a flipped bit, 0 to 1. Where TCP or UDP checks sums, that is loss.
    pub corrupt: f64,
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self {
            rate_mbit: None,
            overhead_bytes: ETHERNET_OVERHEAD,
            delay_ms: 0.0,
            jitter_ms: 0.0,
            queue_bytes: DEFAULT_QUEUE_BYTES,
            high_queue_bytes: None,
            ecn_bytes: None,
            high_dscp: Vec::new(),
            loss: None,
            reorder: None,
            duplicate: 0.0,
            corrupt: 0.0,
        }
    }
}

/// A link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// From the host.
    Ingress,
    /// To the host.
    Egress,
}

impl Spec {
    /// Joins two ports.
    #[must_use]
    pub fn path(a: PortSpec, b: PortSpec) -> Self {
        Self::new(Kind::Path, vec![a, b])
    }

    /// Joins ports by a switch.
    #[must_use]
    pub fn switch(ports: Vec<PortSpec>) -> Self {
        Self::new(Kind::Switch, ports)
    }

    fn new(kind: Kind, port: Vec<PortSpec>) -> Self {
        Self { kind, seed: 1, spin_us: DEFAULT_SPIN_US, realtime_priority: None, port }
    }

    /// Reads a description in TOML.
    ///
    /// # Errors
    /// When it is no description, or one that makes no sense.
    pub fn parse(text: &str) -> Result<Self> {
        let spec: Self = toml::from_str(text)?;
        spec.check()?;
        Ok(spec)
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    /// Names the key that does not.
    pub fn check(&self) -> Result<()> {
        let ports = self.port.len();
        match self.kind {
            Kind::Path => ensure!(ports == 2, "a path has 2 ports, not {ports}"),
            Kind::Switch => {
                ensure!((2..=MAX_PORTS).contains(&ports), "a switch has 2 to {MAX_PORTS} ports");
            }
        }
        ensure!(self.spin_us <= 1000, "spin_us = {}: must be 0 to 1000", self.spin_us);
        let names: BTreeSet<_> = self.port.iter().map(|port| &port.name).collect();
        ensure!(names.len() == ports, "two ports have the same name");
        self.port_configs().map(drop)
    }

    /// The model's form of [`Spec::kind`].
    #[must_use]
    pub fn forwarding(&self) -> Forwarding {
        match self.kind {
            Kind::Path => Forwarding::Path,
            Kind::Switch => Forwarding::Switch,
        }
    }

    /// The model's form of [`Spec::port`].
    ///
    /// # Errors
    /// As [`Spec::check`].
    pub fn port_configs(&self) -> Result<Vec<PortConfig>> {
        let config = |port: &PortSpec| -> Result<PortConfig> {
            let ingress = port.ingress.as_ref().map(LinkSpec::config).transpose();
            Ok(PortConfig {
                ingress: ingress.with_context(|| format!("port {}, ingress", port.name))?,
                egress: port
                    .egress
                    .config()
                    .with_context(|| format!("port {}, egress", port.name))?,
            })
        };
        self.port.iter().map(config).collect()
    }
}

impl LinkSpec {
    /// The model's form.
    ///
    /// # Errors
    /// Names the key that makes no sense.
    pub fn config(&self) -> Result<LinkConfig> {
        ensure!(
            self.jitter_ms <= self.delay_ms,
            "jitter_ms = {}: must not be above delay_ms = {}",
            self.jitter_ms,
            self.delay_ms
        );
        Ok(LinkConfig {
            rate: self.rate()?,
            queue: self.queue()?,
            delay: milliseconds("delay_ms", self.delay_ms)?,
            jitter: milliseconds("jitter_ms", self.jitter_ms)?,
            loss: self.loss.map_or(Ok(LossModel::None), Loss::model)?,
            reordering: self.reorder.map(Reorder::model).transpose()?,
            duplicate: probability("duplicate", self.duplicate)?,
            corrupt: probability("corrupt", self.corrupt)?,
        })
    }

    fn rate(&self) -> Result<Option<Rate>> {
        let overhead = self.overhead_bytes;
        ensure!(overhead <= 1000, "overhead_bytes = {overhead}: must be 0 to 1000");
        let Some(mbit) = self.rate_mbit else { return Ok(None) };
        ensure!((0.001..=100_000.0).contains(&mbit), "rate_mbit = {mbit}: must be 0.001 to 100000");
        Ok(Rate::new((mbit * 1e6).round() as u64, overhead))
    }

    fn queue(&self) -> Result<QueueConfig> {
        let high_bytes = self.high_queue_bytes.unwrap_or(self.queue_bytes);
        for (key, bytes) in [("queue_bytes", self.queue_bytes), ("high_queue_bytes", high_bytes)] {
            ensure!(
                (1514..=1 << 30).contains(&bytes),
                "{key} = {bytes}: a queue holds 1514 bytes (one frame) to 1 GiB"
            );
        }
        let mut high_dscp = 0_u64;
        for &dscp in &self.high_dscp {
            ensure!(dscp < 64, "high_dscp = {dscp}: a DSCP is 0 to 63");
            high_dscp |= 1 << dscp;
        }
        Ok(QueueConfig {
            low_bytes: self.queue_bytes.into(),
            high_bytes: high_bytes.into(),
            ecn_bytes: self.ecn_bytes.map(Into::into),
            high_dscp,
        })
    }
}

impl Loss {
    fn model(self) -> Result<LossModel> {
        Ok(match self {
            Self::Random(share) => LossModel::Random(probability("loss", share)?),
            Self::Burst(burst) => LossModel::GilbertElliott {
                p: probability("good_to_bad", burst.good_to_bad)?,
                r: probability("bad_to_good", burst.bad_to_good)?,
                loss_good: probability("loss_good", burst.loss_good)?,
                loss_bad: probability("loss_bad", burst.loss_bad)?,
            },
        })
    }
}

impl Reorder {
    fn model(self) -> Result<model::Reordering> {
        Ok(model::Reordering {
            probability: probability("reorder.probability", self.probability)?,
            extra: milliseconds("reorder.extra_ms", self.extra_ms)?,
        })
    }
}

fn probability(key: &str, value: f64) -> Result<f64> {
    ensure!((0.0..=1.0).contains(&value), "{key} = {value}: a probability is 0 to 1");
    Ok(value)
}

fn milliseconds(key: &str, value: f64) -> Result<Duration> {
    ensure!((0.0..=60_000.0).contains(&value), "{key} = {value}: must be 0 to 60000 ms");
    Ok(Duration::from_secs_f64(value / 1e3))
}

fn one() -> u64 {
    1
}

fn always() -> f64 {
    1.0
}

fn default_spin_us() -> u32 {
    DEFAULT_SPIN_US
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"
        kind = "path"
        seed = 7
        [[port]]
        name = "a"
        device = "fw0"
        namespace = "host-a"
        [port.egress]
        rate_mbit = 50
        delay_ms = 10
        queue_bytes = 64000
        loss = 0.01
        [[port]]
        name = "b"
        kind = "tap"
        device = "eth0"
        ingress = { rate_mbit = 1000 }
        [port.egress]
        loss = { good_to_bad = 0.001, bad_to_good = 0.1 }
        reorder = { probability = 0.01, extra_ms = 3 }
        high_dscp = [46, 34]
    "#;

    fn link_error(edit: impl FnOnce(&mut LinkSpec)) -> String {
        let mut link = LinkSpec::default();
        edit(&mut link);
        link.config().unwrap_err().to_string()
    }

    #[test]
    fn a_file_says_it_all() {
        let spec = Spec::parse(SPEC).unwrap();
        assert_eq!(spec.port[0].egress.loss, Some(Loss::Random(0.01)));
        let ports = spec.port_configs().unwrap();
        assert_eq!(ports[0].egress.delay, Duration::from_millis(10));
        assert_eq!(ports[0].egress.rate, Rate::new(50_000_000, ETHERNET_OVERHEAD));
        assert_eq!(ports[1].egress.queue.high_dscp, 1 << 46 | 1 << 34);
        let burst = LossModel::GilbertElliott { p: 0.001, r: 0.1, loss_good: 0.0, loss_bad: 1.0 };
        assert_eq!(ports[1].egress.loss, burst);
        assert!(ports[1].ingress.is_some() && ports[0].ingress.is_none());
        // What the lab writes, the process reads.
        assert_eq!(Spec::parse(&toml::to_string(&spec).unwrap()).unwrap(), spec);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(link_error(|link| link.rate_mbit = Some(0.0)).starts_with("rate_mbit = 0"));
        assert!(link_error(|link| link.delay_ms = -1.0).contains("delay_ms = -1"));
        assert!(link_error(|link| link.jitter_ms = 1.0).starts_with("jitter_ms = 1"));
        assert!(link_error(|link| link.queue_bytes = 1).starts_with("queue_bytes = 1"));
        assert!(link_error(|link| link.high_dscp = vec![64]).starts_with("high_dscp = 64"));
        assert!(link_error(|link| link.loss = Some(Loss::Random(2.0))).starts_with("loss = 2"));
        assert!(link_error(|link| link.corrupt = f64::NAN).starts_with("corrupt = NaN"));
        let twice = SPEC.replace("\"b\"", "\"a\"");
        assert!(Spec::parse(&twice).unwrap_err().to_string().contains("same name"));
        let misspelt = SPEC.replace("delay_ms", "delay");
        assert!(format!("{:#}", Spec::parse(&misspelt).unwrap_err()).contains("delay"));
        let unbounded = SPEC.replace("queue_bytes = 64000", "queue_bytes = 64");
        let text = format!("{:#}", Spec::parse(&unbounded).unwrap_err());
        assert!(text.starts_with("port a, egress: queue_bytes = 64"), "{text}");
    }
}
