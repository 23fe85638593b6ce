//! The verdicts of rows by bands.
//!
//! # Theory of operation
//!
//! A band that meets no row is below target and said so, so that a renamed row cannot lose its verdict in silence.

use anyhow::{Result, ensure};

use crate::band::{Band, matches};
use crate::report::Row;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

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
