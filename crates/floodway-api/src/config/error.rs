//! What is wrong with a configuration, in the words of its author.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Longest piece of the author's text that an error repeats, in characters.
const MAX_EXCERPT: usize = 60;

/// Why a configuration was not accepted. The message is one line and says how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The text is not a valid configuration.
    #[error("{}:{line}: {fault}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line that the fault is on, from 1.
        line: usize,
        /// Key, value, and what the value must be.
        fault: String,
    },
}

/// The first thing found wrong in the text.
#[derive(Debug)]
pub(super) struct Fault {
    span: Range<usize>,
    key: Option<String>,
    value: Option<String>,
    problem: String,
}

impl Fault {
    /// The text is wrong at `span`, and `problem` says what to do.
    pub(super) fn new(span: Range<usize>, problem: impl Into<String>) -> Self {
        Self { span, key: None, value: None, problem: problem.into() }
    }

    /// Names the key, by its full path.
    pub(super) fn at(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Repeats the value as it was written.
    pub(super) fn with_value(mut self, written: &str) -> Self {
        self.value = Some(excerpt(written));
        self
    }

    /// Line of `text` that the fault is on, from 1.
    pub(super) fn line(&self, text: &str) -> usize {
        let before = text.as_bytes().iter().take(self.span.start);
        1 + before.filter(|&&byte| byte == b'\n').count()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            f.write_str(key)?;
            if let Some(value) = &self.value {
                write!(f, " = {value}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.problem)
    }
}

/// The first line of `written`, cut to a length that fits a message.
pub(super) fn excerpt(written: &str) -> String {
    let line = written.lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(MAX_EXCERPT).collect();
    if short.len() < written.len() {
        short.push_str("...");
    }
    short
}
