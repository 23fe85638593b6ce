//! Kernels of guests, as files name them.

use std::fmt;

use serde::Deserialize;

/// A kernel series of Debian 12.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub enum Series {
    /// Debian 12's own kernel, 6.1.
    #[serde(rename = "6.1")]
    V6_1,
    /// 6.12, from Debian 12's security suite.
    #[serde(rename = "6.12")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_read_as_they_print() {
        let read = |text: &str| Series::deserialize(toml::Value::from(text));
        for series in Series::ALL {
            assert_eq!(read(&series.to_string()).unwrap(), series);
        }
        let error = read("5.10").unwrap_err().to_string();
        assert!(error.contains("5.10") && error.contains("6.12"), "{error}");
    }
}
