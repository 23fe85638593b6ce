//! Front-ends of a port that were cut off.

use std::collections::BTreeMap;

use crate::memory::sigbus::Kind;

/// Why a front-end was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Memory that it shares has gone.
    Memory(Kind),
    /// Data planes crashed in the turns of its port, or over its messages.
    Crash,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 3] =
        [Self::Memory(Kind::GuestMemory), Self::Memory(Kind::DirtyLog), Self::Crash];

    /// Its name in status and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Memory(kind) => kind.label(),
            Self::Crash => "crash",
        }
    }
}

/// Front-ends that were cut off.
#[derive(Debug, Default)]
pub struct Quarantine {
    /// Why the last one was, if it was, until another one comes.
    now: Option<(Cause, String)>,
    counts: BTreeMap<&'static str, u64>,
}

impl Quarantine {
    /// One was cut off.
    pub fn begin(&mut self, cause: Cause, reason: String) {
        *self.counts.entry(cause.label()).or_default() += 1;
        self.now = Some((cause, reason));
    }

    /// Another one has come.
    pub fn end(&mut self) {
        self.now = None;
    }

    /// Why the last one was cut off, if it was, until another one comes.
    #[must_use]
    pub fn reason(&self) -> Option<(Cause, &str)> {
        self.now.as_ref().map(|(cause, reason)| (*cause, &**reason))
    }

    /// How many were cut off, for each cause.
    pub fn counts(&self) -> impl Iterator<Item = (Cause, u64)> {
        Cause::ALL
            .into_iter()
            .map(|cause| (cause, self.counts.get(cause.label()).copied().unwrap_or(0)))
    }
}
