//! The list of algorithms: one line for each gives it its name, its place in a flow's state, and the dispatch to it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Ack, CongestionControl, Cubic, Dctcp, NewReno, PartialAck, Reno, Vegas, Window};

/// For each algorithm its documentation, its type and its name in configuration and output: lower case, one word.
macro_rules! algorithms {
    ($($(#[$attribute:meta])* $algorithm:ident = $name:literal,)+) => {
        /// A congestion control algorithm.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $($(#[$attribute])* $algorithm,)+
        }

        impl Algorithm {
            /// All of them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$algorithm),+];

            /// The name in configuration and output: lower case, one word.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$algorithm => $name,)+
                }
            }

            /// Returns `true` if it counts marked bytes: see [`CongestionControl::counts_marks`].
            #[must_use]
            pub fn counts_marks(self) -> bool {
                match self {
                    $(Self::$algorithm => $algorithm::counts_marks(),)+
                }
            }
        }

        /// What the algorithm of a flow remembers.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub(super) enum State {
            $($algorithm($algorithm),)+
        }

        impl State {
            pub fn new(algorithm: Algorithm, hystart: bool) -> Self {
                match algorithm {
                    $(Algorithm::$algorithm => Self::$algorithm($algorithm::start(hystart)),)+
                }
            }

            pub const fn algorithm(&self) -> Algorithm {
                match self {
                    $(Self::$algorithm(_) => Algorithm::$algorithm,)+
                }
            }

            pub fn partial_ack(&self) -> PartialAck {
                match self {
                    $(Self::$algorithm(algorithm) => algorithm.partial_ack(),)+
                }
            }

            pub fn marked_part(&self) -> Option<u32> {
                match self {
                    $(Self::$algorithm(algorithm) => algorithm.marked_part(),)+
                }
            }

            #[inline]
            pub fn on_ack(&mut self, ack: &Ack, w: &mut Window) {
                match self {
                    $(Self::$algorithm(algorithm) => algorithm.on_ack(ack, w),)+
                }
            }

            pub fn is_possible(&self) -> bool {
                match self {
                    $(Self::$algorithm(algorithm) => algorithm.is_possible(),)+
                }
            }

            /// For what is called less often than [`on_ack`](Self::on_ack).
            pub fn algorithm_mut(&mut self) -> &mut dyn CongestionControl {
                match self {
                    $(Self::$algorithm(algorithm) => algorithm,)+
                }
            }
        }
    };
}

algorithms! {
    /// RFC 5681: fast recovery ends with the first ACK of new data.
    Reno = "reno",
    /// RFC 5681 with the fast recovery of RFC 6582.
    NewReno = "newreno",
    /// Brakmo and Peterson, "TCP Vegas", 1995.
    Vegas = "vegas",
    /// RFC 9438.
    #[default]
    Cubic = "cubic",
    /// RFC 8257.
    Dctcp = "dctcp",
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
