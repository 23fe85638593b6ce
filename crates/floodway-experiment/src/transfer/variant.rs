//! What is compared.

use serde::Deserialize;

/// One side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// The switch, with offload off, and an unmodified guest.
    Vanilla,
    /// Linux bridge and tap.
    Bridge,
    /// Transmit offload.
    Transmit,
    /// Receive offload.
    Receive,
    /// Transmit and receive offload.
    Offload,
    /// Transmit offload without a buffer policy.
    #[serde(rename = "none")]
    NoPolicy,
    /// Transmit offload, equal shares of the buffer.
    Fair,
    /// Transmit offload, larger shares for flows with short round trips.
    Prioritised,
    /// Transmit offload by early acknowledgement, and an unmodified guest.
    Agentless,
    /// Transmit offload by grants or early acknowledgement, and an unmodified guest.
    Auto,
}

impl Variant {
    /// As the file names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Bridge => "bridge",
            Self::Transmit => "transmit",
            Self::Receive => "receive",
            Self::Offload => "offload",
            Self::NoPolicy => "none",
            Self::Fair => "fair",
            Self::Prioritised => "prioritised",
            Self::Agentless => "agentless",
            Self::Auto => "auto",
        }
    }

    /// What it is, for readers of a report.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Vanilla => "the switch with offload off, the guest's own congestion control",
            Self::Bridge => "Linux bridge and tap, the guest's own congestion control",
            Self::Transmit => "transmit offload, with the guest module",
            Self::Receive => "receive offload, the guest's own congestion control",
            Self::Offload => "transmit and receive offload, with the guest module",
            Self::NoPolicy => "transmit offload without a policy for its buffer",
            Self::Fair => "transmit offload, equal shares of its buffer",
            Self::Prioritised => {
                "transmit offload, larger shares of its buffer for short round trips"
            }
            Self::Agentless => "transmit offload by early acknowledgement, an unmodified guest",
            Self::Auto => {
                "transmit offload by grants or early acknowledgement, an unmodified guest"
            }
        }
    }

    /// Returns `true` if the switch sends for the guest.
    #[must_use]
    pub fn transmits(self) -> bool {
        !matches!(self, Self::Vanilla | Self::Bridge | Self::Receive)
    }

    /// Returns `true` if the guest has the module, which lets it send as far as it is granted.
    #[must_use]
    pub fn needs_module(self) -> bool {
        self.transmits() && !matches!(self, Self::Agentless | Self::Auto)
    }

    /// Returns `true` if the switch does anything for the guest.
    #[must_use]
    pub fn offloads(self) -> bool {
        self.transmits() || self == Self::Receive
    }
}
