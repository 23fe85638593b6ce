//! Completion times of a class of transfers, as figures.

use std::time::Duration;

use floodway_sim::traffic::Samples;

use super::measurement::Recorder;

/// Quantiles that are figures.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
/// Points of a distribution that is drawn.
const POINTS: u32 = 500;
/// Where the tail begins that is drawn again.
const TAIL: f64 = 0.99;

/// Mean, quantiles and number of `times`; nothing else if there are none.
pub(super) fn tell(class: &str, times: &Samples, to: &mut Recorder<'_>) {
    let of = |figure: &str| [("class", class.to_owned()), ("figure", figure.to_owned())];
    to.add_of(&of("transfers"), "count", "transfers", times.len() as f64);
    let mut say = |figure: &str, time: Option<Duration>| {
        if let Some(time) = time {
            to.add_of(&of(figure), "completion time", "ms", time.as_secs_f64() * 1e3);
        }
    };
    say("mean", times.mean());
    for (figure, q) in QUANTILES {
        say(figure, times.quantile(q));
    }
}

/// The distribution of `times`, and its tail, by points at equal distances in share.
pub(super) fn draw(class: &str, times: &Samples, to: &mut Recorder<'_>) {
    for from in [0.0, TAIL] {
        for point in 1..=POINTS {
            let share = f64::from(point).mul_add((1.0 - from) / f64::from(POINTS), from);
            let of = [("class", class.to_owned()), ("from", from.to_string())];
            if let Some(time) = times.quantile(share) {
                to.add_of(&of, "distribution", "ms", time.as_secs_f64() * 1e3);
            }
        }
    }
}
