//! The accepted ranges of figures, and the verdicts by them.
//!
//! # Theory of operation
//!
//! A band names rows by a pattern, and one that meets no row is short and said so, so that a renamed row cannot lose
//! its verdict in silence.

//! A band has to be one that a figure can miss: [`Band::weakness`] knows the shapes of those that none does, or that chance meets.

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::report::{Judged, Row};

/// The accepted range of some rows.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// Names of rows; `*` stands for any text.
    pub rows: String,
    /// Least accepted ratio, or value where there is no baseline.
    pub low: Option<f64>,
    /// Greatest accepted one.
    pub high: Option<f64>,
    /// What the paper says.
    pub paper: Option<f64>,
    /// What of the headline has to lie in the range.
    #[serde(default)]
    pub judge: Judged,
}

/// Least bound that a figure which is never negative can miss in earnest.
const LEAST_LOW: f64 = 0.05;
/// A range whose ends are farther apart, as a ratio, is met by most outcomes.
const WIDEST: f64 = 4.0;
/// From this effect on, as a difference from 1, a paper's value obliges.
const EFFECT: f64 = 0.25;
/// Share of the paper's effect that a bound has to ask for, at least.
const SHARE: f64 = 0.25;

impl Band {
    /// Returns why nearly every outcome, or chance, meets the band; `None` if it can be missed.
    #[must_use]
    pub fn weakness(&self) -> Option<&'static str> {
        let of_centre = self.rows.ends_with(" median") || self.rows.ends_with(" mean");
        let is_point = self.judge == Judged::Point;
        match (self.low, self.high) {
            (None, None) => {
                self.paper.is_none().then_some("has neither a bound nor a paper's value")
            }
            (Some(low), Some(high)) if low > high => Some("is empty"),
            (Some(low), Some(high)) if low > 0.0 && high / low > WIDEST => {
                Some("is so wide that most outcomes meet it")
            }
            (Some(low), None) if low < LEAST_LOW => Some("asks for next to nothing"),
            _ if of_centre && is_point && [self.low, self.high].contains(&Some(1.0)) => {
                Some("is met by chance where there is no effect: judge = \"interval\"")
            }
            _ if is_point && self.asks_too_little() => {
                Some("asks for less than a quarter of the paper's effect")
            }
            _ => None,
        }
    }

    fn asks_too_little(&self) -> bool {
        let Some(paper) = self.paper else { return false };
        let effect = paper - 1.0;
        let bound = if effect > 0.0 { self.low } else { self.high };
        effect.abs() >= EFFECT && bound.is_some_and(|bound| (bound - 1.0) / effect < SHARE)
    }
}

/// Judges `rows` by `bands`. A band that meets no row gets one of its own, without a figure, which is short; the
/// error names all of them.
///
/// # Errors
/// When a band meets no row.
pub fn judge(rows: &mut Vec<Row>, bands: &[Band]) -> Result<()> {
    let mut missing = Vec::new();
    for band in bands {
        let judge = |row: &mut Row| row.judge_by(band);
        let met = rows.iter_mut().filter(|row| matches(&band.rows, &row.name)).map(judge);
        if met.count() == 0 {
            let mut row = Row::value(&band.rows, "", None);
            judge(&mut row);
            missing.push(row);
        }
    }
    let names: Vec<_> = missing.iter().map(|row| format!("{:?}", row.name)).collect();
    rows.append(&mut missing);
    ensure!(names.is_empty(), "band.rows = {}: no row has such a name", names.join(", "));
    Ok(())
}

/// Whether `pattern`, in which `*` stands for any text, describes all of `name`.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| matches(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    #[test]
    fn patterns() {
        assert!(matches("a/*/c", "a/b/c"));
        assert!(matches("*", ""));
        assert!(matches("*/vm-to-vm", "debian-6.1/vm-to-vm"));
        assert!(!matches("*/vm-to-vm", "debian-6.1/vm-to-vm retransmits"));
        assert!(!matches("a", "ab"));
    }

    #[test]
    fn bands_that_every_outcome_meets_are_known() {
        let weakness = |text: &str| {
            let band: Band = serde_json::from_str(text).unwrap();
            band.weakness().unwrap_or("none")
        };
        for (band, expected) in [
            (r#"{"rows": "a"}"#, "neither"),
            (r#"{"rows": "a", "low": 2, "high": 1}"#, "empty"),
            (r#"{"rows": "a", "low": 1, "high": 12, "paper": 12}"#, "so wide"),
            (r#"{"rows": "share", "low": 0.01}"#, "next to nothing"),
            (r#"{"rows": "a median", "low": 1}"#, "by chance"),
            (r#"{"rows": "a mean", "high": 1}"#, "by chance"),
            (r#"{"rows": "a", "low": 1, "paper": 12}"#, "less than a quarter"),
            (r#"{"rows": "a", "high": 0.95, "paper": 0.1}"#, "less than a quarter"),
        ] {
            assert!(weakness(band).contains(expected), "{band}: {}", weakness(band));
        }
        for band in [
            r#"{"rows": "a", "paper": 5}"#,
            r#"{"rows": "a median", "low": 1, "judge": "interval", "paper": 1.33}"#,
            r#"{"rows": "a median", "low": 3, "paper": 5}"#,
            r#"{"rows": "a median", "low": 0.97}"#,
            r#"{"rows": "failed", "high": 0}"#,
            r#"{"rows": "size", "low": 250, "high": 450, "paper": 340}"#,
        ] {
            assert_eq!(weakness(band), "none", "{band}");
        }
    }

    #[test]
    fn a_band_that_meets_no_row_is_an_error() {
        let band = |rows: &str| Band { rows: rows.into(), low: Some(1.0), ..Band::default() };
        let mut rows = vec![Row::value("a", "s", Some(0.5)), Row::value("b", "s", Some(0.5))];
        judge(&mut rows, &[band("a")]).unwrap();
        assert_eq!(rows[0].verdict, Some(Verdict::BelowTarget));
        assert_eq!(rows[1].verdict, None);
        let error = judge(&mut rows, &[band("c"), band("b")]).unwrap_err();
        assert!(error.to_string().contains("\"c\""));
        // The rest is judged all the same, and what is missing is no pass.
        let short: Vec<_> = rows
            .iter()
            .filter(|row| row.verdict == Some(Verdict::BelowTarget))
            .map(|row| &*row.name)
            .collect();
        assert_eq!(short, ["a", "b", "c"]);
    }
}
