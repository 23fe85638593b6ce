//! What brokers of two hosts say to each other.
//!
//! A connection begins with [`GREETING`] each way, which no version changes. Then each message is its length, four bytes, the highest first, and that many bytes of `postcard`; at most
//! [`MAX_MESSAGE`]. Behind [`Request::State`] come as many bytes as it says, which are no message.

use floodway_process::message::shorten;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::vm::Vm;

/// Version of the messages.
pub(crate) const VERSION: u32 = 1;
/// What a connection begins with; four bytes with the version follow, the highest first.
pub(crate) const GREETING: &[u8; 8] = b"floodway";
/// Longest message in bytes: the longest name of a network, or the longest reason, and what is around it.
pub(crate) const MAX_MESSAGE: usize = 512;

/// What the host says that a VM leaves. It asks, and the other one answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first one: does a port wait for this VM? Answered by `Expected` or `Refused`.
    Expect {
        /// Which VM.
        vm: Vm,
        /// Version of the format in which its connections come.
        flows: u32,
    },
    /// A sign of life. Answered by `StillThere`, `Taken` or `NotTaken`.
    StillThere,
    /// The VM has stopped, and this is what its connections are: so many bytes follow. Answered by `Taken` or `NotTaken`, as late as the VM starts.
    State {
        /// Connections that were online.
        online: u32,
        /// Bytes that follow.
        bytes: u64,
    },
    /// The VM stays where it is. Answered by `NotTaken`, or by `Taken` if it runs here already.
    Cancel,
}

/// What the host says that a VM moves to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// A port waits for the VM.
    Expected,
    /// None does.
    Refused {
        /// Why.
        reason: String,
    },
    /// Nothing has changed.
    StillThere,
    /// The VM runs here with its connections: what is owed is owed here.
    Taken {
        /// Connections that go on.
        carried: u32,
        /// Those of them that are online.
        online: u32,
    },
    /// Nothing of what was sent was used, and nothing will be.
    NotTaken {
        /// Why.
        reason: String,
    },
}

/// A message that may come from the other host.
pub(crate) trait Bounded: Serialize + DeserializeOwned {
    /// The same, in words that can be shown to operators.
    fn clean(self) -> Self;
}

impl Bounded for Request {
    fn clean(self) -> Self {
        self
    }
}

impl Bounded for Answer {
    fn clean(self) -> Self {
        match self {
            Self::Refused { reason } => Self::Refused { reason: printable(&reason) },
            Self::NotTaken { reason } => Self::NotTaken { reason: printable(&reason) },
            other => other,
        }
    }
}

/// The start of what another host says, without anything that a terminal would act on.
fn printable(reason: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    shorten(&reason.chars().map(plain).collect::<String>())
}

/// What goes over the wire for `message`, its length first. `None` if it is longer than any.
pub(crate) fn encode<M: Serialize>(message: &M) -> Option<Vec<u8>> {
    let body = postcard::to_allocvec(message).ok().filter(|body| body.len() <= MAX_MESSAGE)?;
    let length = u32::try_from(body.len()).ok()?.to_be_bytes();
    Some([length.as_slice(), &body].concat())
}

/// The message that is all of `body`.
pub(crate) fn decode<M: Bounded>(body: &[u8]) -> Option<M> {
    let (message, rest) = postcard::take_from_bytes::<M>(body).ok()?;
    rest.is_empty().then(|| message.clean())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_messages_fit_and_what_is_longer_is_none() {
        let longest = Answer::Refused { reason: "x".repeat(256) };
        let bytes = encode(&longest).unwrap();
        assert_eq!(decode::<Answer>(&bytes[4..]), Some(longest));
        assert_eq!(encode(&Answer::Refused { reason: "x".repeat(MAX_MESSAGE) }), None);
    }

    #[test]
    fn a_message_that_is_cut_short_or_has_something_behind_it_is_none() {
        let vm = Vm { network: "red".to_owned(), mac: [2, 0, 0, 0, 0, 1] };
        assert_eq!(vm.to_string(), "02:00:00:00:00:01 in network \"red\"");
        let bytes = encode(&Request::Expect { vm, flows: 7 }).unwrap();
        for end in 4..bytes.len() {
            assert_eq!(decode::<Request>(&bytes[4..end]), None);
        }
        assert!(decode::<Request>(&bytes[4..]).is_some());
        assert_eq!(decode::<Request>(&[&bytes[4..], &[0]].concat()), None);
    }

    #[test]
    fn what_another_host_says_moves_no_cursor() {
        let reason = "\u{1b}[2Jlong".repeat(60);
        let bytes = postcard::to_allocvec(&Answer::NotTaken { reason }).unwrap();
        let Some(Answer::NotTaken { reason }) = decode(&bytes) else { panic!("no answer") };
        assert!(reason.len() <= 256 && reason.starts_with("?[2Jlong"), "{reason}");
    }
}
