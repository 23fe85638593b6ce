//! How far a figure moves with each parameter that was varied.
//!
//! # Theory of operation
//! A line for each value of each parameter, the one that moves the figure most at the top. The dashed line is the figure with all parameters as they are, and
//! the range in which it is accepted is shaded. A dot of the other colour is on the other side of a bound: there the conclusion depends on that parameter.

use maud::{Markup, html};

use super::layout::{LETTER, short};
use super::px;
use super::scale::Scale;
use crate::stats::Interval;
use crate::table::number;

/// Width of the plane of values.
const PLANE: f64 = 300.0;
/// Height of a line.
const LINE: f64 = 18.0;
const EDGE: f64 = 8.0;
/// What stands below: the axis.
const BELOW: f64 = 24.0;
const CLASSES: [&str; 2] = ["s0", "s1"];
const LEGEND: [&str; 2] = ["same conclusion", "another conclusion"];

/// What one value of a parameter does to the figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// `parameter = value`.
    pub label: String,
    /// The figure with it.
    pub figure: f64,
    /// How sure that is.
    pub interval: Option<Interval>,
}

/// A figure and what parameters do to it.
#[derive(Clone, Debug, Default)]
pub struct Sensitivity {
    /// Its name.
    pub title: String,
    /// The figure with all parameters as they are.
    pub figure: f64,
    /// What it counts.
    pub unit: String,
    /// Least and greatest figure of the same conclusion.
    pub accepted: [Option<f64>; 2],
    /// What changes it.
    pub changed: Vec<Changed>,
}

impl Sensitivity {
    /// The picture with caption and legend.
    #[must_use]
    pub fn render(&self) -> Markup {
        let lines = self.sorted();
        let longest = lines.iter().map(|line| line.label.chars().count()).max().unwrap_or(0);
        let left = longest as f64 * LETTER + 2.0 * EDGE;
        let (width, floor) = (left + PLANE + EDGE, LINE * lines.len() as f64);
        let plane = Plane { left, floor, scale: self.scale() };
        html! {
            figure.chart {
                figcaption { (self.title) }
                ul.legend { @for (class, name) in CLASSES.iter().zip(LEGEND) { li { span class={ "swatch " (class) } {} (name) } } }
                div.scroll {
                    svg.plot viewBox={ "0 0 " (px(width)) " " (px(floor + BELOW)) } width=(px(width)) role="img" aria-label=(self.title) {
                        (self.ground(&plane))
                        @for (n, line) in (0_u32..).zip(&lines) { (self.line(line, n, &plane)) }
                    }
                }
            }
        }
    }

    /// Returns `true` if a figure leads to the same conclusion as the figure with all parameters as they are.
    #[must_use]
    pub fn agrees(&self, figure: f64) -> bool {
        let [low, high] = self.accepted;
        let inside =
            |one: f64| low.is_none_or(|low| one >= low) && high.is_none_or(|high| one <= high);
        inside(figure) == inside(self.figure)
    }

    /// What moves the figure most comes first.
    fn sorted(&self) -> Vec<&Changed> {
        let moved = |one: &Changed| match one.figure > 0.0 && self.figure > 0.0 {
            true => (one.figure / self.figure).ln().abs(),
            false => (one.figure - self.figure).abs(),
        };
        let mut lines: Vec<_> = self.changed.iter().collect();
        lines.sort_by(|a, b| moved(b).total_cmp(&moved(a)));
        lines
    }

    /// A logarithmic axis, on which twice and half are equally far away, unless something is zero.
    fn scale(&self) -> Scale {
        let ends = |one: &Changed| {
            let ends = one.interval.map_or([one.figure; 2], |i| [i.low, i.high]);
            [one.figure, ends[0], ends[1]]
        };
        let bounds = self.accepted.iter().flatten().copied();
        let all: Vec<f64> =
            self.changed.iter().flat_map(ends).chain(bounds).chain([self.figure]).collect();
        let log = all.iter().all(|value| *value > 0.0);
        Scale::around(all.into_iter(), log, false)
    }

