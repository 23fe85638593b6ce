//! Charts as inline SVG, laid out here.
//!
//! # Theory of operation
//! A [`Chart`] is data: labels or numbers across, series of points, values of a paper, a line of reference. [`Chart::render`] lays it out for a page, [`picture()`] lays
//! several out as a file of its own. Colours and fonts are classes of a style sheet ([`STYLE`]), so that one drawing serves light and dark; a point's value is
//! its `title`, which browsers show to whoever points at it and which screen readers read. There are no scripts, nothing is random, and coordinates have one decimal:
//! the same chart gives the same bytes.
//!
//! A chart is [`WIDTH`] wide and shrinks with the page. If its labels need more, it is as wide as they need, and scrolls by itself.

mod layout;
mod marks;
mod picture;
mod scale;
mod sensitivity;
pub mod timeline;

use maud::{Markup, html};

use crate::stats::Interval;
use crate::table::number;
use layout::Layout;
pub use picture::picture;
use scale::Scale;
pub use sensitivity::{Changed, Sensitivity};

/// Colours and fonts of charts.
pub const STYLE: &str = include_str!("chart.css");
/// Width of a chart in user units, which are CSS pixels where the page has room.
pub const WIDTH: f64 = 460.0;
/// Kinds of colour that the style sheet has.
pub const COLOURS: usize = 6;
/// What a paper's values are called, in the legend and in the style sheet.
const PAPER: &str = "paper";

/// A chart.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Its caption.
    pub title: String,
    /// What is across.
    pub across: Across,
    /// What is along the horizontal axis.
    pub x_label: String,
    /// What is along the vertical axis.
    pub y_label: String,
    /// The vertical axis is logarithmic.
    pub log: bool,
    /// A horizontal line to compare with.
    pub reference: Option<f64>,
    /// What is drawn, in the order of the legend.
    pub series: Vec<Series>,
    /// Values of the paper's figure.
    pub paper: Vec<Paper>,
}

/// A horizontal axis.
#[derive(Clone, Debug)]
pub enum Across {
    /// Places at equal distance; the first one is at 0, the next one at 1.
    Labels(Vec<String>),
    /// Numbers.
    Numbers {
        /// The axis is logarithmic.
        log: bool,
    },
}

impl Default for Across {
    fn default() -> Self {
        Self::Numbers { log: false }
    }
}

/// Points of one colour.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// How its points are drawn.
    pub mark: Mark,
    /// In the order of drawing.
    pub points: Vec<Point>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mark {
    /// Bars from the axis; those of several series beside each other.
    #[default]
    Bars,
    /// A line through points.
    Line,
    /// A line without points.
    Curve,
    /// Points alone.
    Dots,
    /// A cumulative distribution, and around it so much on either side.
    Steps(f64),
}

/// A point.
#[derive(Clone, Copy, Debug, Default)]
pub struct Point {
    /// Across.
    pub x: f64,
    /// Upwards.
    pub y: f64,
    /// How sure `y` is.
    pub interval: Option<Interval>,
}

