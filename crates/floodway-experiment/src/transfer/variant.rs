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
