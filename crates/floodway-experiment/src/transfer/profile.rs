//! Kinds of host and guest.

use serde::Deserialize;

/// A kind of host and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Profile {
    /// Like the papers': Reno, initial window 3, vCPUs in round robin with slices of 30 ms, which a VM that wakes
    /// up does not cut short.
    #[serde(rename = "2011")]
    Era2011,
    /// As Debian comes: CUBIC, initial window 10, the kernel's EEVDF with its default slice.
    #[serde(rename = "today")]
    Today,
}

impl Profile {
    /// As the file names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Era2011 => "2011",
            Self::Today => "today",
        }
    }

    /// By its kernel name.
    #[must_use]
    pub const fn congestion_control(self) -> &'static str {
        match self {
            Self::Era2011 => "reno",
            Self::Today => "cubic",
        }
    }

    /// In segments (RFC 3390 for 1460 bytes, and RFC 6928).
    #[must_use]
    pub const fn initial_window(self) -> u32 {
        match self {
            Self::Era2011 => 3,
            Self::Today => 10,
        }
    }
}
