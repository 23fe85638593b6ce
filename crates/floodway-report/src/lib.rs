#![doc = include_str!("../README.md")]
//!
//! | layer | modules |
//! |---|---|
//! | files and pages | [`write()`], [`html`], [`table`] |
//! | verdicts | [`band`] |
//! | figures | [`report`], [`host`] |
//! | samples | [`stats`] |
//!
//! [`progress`] is beside them: what a run prints before it has anything to report.

use std::path::Path;

use anyhow::Result;

pub mod band;
pub mod host;
pub mod html;
pub mod progress;
pub mod report;
pub mod stats;
pub mod table;

pub use band::{Band, judge};
pub use report::{Bar, Drawn, Measured, Report, Row, Samples, Verdict, World};

/// Writes report, samples and page into `dir`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(report: &Report, samples: &[Samples], dir: &Path) -> Result<()> {
    report.write(dir)?;
    report::write_samples(dir, samples)?;
    html::write(report, samples, dir)
}