    /// Axis, accepted range and the figure as it is.
    fn ground(&self, plane: &Plane) -> Markup {
        let [low, high] = self.accepted;
        let from = low.map_or(plane.left, |low| plane.x(low));
        let to = high.map_or(plane.left + PLANE, |high| plane.x(high));
        let (floor, here) = (plane.floor, plane.x(self.figure));
        html! {
            @if self.accepted != [None, None] {
                rect.band.s2 x=(px(from)) y="0" width=(px((to - from).max(0.0))) height=(px(floor)) {}
            }
            @for tick in plane.scale.ticks() {
                line.grid x1=(px(plane.x(tick))) x2=(px(plane.x(tick))) y1="0" y2=(px(floor)) {}
                text x=(px(plane.x(tick))) y=(px(floor + 16.0)) text-anchor="middle" { (short(tick)) }
            }
            g {
                title { "as it is: " (number(self.figure)) " " (self.unit) }
                line.reference x1=(px(here)) x2=(px(here)) y1="0" y2=(px(floor)) {}
            }
        }
    }

    fn line(&self, one: &Changed, n: u32, plane: &Plane) -> Markup {
        let y = LINE * (f64::from(n) + 0.5);
        let class = CLASSES[usize::from(!self.agrees(one.figure))];
        let sure = one.interval.map_or_else(String::new, |interval| {
            format!(" (95 % {} to {})", number(interval.low), number(interval.high))
        });
        html! {
            text.label x=(px(plane.left - EDGE)) y=(px(y + 4.0)) text-anchor="end" { (one.label) }
            g {
                title { (one.label) ": " (number(one.figure)) " " (self.unit) (sure) }
                @if let Some(interval) = one.interval {
                    path.error d=(format!("M{} {}H{}", px(plane.x(interval.low)), px(y), px(plane.x(interval.high)))) {}
                }
                circle class={ "dot " (class) } cx=(px(plane.x(one.figure))) cy=(px(y)) r="3.5" {}
            }
        }
    }
}

/// Where values are.
struct Plane {
    left: f64,
    floor: f64,
    scale: Scale,
}

impl Plane {
    fn x(&self, value: f64) -> f64 {
        self.left + self.scale.share(value) * PLANE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(label: &str, figure: f64) -> Changed {
        let interval = Some(Interval { low: figure * 0.9, high: figure * 1.1 });
        Changed { label: label.into(), figure, interval }
    }

    fn sensitivity() -> Sensitivity {
        Sensitivity {
            title: "<gain>".into(),
            figure: 2.0,
            unit: "x".into(),
            accepted: [Some(1.5), None],
            changed: vec![changed("a = 1", 2.1), changed("b = 2", 1.0), changed("c = 3", 5.0)],
        }
    }

    #[test]
    fn what_moves_the_figure_most_is_at_the_top() {
        let one = sensitivity();
        let order: Vec<_> = one.sorted().into_iter().map(|one| one.label.as_str()).collect();
        assert_eq!(order, ["c = 3", "b = 2", "a = 1"]);
    }

    #[test]
    fn what_crosses_a_bound_has_another_colour() {
        let one = sensitivity();
        assert!(one.agrees(2.1) && one.agrees(5.0) && !one.agrees(1.0));
        let svg = one.render().into_string();
        assert_eq!(svg.matches("class=\"dot s0\"").count(), 2);
        assert_eq!(svg.matches("class=\"dot s1\"").count(), 1);
        assert!(svg.contains("<title>b = 2: 1 x (95 % 0.90 to 1.10)</title>"), "{svg}");
        assert!(svg.contains("&lt;gain&gt;") && !svg.contains("<gain>"));
    }

    #[test]
    fn zero_and_nothing_are_drawn_too() {
        let zero = Changed { label: "a = 1".into(), figure: 0.0, interval: None };
        for changed in [vec![zero], Vec::new()] {
            let one = Sensitivity { changed, accepted: [None, None], ..sensitivity() };
            let svg = one.render().into_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
