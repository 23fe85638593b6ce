//! What an experiment asks, what its paper says, and which figures of a page answer it.
//!
//! # Theory of operation
//! An experiment's file says it in words and patterns, since names of rows are all that both worlds have in common. A report carries it along, so that
//! its page can be made again from its files alone.
//!
//! A [`Figure`] has the form of the paper's one: its rows are those whose names fit [`Figure::rows`], and what `{panel}`, `{x}` and
//! `{series}` stand for in a name is where the row is drawn ([`crate::pattern`]). What the paper says beyond the bands is in [`PaperValue`]s.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an experiment asks, and how a page shows the answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct About {
    /// One line that says what is measured.
    pub title: String,
    /// What the experiment asks.
    pub question: String,
    /// The sentence that answers it, with `{}` for the first headline and its interval.
    pub answer: String,
    /// What the paper says, and where; or that it says nothing.
    pub paper: String,
    /// What is judged, and why so.
    pub judged: String,
    /// Patterns of the names of the rows that answer the question, the first one first.
    pub headline: Vec<String>,
    /// What is drawn first, in the order of the page.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figure: Vec<Figure>,
    /// Labels in names of rows, and what they stand for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, String>,
}

/// A figure of a page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Its caption.
    pub title: String,
    /// How values are drawn.
    #[serde(default)]
    pub form: Form,
    /// Names of rows, or of samples for distributions and lines over time. See [`crate::pattern`].
    pub rows: String,
    /// What of a comparison is drawn.
    #[serde(default)]
    pub show: Show,
    /// What is along the horizontal axis.
    #[serde(default)]
    pub x: String,
    /// What is along the vertical axis, with its unit.
    #[serde(default)]
    pub y: String,
    /// Only rows of this unit; of all if empty.
    #[serde(default)]
    pub unit: String,
    /// The vertical axis is logarithmic; that of values for a distribution.
    #[serde(default)]
    pub log: bool,
    /// Values of the paper's figure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paper: Vec<PaperValue>,
}

/// How values are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Bars in groups.
    #[default]
    Bars,
    /// Lines through points, at places of equal distance.
    Lines,
    /// Cumulative distributions of samples.
    Distribution,
    /// Samples one after the other.
    Time,
}

/// What of a comparison is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Show {
    /// The headline: the ratio of a comparison, or the value.
    #[default]
    Headline,
    /// The value, and the baseline beside it.
    Values,
}

/// A value of the paper, at its place in a figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperValue {
    /// In which panel; all panels if empty.
    #[serde(default)]
    pub panel: String,
    /// At which label; all labels if empty.
    #[serde(default)]
    pub x: String,
    /// Beside which series; in the middle if empty.
    #[serde(default)]
    pub series: String,
    /// The value, or the ends of the range that the paper gives.
    pub value: Vec<f64>,
}

impl About {
    /// Returns `true` if it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
