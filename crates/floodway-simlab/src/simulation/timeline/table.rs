//! What the transfers of a cell spend their time with, as a table.

use std::collections::BTreeMap;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use floodway_report::stats;
use serde::Serialize;

use super::path::Spent;
use super::play::{Played, ends};
use super::{PHASES, phases};

/// Means over the transfers of a variant, in ms.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    /// Transfers.
    pub transfers: usize,
    /// Median time of a whole transfer.
    pub whole_median_ms: f64,
    /// Mean time by what it is spent with, in each of the phases.
    pub mean_ms: BTreeMap<Spent, [f64; PHASES.len()]>,
}

impl Account {
    /// The account of some transfers.
    pub fn of(all: &[&Played]) -> Self {
        let mut mean_ms = BTreeMap::<Spent, [f64; PHASES.len()]>::new();
        let mut whole = Vec::new();
        for played in all {
            let [begun, ended] = ends(&played.transfer);
            whole.push(ms(ended.since(begun)));
            for (n, [from, to]) in phases(&played.transfer).into_iter().enumerate() {
                for stretch in &played.path {
                    let (from, to) = (from.max(stretch.from), to.min(stretch.to));
                    let means = mean_ms.entry(stretch.spent).or_default();
                    means[n] += ms(to.since(from)) / all.len() as f64;
                }
            }
        }
        let whole_median_ms = stats::median(&whole).unwrap_or_default();
        Self { transfers: all.len(), whole_median_ms, mean_ms }
    }

    /// It as text.
    pub fn render(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        let heads = ["mean ms"].into_iter().chain(PHASES).chain(["all"]);
        table.set_header(heads);
        let mut sum = [0.0; PHASES.len()];
        for (spent, means) in &self.mean_ms {
            table.add_row(row(spent.name(), means));
            sum.iter_mut().zip(means).for_each(|(sum, mean)| *sum += mean);
        }
        table.add_row(row("all", &sum));
        table.to_string()
    }
}

fn row(name: &str, means: &[f64]) -> Vec<Cell> {
    let all = means.iter().sum::<f64>();
    let number = |ms: &f64| Cell::new(format!("{ms:.2}")).set_alignment(CellAlignment::Right);
    [Cell::new(name)].into_iter().chain(means.iter().chain([&all]).map(number)).collect()
}

pub fn ms(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
