//! The keys of one section on their way into a file, and the units in which numbers are written.

use std::time::Duration;

use toml::{Table, Value};

/// The keys of a section.
#[derive(Debug, Default)]
pub(super) struct Keys(Table);

impl Keys {
    /// The section as TOML has it.
    pub(super) fn into_table(self) -> Table {
        self.0
    }

    /// Sets a key.
    pub(super) fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// Sets a key, unless it has its default.
    pub(super) fn changed<V: Into<Value>>(self, key: &str, value: V, default: V) -> Self {
        let value = value.into();
        if value == default.into() { self } else { self.set(key, value) }
    }

    /// Sets a key that has a value.
    pub(super) fn given(self, key: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.set(key, value),
            None => self,
        }
    }

    /// Sets a section, unless it is empty.
    pub(super) fn section(self, key: &str, section: Self) -> Self {
        if section.0.is_empty() { self } else { self.set(key, Value::Table(section.0)) }
    }

    /// Sets sections of one name, if there are any.
    pub(super) fn sections(self, key: &str, sections: impl Iterator<Item = Self>) -> Self {
        let sections: Vec<_> = sections.map(|section| Value::Table(section.0)).collect();
        if sections.is_empty() { self } else { self.set(key, sections) }
    }
}

/// A number as TOML has it. What is larger is beyond the range of every key.
pub(super) fn integer(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Whole milliseconds.
pub(super) fn millis(time: Duration) -> i64 {
    integer(time.as_millis())
}

/// Whole microseconds.
pub(super) fn micros(time: Duration) -> i64 {
    integer(time.as_micros())
}
