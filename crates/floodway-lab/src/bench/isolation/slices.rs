//! What a slice has measured, and what many of them say.

use floodway_report::stats::{self, Interval};
use serde::Serialize;

/// What the victims do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// 64-byte requests and answers, 10 000 a second.
    RoundTrips,
    /// 1500-byte frames, as many as get through.
    Stream,
}

impl Load {
    pub const ALL: [Self; 2] = [Self::RoundTrips, Self::Stream];
}

/// What the client itself takes. All VMs share its core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClientCost {
    /// 99 % of the turns, each of which serves all VMs once, were no longer, in microseconds.
    pub turn_p99_us: f64,
    /// The longest turn.
    pub turn_max_us: f64,
    /// Share of the time that the attacker's VMs took, 0 to 1.
    pub attacking: f64,
}

/// What a slice has measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Answers a second, or Gbit/s of the stream.
    pub rate: f64,
    /// Of each request, in microseconds; none of a stream.
    pub latencies_us: Vec<f64>,
    /// Frames a second that arrived at the victims and are not theirs.
    pub foreign: f64,
    pub client: ClientCost,
}

/// A slice: part of a run in which the attack was on, or off.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slice {
    pub load: Load,
    pub attacked: bool,
    pub rate: f64,
    /// None of a stream.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub foreign: f64,
    /// Seconds of work that the switch charged the attacker for, and all of its ports and uplinks.
    pub charged: Option<[f64; 2]>,
    pub client: ClientCost,
}

impl Slice {
    pub fn new(load: Load, attacked: bool, measured: &Measured, charged: Option<[f64; 2]>) -> Self {
        let quantile = |q| stats::quantile(&measured.latencies_us, q);
        Self {
            load,
            attacked,
            rate: measured.rate,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            foreign: measured.foreign,
            charged,
            client: measured.client,
        }
    }
}

/// A figure, calm and under attack: entry *i* of both is of the same pair of slices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paired {
    pub calm: Vec<f64>,
    pub attacked: Vec<f64>,
}

impl Paired {
    /// `of` each slice with this load, in order. A slice without the figure leaves its pair out.
    pub fn collect(slices: &[Slice], load: Load, of: impl Fn(&Slice) -> Option<f64>) -> Self {
        let variant = |attacked: bool| -> Vec<Option<f64>> {
            let variant = slices.iter().filter(|s| s.load == load && s.attacked == attacked);
            variant.map(&of).collect()
        };
        let pairs = variant(false).into_iter().zip(variant(true));
        let (calm, attacked) = pairs.filter_map(|(calm, attacked)| calm.zip(attacked)).unzip();
        Self { calm, attacked }
    }

    /// Medians over slices: calm, and under attack.
    pub fn medians(&self) -> Option<[f64; 2]> {
        Some([stats::median(&self.calm)?, stats::median(&self.attacked)?])
    }

    /// Under attack, as a part of calm. None where calm is nothing.
    pub fn ratio(&self) -> Option<f64> {
        let [calm, attacked] = self.medians()?;
        (calm > 0.0).then(|| attacked / calm)
    }

    /// 95 % interval of [`Self::ratio`], drawn by pairs.
    pub fn interval(&self) -> Option<Interval> {
        stats::ratio_interval(&self.attacked, &self.calm, 1)
    }
}

/// Share of what the worker's work was charged to that is the attacker's, over all attacked slices with this load.
pub fn attackers_share(slices: &[Slice], load: Load) -> Option<f64> {
    let charged = slices.iter().filter(|s| s.load == load && s.attacked).filter_map(|s| s.charged);
    let [attacker, all] = charged.reduce(|[a, b], [c, d]| [a + c, b + d])?;
    (all > 0.0).then(|| attacker / all)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A slice of round trips that all took `us`, or of a stream of `us` Gbit/s.
    pub fn slice(load: Load, attacked: bool, figure: f64) -> Slice {
        let latencies_us = if load == Load::Stream { vec![] } else { vec![figure; 10] };
        let rate = if load == Load::Stream { figure } else { 10_000.0 };
        let measured = Measured { rate, latencies_us, ..Measured::default() };
        Slice::new(load, attacked, &measured, None)
    }

    #[test]
    fn quantiles_of_a_slice_are_those_of_its_round_trips() {
        let latencies_us = (0..=100).map(f64::from).collect();
        let measured = Measured { latencies_us, ..Measured::default() };
        let slice = Slice::new(Load::RoundTrips, false, &measured, None);
        assert_eq!((slice.p50_us, slice.p99_us), (Some(50.0), Some(99.0)));
        assert_eq!(tests::slice(Load::Stream, false, 9.0).p99_us, None);
    }

    #[test]
    fn slices_are_paired_in_order_and_by_load() {
        let slices = [
            slice(Load::Stream, true, 5.0),
            slice(Load::RoundTrips, false, 40.0),
            slice(Load::Stream, false, 10.0),
            slice(Load::Stream, false, 8.0),
            slice(Load::Stream, true, 4.0),
            slice(Load::Stream, true, 1.0),
        ];
        let paired = Paired::collect(&slices, Load::Stream, |s| Some(s.rate));
        assert_eq!((&paired.calm[..], &paired.attacked[..]), (&[10.0, 8.0][..], &[5.0, 4.0][..]));
        assert_eq!(paired.medians(), Some([9.0, 4.5]));
        assert_eq!(paired.ratio(), Some(0.5));
    }

    #[test]
    fn slices_that_move_together_leave_the_ratio_certain() {
        let calm = vec![10.0, 20.0, 40.0, 5.0];
        let attacked = calm.iter().map(|rate| rate / 2.0).collect();
        let interval = Paired { calm, attacked }.interval().unwrap();
        assert!((interval.low - 0.5).abs() < 1e-9 && (interval.high - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_ratio_to_nothing_is_none() {
        let paired = Paired { calm: vec![0.0; 3], attacked: vec![1.0; 3] };
        assert_eq!((paired.ratio(), paired.interval()), (None, None));
    }

    #[test]
    fn the_share_is_that_of_the_attacked_slices_together() {
        let mut slices = vec![slice(Load::Stream, true, 1.0); 3];
        assert_eq!(attackers_share(&slices, Load::Stream), None);
        slices[0].charged = Some([0.1, 0.1]);
        slices[1].charged = Some([0.1, 0.3]);
        slices.push(Slice { attacked: false, charged: Some([9.0, 9.0]), ..slices[0].clone() });
        assert_eq!(attackers_share(&slices, Load::Stream), Some(0.5));
        assert_eq!(attackers_share(&slices, Load::RoundTrips), None);
    }
}
