//! Events: what an operator may want to hear of as it happens, and programs that act on it.
//!
//! An event is a line of the switch's log with a type: the log has the same text, the same level and the same number ([`EventId`]). What kinds there are is
//! [`EventKind`].

mod id;
mod kind;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use id::{BadEventId, EventId};
pub use kind::{Direction, EventKind};

/// Events that a switch keeps: whoever asks later, or reads more slowly than they come, has lost the older ones.
pub const HISTORY: usize = 1024;
/// Readers that can follow events at one time.
pub const MAX_READERS: usize = 64;

/// How much an event matters; the level of its line in the log.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Info,
    /// Something does not work, or somebody does what it may not.
    Warning,
    /// Many are concerned, or something is lost.
    Error,
}

impl Severity {
    /// Its name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number.
    pub id: EventId,
    /// When, in UTC, as RFC 3339 says.
    pub time: String,
    /// How much it matters.
    pub severity: Severity,
    /// What happened; its name is the key `event`.
    #[serde(flatten)]
    pub kind: EventKind,
    /// The same in words, as in the log.
    pub text: String,
    /// Events of the same port that were left out before this one: its guest or front-end has caused too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suppressed: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Which events are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    /// Only those of this port or uplink.
    pub port: Option<String>,
    /// Only those after this one; all that are kept by default.
    pub since: Option<EventId>,
    /// Go on with those that come; by default, yes.
    pub follow: Option<bool>,
}
