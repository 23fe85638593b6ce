//! The names of the algorithms.

use std::fmt;
use std::str::FromStr;

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// RFC 5681: fast recovery ends with the first ACK of new data.
    Reno,
    /// RFC 5681 with the fast recovery of RFC 6582.
    NewReno,
    /// Brakmo and Peterson, "TCP Vegas", 1995.
    Vegas,
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 8257.
    Dctcp,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Reno, Self::NewReno, Self::Vegas, Self::Cubic, Self::Dctcp];

    /// The name in configuration and output: lower case, one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::NewReno => "newreno",
            Self::Vegas => "vegas",
            Self::Cubic => "cubic",
            Self::Dctcp => "dctcp",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No algorithm has that name. Its message lists those there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAlgorithm(String);

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        write!(f, "unknown congestion control {:?}: it must be one of {names}", self.0)
    }
}

impl std::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known() {
        let error = "bbr".parse::<Algorithm>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown congestion control \"bbr\": \
             it must be one of reno, newreno, vegas, cubic, dctcp"
        );
    }
}
