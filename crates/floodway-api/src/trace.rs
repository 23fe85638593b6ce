//! Traces: what would become of a frame. The documents of `floodway trace` and `POST /v1/trace`.

use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest payload that can be asked for, in bytes.
pub const MAX_PAYLOAD: usize = 65_000;

/// Two ends of a connection or a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ends {
    /// Address and port that it comes from.
    pub from: SocketAddr,
    /// Address and port that it goes to.
    pub to: SocketAddr,
}

/// What the frame is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TracedFrame {
    /// These bytes, in hexadecimal, from the Ethernet header on.
    Frame(String),
    /// A TCP segment.
    Tcp(Ends),
    /// A UDP datagram.
    Udp(Ends),
    /// An ARP request for this address.
    Arp(Ipv4Addr),
}

/// A frame to be traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// Name of the port or uplink that it comes by.
    pub interface: String,
    /// What it is.
    pub what: TracedFrame,
    /// Its source address; by default the guest's own.
    #[serde(default)]
    pub src_mac: Option<String>,
    /// Its destination address; by default that of the port at which the destination's IP address is known.
    #[serde(default)]
    pub dst_mac: Option<String>,
    /// Bytes of payload of a segment or datagram.
    #[serde(default)]
    pub payload: usize,
    /// The segment is a SYN.
    #[serde(default)]
    pub syn: bool,
    /// VLAN that it has a tag of.
    #[serde(default)]
    pub vlan: Option<u16>,
}

impl TraceRequest {
    /// A frame that comes by `interface`, with defaults for everything else.
    #[must_use]
    pub fn new(interface: &str, what: TracedFrame) -> Self {
        Self {
            interface: interface.to_owned(),
            what,
            src_mac: None,
            dst_mac: None,
            payload: 0,
            syn: false,
            vlan: None,
        }
    }
}

/// What one stage does with a frame, and what becomes of it in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It goes on.
    #[default]
    Pass,
    /// It is delivered: placed in a guest's buffers, or given to an uplink's device.
    Deliver,
    /// It waits: for buffers, for a guest that has stopped, or in an uplink's queue.
    Wait,
    /// The TCP offload or the inbound clamp decides by the connection's state: it may be edited, kept, answered or dropped.
    Decide,
    /// It is dropped.
    Drop,
}

impl Outcome {
    /// The name in the document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Deliver => "deliver",
            Self::Wait => "wait",
            Self::Decide => "decide",
            Self::Drop => "drop",
        }
    }
}

/// What one stage of the pipeline does with the frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceStep {
    /// The stage: `parse`, `source`, `table`, `storm`, `look-up`, `inbound`, `offload`, `port`, `queue`.
    pub stage: String,
    /// The port or uplink where it is.
    pub at: String,
    /// What it does.
    pub outcome: Outcome,
    /// The reason as which a drop is counted.
    pub drop: Option<String>,
    /// Why.
    pub reason: String,
}

/// Where the frame ends up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceEnd {
    /// The port or uplink.
    pub at: String,
    /// What becomes of it there.
    pub outcome: Outcome,
    /// The reason as which a drop is counted.
    pub drop: Option<String>,
}

/// What would become of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// Name of the port or uplink that it comes by.
    pub interface: String,
    /// What it is, in a line.
    pub summary: String,
    /// Its bytes in hexadecimal, as many as `floodway trace --frame` needs to trace it again.
    pub frame: String,
    /// What each stage does, in order.
    pub steps: Vec<TraceStep>,
    /// Where it ends up: several if it is flooded.
    pub ends: Vec<TraceEnd>,
}

impl Trace {
    /// Returns the reason of the drop if the frame reaches nobody.
    #[must_use]
    pub fn dropped(&self) -> Option<&str> {
        let dropped = self.ends.iter().all(|end| end.outcome == Outcome::Drop);
        self.ends.last().filter(|_| dropped)?.drop.as_deref()
    }
}
