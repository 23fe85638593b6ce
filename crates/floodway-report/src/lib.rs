#![doc = include_str!("../README.md")]
//!
//! | layer | modules |
//! |---|---|
//! | published runs | [`results`] |
//! | files and pages | [`write()`], [`html`], [`table`] |
//! | plots | [`chart`] |
//! | verdicts | [`judge`](mod@judge), [`headlines`] |
//! | figures | [`report`], [`about`], [`band`], [`pattern`], [`host`], [`provenance`] |
//! | samples | [`stats`] |
//!
//! [`progress`] is beside them: what a run prints before it has anything to report.

use std::path::Path;

use anyhow::Result;

pub mod about;
pub mod band;
pub mod chart;
pub mod headlines;
pub mod host;
pub mod html;
pub mod judge;
pub mod pattern;
pub mod progress;
pub mod provenance;
pub mod report;
pub mod results;
pub mod stats;
pub mod table;

pub use about::About;
pub use band::{Band, Judged};
pub use judge::judge;
pub use provenance::Provenance;
pub use report::{Bar, Drawn, Measured, Report, Row, Samples, Verdict, World};

/// Writes report, samples, provenance and page into `dir`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(report: &Report, samples: &[Samples], run: &Provenance, dir: &Path) -> Result<()> {
    report.write(dir)?;
    report::write_samples(dir, samples)?;
    run.write(dir)?;
    html::write(report, samples, Some(run), dir)
}
