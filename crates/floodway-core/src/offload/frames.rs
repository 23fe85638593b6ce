//! Frames of a flow on their way to another process: behind the flow's [state](super::carried), one after the other.

use serde::{Deserialize, Serialize};

use super::journal::{Creditor, Image, Retained};
use crate::seq::Seq;
use crate::tcp::Segment;

/// Longest frame: a GSO packet with its headers is shorter.
const MAX_FRAME: u32 = 128 << 10;

/// A record is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the state of a connection contradicts itself")
    }
}

impl std::error::Error for Refused {}

/// What a state says of one of its frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Framed {
    bytes: u32,
    about: u64,
}

/// Frames that are written.
pub(super) struct Frames<'a, B> {
    image: &'a dyn Fn(&B) -> Image<'_>,
    bytes: Vec<u8>,
}

impl<'a, B> Frames<'a, B> {
    /// None yet; `image` makes bytes of them.
    pub fn new(image: &'a dyn Fn(&B) -> Image<'_>) -> Self {
        Self { image, bytes: Vec::new() }
    }

    /// Adds a frame; returns what the state has to say of it.
    pub fn add(&mut self, frame: &B) -> Framed {
        let Image { about, bytes } = (self.image)(frame);
        self.bytes.extend_from_slice(bytes);
        Framed { bytes: bytes.len() as u32, about }
    }

    /// The bytes of all of them.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Makes a frame, and what its headers say, of what was written.
pub(super) type Revive<'a, B> = dyn FnMut(Creditor, &Retained) -> Option<(B, Segment)> + 'a;

/// Frames that are read.
pub(super) struct Revived<'a, B> {
    rest: &'a [u8],
    /// In which direction the next ones go.
    pub creditor: Creditor,
    /// Where the first one for the guest begins.
    pub kept_from: Option<Seq>,
    revive: &'a mut Revive<'a, B>,
}

impl<'a, B> Revived<'a, B> {
    /// Those in `bytes`, for the peer first.
    pub fn new(bytes: &'a [u8], revive: &'a mut Revive<'a, B>) -> Self {
        Self { rest: bytes, creditor: Creditor::Peer, kept_from: None, revive }
    }

    /// The next frame.
    ///
    /// # Errors
    /// It is not there, or is none.
    pub fn take(&mut self, framed: &Framed) -> Result<(B, Segment), Refused> {
        let len = Some(framed.bytes).filter(|&len| len <= MAX_FRAME).ok_or(Refused)? as usize;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Refused)?;
        self.rest = rest;
        let retained = Retained { seq: Seq(0), len: 0, about: framed.about, bytes: bytes.to_vec() };
        let (frame, segment) = (self.revive)(self.creditor, &retained).ok_or(Refused)?;
        if self.creditor == Creditor::Guest {
            self.kept_from.get_or_insert(segment.seq);
        }
        Ok((frame, segment))
    }

    /// Returns `true` if no byte is left.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }
}
