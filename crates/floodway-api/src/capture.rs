//! Captures: the documents of `floodway capture`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Captures that can run at once.
pub const MAX_CAPTURES: usize = 4;
/// Bytes of a frame that are captured unless somebody says otherwise: all of any frame, a GSO packet of 64 KB, too.
pub const SNAP_LEN: u32 = 262_144;
/// Least bytes of a frame that are captured: an Ethernet header.
pub const MIN_SNAP_LEN: u32 = 14;
/// Media type of the answer.
pub const MEDIA_TYPE: &str = "application/x-pcapng";
/// Header of the answer that has the capture's number.
pub const ID_HEADER: &str = "floodway-capture";

/// Where frames are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// As they come from a port's guest or an uplink's device.
    In,
    /// As they are given to a port's queue or an uplink's device.
    Out,
    /// As a port's TCP offload sees, sends and delivers them, with its verdicts and the flow's state.
    Offload,
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; 3] = [Self::In, Self::Out, Self::Offload];

    /// Its name in requests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Offload => "offload",
        }
    }
}

/// What is to be captured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Name of a port or an uplink.
    pub interface: String,
    /// Stages at which frames are captured; in and out by default.
    #[serde(default = "both_ways")]
    pub stages: Vec<Stage>,
    /// Only frames that are dropped.
    #[serde(default)]
    pub drops: bool,
    /// Most bytes of a frame that are captured.
    #[serde(default = "snap_len")]
    pub snap_len: u32,
    /// A program of classic BPF for Ethernet frames: code, jt, jf and k of each instruction. All frames if it is empty.
    #[serde(default)]
    pub filter: Vec<(u16, u8, u8, u32)>,
    /// The expression that the program was compiled from, for the file.
    #[serde(default)]
    pub expression: String,
    /// Frames after which it ends.
    #[serde(default)]
    pub packets: Option<u64>,
    /// Seconds after which it ends.
    #[serde(default)]
    pub seconds: Option<u64>,
}

impl CaptureRequest {
    /// All frames in and out of the port or uplink called `interface`.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            stages: both_ways(),
            drops: false,
            snap_len: SNAP_LEN,
            filter: Vec::new(),
            expression: String::new(),
            packets: None,
            seconds: None,
        }
    }
}

fn both_ways() -> Vec<Stage> {
    vec![Stage::In, Stage::Out]
}

const fn snap_len() -> u32 {
    SNAP_LEN
}

/// A capture that runs, or one of the last that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureStatus {
    /// Its number.
    pub id: u64,
    /// Name of the port or uplink.
    pub interface: String,
    /// User who has asked for it.
    pub uid: u32,
    /// It goes on.
    pub running: bool,
    /// Why it has ended; empty while it runs.
    pub end: String,
    /// Frames that were seen, lost ones included.
    pub seen: u64,
    /// Of these, lost: the ring was full.
    pub lost: u64,
    /// Accepted by the filter, and sent to who has asked.
    pub captured: u64,
}

/// All captures that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureList {
    /// By number.
    pub captures: Vec<CaptureStatus>,
}
