//! What is compared, and what is accepted.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use floodway_report::stats;

use super::scenario::Scenario;
use super::shapes::{self, Tree};

/// Senders of a dumbbell.
const PAIRS: u32 = 100;
/// What each sends in the bulk case.
const BULK_BYTES: u64 = 10_000_000;

/// A scenario by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// 100 flows of 10 MB through one bottleneck.
    DumbbellBulk,
    /// Heavy-tailed transfers on new connections between 100 pairs, 50 % load.
    DumbbellMixed,
    /// The small-flows paper's fat tree: 128 hosts, 16 256 connections that stay open.
    FatTree,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::DumbbellBulk, Self::DumbbellMixed, Self::FatTree];

    /// The scenario; `seconds` of virtual time of the fat tree.
    #[must_use]
    pub fn scenario(self, seconds: f64, seed: u64) -> Scenario {
        match self {
            Self::DumbbellBulk => shapes::dumbbell_bulk(PAIRS, BULK_BYTES, seed),
            Self::DumbbellMixed => shapes::dumbbell_mixed(PAIRS, Duration::from_secs(10), seed),
            Self::FatTree => shapes::fat_tree(&Tree::PAPER, Duration::from_secs_f64(seconds), seed),
        }
    }

    /// How many times faster than ns-3 we have to be.
    #[must_use]
    pub const fn least_speed(self) -> f64 {
        match self {
            Self::DumbbellBulk | Self::DumbbellMixed => 20.0,
            Self::FatTree => 40.0,
        }
    }

    /// Classes of transfers: prefix of the rows, sizes in bytes.
    #[must_use]
    pub fn classes(self) -> Vec<(&'static str, RangeInclusive<u64>)> {
        match self {
            Self::DumbbellBulk | Self::DumbbellMixed => vec![("", 0..=u64::MAX)],
            Self::FatTree => vec![
                ("all ", 0..=u64::MAX),
                ("to 10 KB ", 0..=10_000),
                ("10 to 100 KB ", 10_001..=100_000),
            ],
        }
    }

    /// Figures of completion times, and how far off each may be.
    #[must_use]
    pub fn figures(self) -> Vec<(&'static str, Figure, Option<f64>)> {
        match self {
            Self::DumbbellBulk | Self::DumbbellMixed => vec![
                ("mean", Figure::Mean, Some(0.10)),
                ("p50", Figure::Quantile(0.5), None),
                ("p99", Figure::Quantile(0.99), None),
            ],
            Self::FatTree => vec![
                ("p50", Figure::Quantile(0.5), Some(0.15)),
                ("p90", Figure::Quantile(0.9), Some(0.15)),
                ("p99", Figure::Quantile(0.99), Some(0.15)),
                ("p99.9", Figure::Quantile(0.999), None),
            ],
        }
    }
}

/// A figure of completion times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// The mean.
    Mean,
    /// A quantile, 0 to 1.
    Quantile(f64),
}

impl Figure {
    /// Its value; none without times.
    pub fn of(self, times: &[f64]) -> Option<f64> {
        match self {
            Self::Mean => stats::mean(times),
            Self::Quantile(q) => stats::quantile(times, q),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DumbbellBulk => "dumbbell-bulk",
            Self::DumbbellMixed => "dumbbell-mixed",
            Self::FatTree => "fat-tree",
        })
    }
}
