//! Kernels of guests, as files name them.

use std::fmt;

use anyhow::anyhow;
use serde::Deserialize;

/// A kernel series of Debian 12.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Series {
    /// Debian 12's own kernel, 6.1.
    V6_1,
    /// 6.12, from Debian 12's security suite.
    V6_12,
}

impl Series {
    /// All series that the lab tests with.
    pub const ALL: [Self; 2] = [Self::V6_1, Self::V6_12];

    /// As the file names it.
    #[must_use]
    pub fn number(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.number())
    }
}

impl std::str::FromStr for Series {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Self::ALL
            .into_iter()
            .find(|series| series.number() == text)
            .ok_or_else(|| anyhow!("kernel `{text}`: unknown; use 6.1 or 6.12"))
    }
}

impl<'de> Deserialize<'de> for Series {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_read_as_they_print() {
        for series in Series::ALL {
            assert_eq!(series.to_string().parse::<Series>().unwrap(), series);
        }
        let error = "5.10".parse::<Series>().unwrap_err().to_string();
        assert!(error.contains("5.10") && error.contains("6.12"), "{error}");
    }
}
