//! Figures of the last minutes, and how they are written.

use std::collections::VecDeque;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

/// Samples that are kept: three minutes at one a second.
pub const KEPT: usize = 180;

/// What is known of something over the last minutes, for pages that show it.
pub trait History {
    /// What is known now, with the last samples, at most `last`. With `reset` they take the place of those that a page has.
    fn document(&self, reset: bool, last: usize) -> impl Serialize;

    /// All of it.
    fn all(&self) -> impl Serialize {
        self.document(true, KEPT)
    }

    /// What was noted last.
    fn last(&self) -> impl Serialize {
        self.document(false, 1)
    }
}

/// Appends `value` to a line of at most [`KEPT`].
pub fn push<T>(line: &mut VecDeque<T>, value: T) {
    if line.len() == KEPT {
        line.pop_front();
    }
    line.push_back(value);
}

/// Several figures that are sampled together. What is not known is not a number.
#[derive(Clone, Debug)]
pub struct Series<const N: usize>([VecDeque<f32>; N]);

impl<const N: usize> Default for Series<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| VecDeque::new()))
    }
}

impl<const N: usize> Series<N> {
    /// Appends a sample.
    pub fn push(&mut self, sample: [Option<f64>; N]) {
        for (line, value) in self.0.iter_mut().zip(sample) {
            push(line, value.map_or(f32::NAN, |value| value as f32));
        }
    }

    /// The last samples, at most `last`, under these names.
    #[must_use]
    pub const fn last<'a>(&'a self, names: &'a [&'static str; N], last: usize) -> Columns<'a, N> {
        Columns { series: self, names, last }
    }
}

/// Some figures, each as an array under its name.
#[derive(Debug)]
pub struct Columns<'a, const N: usize> {
    series: &'a Series<N>,
    names: &'a [&'static str; N],
    last: usize,
}

impl<const N: usize> Serialize for Columns<'_, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(N))?;
        for (name, line) in self.names.iter().zip(&self.series.0) {
            map.serialize_entry(name, &Line(line, self.last))?;
        }
        map.end()
    }
}

/// The last values of a figure.
struct Line<'a>(&'a VecDeque<f32>, usize);

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(line, last) = self;
        let mut array = serializer.serialize_seq(None)?;
        for &value in line.range(line.len().saturating_sub(*last)..) {
            // Whole numbers are written without a fraction: most are bits or bytes.
            if value.fract() == 0.0 && value.abs() < 1e15 {
                array.serialize_element(&(value as i64))?;
            } else {
                array.serialize_element(&value)?;
            }
        }
        array.end()
    }
}

/// The last `last` of a line.
pub fn tail<T: Clone>(line: &VecDeque<T>, last: usize) -> Vec<T> {
    line.range(line.len().saturating_sub(last)..).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_samples_are_arrays_under_their_names() {
        let mut series = Series::<2>::default();
        series.push([Some(1.0), None]);
        series.push([Some(0.25), Some(2e9)]);
        let json = |last| serde_json::to_string(&series.last(&["a", "b"], last)).unwrap();
        assert_eq!(json(9), r#"{"a":[1,0.25],"b":[null,2000000000]}"#);
        assert_eq!(json(1), r#"{"a":[0.25],"b":[2000000000]}"#);
    }

    #[test]
    fn no_more_is_kept_than_is_shown() {
        let mut series = Series::<1>::default();
        (0..1000).for_each(|n| series.push([Some(f64::from(n))]));
        assert_eq!((series.0[0].len(), series.0[0][0]), (KEPT, 820.0));
        assert_eq!(tail(&series.0[0], 1), [999.0]);
    }
}