/// A value of a paper, or a range.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Across.
    pub x: f64,
    /// Beside which series; none: in the middle.
    pub series: Option<usize>,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Chart {
    /// The chart with legend and caption.
    #[must_use]
    pub fn render(&self) -> Markup {
        let layout = Layout::of(self, WIDTH);
        let wide = if layout.width > WIDTH { "chart wide" } else { "chart" };
        html! {
            figure class=(wide) {
                @if !self.title.is_empty() { figcaption { (self.title) } }
                (self.legend())
                @if !self.y_label.is_empty() { p.axis-title { (self.y_label) } }
                div.scroll {
                    svg.plot viewBox={ "0 0 " (px(layout.width)) " " (px(layout.height)) } width=(px(layout.width)) role="img" aria-label=(self.title) {
                        (self.drawing(&layout))
                    }
                }
            }
        }
    }

    /// Axes and marks.
    fn drawing(&self, layout: &Layout) -> Markup {
        html! { (layout.grid(self)) (marks::all(self, layout)) }
    }

    fn legend(&self) -> Markup {
        let entries = self.entries();
        html! {
            @if !entries.is_empty() {
                ul.legend { @for (class, name) in &entries { li { span class={ "swatch " (class) } {} (name) } } }
            }
        }
    }

    /// What the legend names, with the class of its colour.
    fn entries(&self) -> Vec<(String, &str)> {
        let named = self.series.iter().enumerate().filter(|(_, series)| !series.name.is_empty());
        let named = named.map(|(n, series)| (format!("s{}", n % COLOURS), &series.name[..]));
        named.chain((!self.paper.is_empty()).then(|| (PAPER.to_owned(), PAPER))).collect()
    }

    /// All values that the vertical axis has to reach.
    fn heights(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| &series.points).flat_map(|point| {
            let ends =
                point.interval.map_or([point.y; 2], |interval| [interval.low, interval.high]);
            [point.y, ends[0], ends[1]]
        });
        points
            .chain(self.paper.iter().flat_map(|paper| [paper.low, paper.high]))
            .chain(self.reference)
    }

    fn places(&self) -> impl Iterator<Item = f64> {
        self.series.iter().flat_map(|series| &series.points).map(|point| point.x)
    }

    /// What is at a place across, for people.
    fn place(&self, x: f64) -> String {
        match &self.across {
            Across::Labels(labels) => labels.get(x as usize).cloned().unwrap_or_default(),
            Across::Numbers { .. } => number(x),
        }
    }

    fn has(&self, wanted: impl Fn(Mark) -> bool) -> bool {
        self.series.iter().any(|series| wanted(series.mark))
    }
}

/// A length with one decimal.
fn px(length: f64) -> String {
    format!("{length:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn chart() -> Chart {
        let point = |x, y| Point { x, y, interval: Some(Interval { low: y / 2.0, high: y * 2.0 }) };
        let series = |name: &str, factor: f64| Series {
            name: name.into(),
            mark: Mark::Bars,
            points: vec![point(0.0, factor), point(1.0, 3.0 * factor)],
        };
        Chart {
            title: "<gain>".into(),
            across: Across::Labels(vec!["10 KB".into(), "1 MB".into()]),
            reference: Some(1.0),
            series: vec![series("2011", 2.0), series("today", 1.0)],
            paper: vec![Paper { x: 1.0, series: None, low: 3.0, high: 12.0 }],
            ..Chart::default()
        }
    }

    #[test]
    fn every_value_can_be_read_by_pointing_at_it() {
        let svg = chart().render().into_string();
        assert_eq!(svg.matches("class=\"bar s0\"").count(), 2);
        assert!(svg.contains("<title>2011, 1 MB: 6 (95 % 3 to 12)</title>"), "{svg}");
        assert!(svg.contains("<title>paper, 1 MB: 3 to 12</title>"));
        assert!(svg.contains("&lt;gain&gt;") && !svg.contains("<gain>"));
    }

    #[test]
    fn the_same_chart_gives_the_same_bytes() {
        assert_eq!(chart().render().into_string(), chart().render().into_string());
    }

    #[test]
    fn nothing_and_what_is_all_zero_is_drawn_too() {
        let zero = Series { points: vec![Point::default(); 3], ..Series::default() };
        for log in [false, true] {
            for mark in [Mark::Bars, Mark::Line, Mark::Curve, Mark::Dots, Mark::Steps(0.1)] {
                let series = vec![Series { mark, ..zero.clone() }];
                let svg = Chart { log, series, ..Chart::default() }.render().into_string();
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
        assert!(Chart::default().render().into_string().contains("<svg"));
    }

    #[test]
    fn a_chart_with_many_labels_is_wider() {
        let labels = (0..30).map(|n| format!("a-long-label-{n}")).collect();
        let wide = Chart { across: Across::Labels(labels), ..chart() };
        assert!(Layout::of(&wide, WIDTH).width > 2.0 * WIDTH);
        assert_eq!(Layout::of(&chart(), WIDTH).width, WIDTH);
    }
}
