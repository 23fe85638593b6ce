//! What runs measure.

use std::collections::BTreeMap;

use anyhow::Result;
use floodway_report::{About, Report, Row, World};
use serde::{Deserialize, Serialize};

/// What tells a run apart from the others of its experiment: `variant`, `bytes`, ... A sweep's table has a variant for each.
pub type Parameters = BTreeMap<String, String>;

/// One figure of a run: a row of a table in long format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Name of the experiment.
    pub experiment: String,
    /// The run's, and those of the figure alone.
    pub parameters: Parameters,
    /// Seed of the run.
    pub seed: u64,
    /// What was measured.
    pub metric: String,
    /// Of the value.
    pub unit: String,
    /// The figure.
    pub value: f64,
}

/// Collects what a run measures.
#[derive(Debug)]
pub(super) struct Recorder<'a> {
    experiment: &'a str,
    parameters: &'a Parameters,
    seed: u64,
    measurements: Vec<Measurement>,
}

impl<'a> Recorder<'a> {
    /// For a run of `experiment` with these parameters and this seed.
    pub(super) fn new(experiment: &'a str, parameters: &'a Parameters, seed: u64) -> Self {
        Self { experiment, parameters, seed, measurements: Vec::new() }
    }

    pub(super) fn add(&mut self, metric: &str, unit: &str, value: f64) {
        self.add_of(&[], metric, unit, value);
    }

    /// Adds a figure with parameters of its own.
    pub(super) fn add_of(&mut self, own: &[(&str, String)], metric: &str, unit: &str, value: f64) {
        let mut parameters = self.parameters.clone();
        parameters.extend(own.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        self.measurements.push(Measurement {
            experiment: self.experiment.to_owned(),
            parameters,
            seed: self.seed,
            metric: metric.into(),
            unit: unit.into(),
            value,
        });
    }

    /// What was measured, in the order of measuring.
    pub(super) fn into_measurements(self) -> Vec<Measurement> {
        self.measurements
    }
}

/// The report of an experiment of this name and seed, which ran with these parameters of its hosts.
pub(super) fn report_of(
    (experiment, seed): (&str, u64),
    parameters: &impl Serialize,
    rows: Vec<Row>,
    notes: Vec<String>,
) -> Result<Report> {
    let host = [
        ("simulator", env!("CARGO_PKG_VERSION").into()),
        ("parameters", serde_json::to_value(parameters)?),
    ];
    Ok(Report {
        experiment: experiment.to_owned(),
        world: World::Sim,
        seed,
        host: host.map(|(name, value)| (name.to_owned(), value)).into(),
        rows,
        notes,
        about: About::default(),
    })
}
