//! The accepted ranges of figures.
//!
//! # Theory of operation
//!
//! A band names rows by a pattern, and accepts a range of their headlines or of these' intervals ([`Judged`]). It has to be one that a figure can miss: [`Band::weakness`] knows the shapes of those that none does, or that chance meets.

use serde::{Deserialize, Serialize};

use crate::pattern;

/// What of a headline a band speaks of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Judged {
    /// The figure itself.
    #[default]
    Point,
    /// Its 95 % interval.
    Interval,
}

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

/// Whether `pattern`, in which `*` stands for any text, describes all of `name`.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    pattern::fit(pattern, name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
