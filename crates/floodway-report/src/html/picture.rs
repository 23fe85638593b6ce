//! A report's figures as one image, for texts that show it.

use super::answer::answer;
use super::figures;
use crate::chart::{self, Chart};
use crate::report::{Report, Samples};

/// An image, and what it shows in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The file.
    pub svg: String,
    /// For whoever does not see it: captions, and the answer to the experiment's question.
    pub alt: String,
}

impl Picture {
    /// The figures that a report asks for; none if it asks for none, or nothing is there to draw them from.
    #[must_use]
    pub fn of(report: &Report, samples: &[Samples]) -> Option<Self> {
        let mut charts = figures::all(report, samples);
        charts.retain(|chart| !chart.series.is_empty());
        let alt = alt(report, &charts);
        (!charts.is_empty()).then(|| Self { svg: chart::picture(&charts, &alt), alt })
    }
}

fn alt(report: &Report, charts: &[Chart]) -> String {
    let captions: Vec<_> = charts.iter().map(|chart| chart.title.as_str()).collect();
    let captions = format!("{}.", captions.join("; "));
    [Some(captions), answer(report)].into_iter().flatten().collect::<Vec<_>>().join(" ")
}
