//! Axes: where a value is, and which values are written beside it.

/// An axis from `from` to `to`, which are values at pixels 0 and `length`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    from: f64,
    to: f64,
    log: bool,
}

/// Ticks that a linear axis has about.
const TICKS: f64 = 4.0;
/// A logarithmic axis that has fewer decades also has ticks at 2 and 5.
const FEW_DECADES: f64 = 2.0;
/// One that has less than a decade has more.
const ONE_DECADE: f64 = 0.8;
/// A logarithmic axis reaches over so much at least, as a ratio of its ends.
const LEAST_RANGE: f64 = 2.5;

impl Scale {
    /// An axis for `values`. A linear one begins at 0 unless values are negative, or `tight`.
    pub fn around(values: impl Iterator<Item = f64>, log: bool, tight: bool) -> Self {
        let fits = |value: &f64| value.is_finite() && (!log || *value > 0.0);
        let (low, high) = values
            .filter(fits)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        match (low.is_finite(), log) {
            (false, true) => Self { from: 0.1, to: 1.0, log },
            (false, false) => Self { from: 0.0, to: 1.0, log },
            (true, true) => {
                let room = (LEAST_RANGE / (high / low)).sqrt().max(1.3);
                Self { from: low / room, to: high * room, log }
            }
            (true, false) => {
                let from = if tight { low } else { low.min(0.0) };
                let room = if high > from { (high - from) * 0.06 } else { 1.0 };
                Self { from, to: high + room, log }
            }
        }
    }

    /// An axis from one value to another.
    pub const fn fixed(from: f64, to: f64) -> Self {
        Self { from, to, log: false }
    }

    /// Where a value is, as a share of the axis; inside it.
    pub fn share(self, value: f64) -> f64 {
        let of = |value: f64| if self.log { value.max(f64::MIN_POSITIVE).ln() } else { value };
        let share = (of(value) - of(self.from)) / (of(self.to) - of(self.from));
        share.clamp(0.0, 1.0)
    }

    /// The values that are written beside the axis.
    pub fn ticks(self) -> Vec<f64> {
        if self.log { self.log_ticks() } else { self.linear_ticks() }
    }

    fn linear_ticks(self) -> Vec<f64> {
        let raw = (self.to - self.from) / TICKS;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|&step| step >= raw);
        let step = step.unwrap_or(raw);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }

    fn log_ticks(self) -> Vec<f64> {
        let (low, high) = (self.from.log10(), self.to.log10());
        let digits: &[f64] = match high - low {
            decades if decades < ONE_DECADE => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
            decades if decades < FEW_DECADES => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let decades = low.floor() as i32..=high.ceil() as i32;
        let all = decades.flat_map(|decade| digits.iter().map(move |digit| shift(*digit, decade)));
        all.filter(|&value| value >= self.from && value <= self.to).collect()
    }
}

/// A digit times a power of ten, rounded once: 0.7 and not 0.7000000000000001.
fn shift(digit: f64, decade: i32) -> f64 {
    let power = 10f64.powi(decade.abs());
    if decade < 0 { digit / power } else { digit * power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_are_round() {
        let ticks = |values: &[f64], log| Scale::around(values.iter().copied(), log, false).ticks();
        assert_eq!(ticks(&[0.5, 11.2], false), [0.0, 5.0, 10.0]);
        assert_eq!(ticks(&[3.0, 700.0], true), [10.0, 100.0]);
        assert_eq!(ticks(&[0.9, 6.0], true), [1.0, 2.0, 5.0]);
        assert_eq!(ticks(&[1.0, 1.02], true), [0.7, 1.0, 1.5]);
        assert_eq!(ticks(&[], false), [0.0, 0.5, 1.0]);
    }

    proptest! {
        #[test]
        fn ticks_are_few_and_inside(
            values in proptest::collection::vec(-1e6..1e9_f64, 0..6), log: bool, tight: bool,
        ) {
            let scale = Scale::around(values.iter().copied(), log, tight);
            prop_assert!(scale.ticks().len() <= 12, "{:?}", scale.ticks());
            for tick in scale.ticks() {
                let share = scale.share(tick);
                prop_assert!((0.0..=1.0).contains(&share));
            }
        }
    }
}
