//! Numbers of events.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The number of an event: which history it is of, and its place there. A later event has a larger one, unless the host's clock was set back between two
/// histories. As text both are joined by `-`, as in `1763954272123-17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    /// When the history began, in milliseconds since 1970: with the process that moves frames.
    pub history: u64,
    /// Its place, counted from one.
    pub number: u64,
}

/// A text is no number of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no number of an event: it must be the id of an earlier one, like 1763954272123-17"
)]
pub struct BadEventId(String);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.history, self.number)
    }
}

impl FromStr for EventId {
    type Err = BadEventId;

    fn from_str(text: &str) -> Result<Self, BadEventId> {
        let parse = |text: &str| {
            let (history, number) = text.split_once('-')?;
            let number_of = |text: &str| {
                let digits = text.bytes().all(|byte| byte.is_ascii_digit());
                digits.then(|| text.parse().ok()).flatten()
            };
            Some(Self { history: number_of(history)?, number: number_of(number)? })
        };
        parse(text).ok_or_else(|| BadEventId(text.chars().take(64).collect()))
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for EventId {
    fn schema_name() -> Cow<'static, str> {
        "EventId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]+-[0-9]+$" })
    }
}
