//! Where things are in a chart, its axes and lines.

use maud::{Markup, html};

use super::{Across, Chart, Mark, Scale, px};
use crate::table::number;

/// Height of the plane of values.
const PLANE: f64 = 190.0;
const TOP: f64 = 10.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 12.0;
/// Height of a line of text.
const LINE: f64 = 14.0;
/// Width of a letter, about.
pub const LETTER: f64 = 6.6;
/// Least width of a bar, and what is free between groups.
const BAR: f64 = 13.0;
const GAP: f64 = 14.0;
/// Share of its place that a group of bars fills.
const FILL: f64 = 0.8;

/// A chart's measures.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Of all of it.
    pub width: f64,
    /// Of all of it.
    pub height: f64,
    x: Scale,
    y: Scale,
    /// Series that have bars.
    bars: usize,
    /// Labels below the axis, line by line.
    labels: Vec<Vec<String>>,
}

impl Layout {
    /// The measures of a chart that is `least` wide, and wider if its labels need that.
    pub fn of(chart: &Chart, least: f64) -> Self {
        let bars = chart.series.iter().filter(|series| series.mark == Mark::Bars).count();
        let (slot, count) = match &chart.across {
            Across::Labels(labels) => (least_slot(labels, bars), labels.len()),
            Across::Numbers { .. } => (0.0, 0),
        };
        let width = (slot * count as f64 + LEFT + RIGHT).max(least);
        let slot = (width - LEFT - RIGHT) / count.max(1) as f64;
        let labels: Vec<_> = match &chart.across {
            Across::Labels(labels) => labels.iter().map(|label| wrap(label, slot - 4.0)).collect(),
            Across::Numbers { .. } => Vec::new(),
        };
        let lines = labels.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let titled = usize::from(!chart.x_label.is_empty());
        let height = TOP + PLANE + LINE * (lines + titled) as f64 + 12.0;
        Self { width, height, x: x_scale(chart, count), y: y_scale(chart), bars, labels }
    }

    /// Pixels of a place across.
    pub fn x(&self, x: f64) -> f64 {
        LEFT + self.x.share(x) * (self.width - LEFT - RIGHT)
    }

    /// Pixels of a height.
    pub fn y(&self, y: f64) -> f64 {
        TOP + PLANE * (1.0 - self.y.share(y))
    }

    /// Where bars begin: at the lower end of the plane, or on a logarithmic axis, which has no 0, at what they are compared with.
    pub fn base(&self, chart: &Chart) -> f64 {
        chart.reference.filter(|_| chart.log).map_or_else(|| self.floor(), |value| self.y(value))
    }

    /// The lower end of the plane.
    pub fn floor(&self) -> f64 {
        TOP + PLANE
    }

    /// Left edge and width of the bar of a series at a place.
    pub fn bar(&self, x: f64, series: usize) -> (f64, f64) {
        let slot = self.x(x + 0.5) - self.x(x - 0.5);
        let step = slot * FILL / self.bars.max(1) as f64;
        let step = step.min(64.0);
        let left = self.x(x) - step * self.bars.max(1) as f64 / 2.0 + step * series as f64;
        (left + step * 0.06, step * 0.88)
    }

    /// Lines and text of the axes.
    pub fn grid(&self, chart: &Chart) -> Markup {
        let right = self.width - RIGHT;
        html! {
            @for tick in self.y.ticks() {
                line.grid x1=(px(LEFT)) x2=(px(right)) y1=(px(self.y(tick))) y2=(px(self.y(tick))) {}
                text x=(px(LEFT - 7.0)) y=(px(self.y(tick) + 4.0)) text-anchor="end" { (short(tick)) }
            }
            @if let Some(reference) = chart.reference {
                line.reference x1=(px(LEFT)) x2=(px(right)) y1=(px(self.y(reference))) y2=(px(self.y(reference))) {}
            }
            line.axis x1=(px(LEFT)) x2=(px(right)) y1=(px(self.floor())) y2=(px(self.floor())) {}
            (self.below(chart))
            @if !chart.x_label.is_empty() {
                text.label x=(px((LEFT + right) / 2.0)) y=(px(self.height - 4.0)) text-anchor="middle" { (chart.x_label) }
            }
        }
    }

    fn below(&self, chart: &Chart) -> Markup {
        let top = self.floor() + LINE + 2.0;
        html! {
            @for (n, lines) in self.labels.iter().enumerate() {
                @for (line, text) in lines.iter().enumerate() {
                    text x=(px(self.x(n as f64))) y=(px(top + LINE * line as f64)) text-anchor="middle" { (text) }
                }
            }
            @if let Across::Numbers { .. } = chart.across {
                @for tick in self.x.ticks() {
                    line.axis x1=(px(self.x(tick))) x2=(px(self.x(tick))) y1=(px(self.floor())) y2=(px(self.floor() + 4.0)) {}
                    text x=(px(self.x(tick))) y=(px(top)) text-anchor="middle" { (short(tick)) }
                }
            }
        }
    }
}

/// A number beside an axis: without zeros that say nothing.
pub fn short(tick: f64) -> String {
    let size = tick.abs();
    if size >= 1e6 {
        return format!("{}M", short(tick / 1e6));
    }
    let text = number(tick);
    match text.contains(['.']) && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn x_scale(chart: &Chart, labels: usize) -> Scale {
    match chart.across {
        Across::Labels(_) => Scale::fixed(-0.5, labels.max(1) as f64 - 0.5),
        Across::Numbers { log } => Scale::around(chart.places(), log, false),
    }
}

fn y_scale(chart: &Chart) -> Scale {
    if chart.has(|mark| matches!(mark, Mark::Steps(_))) {
        return Scale::fixed(0.0, 1.0);
    }
    Scale::around(chart.heights(), chart.log, false)
}

/// The least width of a place for its bars and the longest word of a label.
fn least_slot(labels: &[String], bars: usize) -> f64 {
    let words = labels.iter().flat_map(|label| label.split(' '));
    let longest = words.map(|word| word.chars().count()).max().unwrap_or(0);
    (bars as f64 * BAR + GAP).max(longest as f64 * LETTER + 6.0)
}

/// A label in lines that fit into a width.
pub fn wrap(label: &str, width: f64) -> Vec<String> {
    let fits = |line: &str, word: &str| {
        (line.chars().count() + 1 + word.chars().count()) as f64 * LETTER <= width
    };
    let mut lines: Vec<String> = Vec::new();
    for word in label.split(' ') {
        match lines.last_mut() {
            Some(line) if fits(line, word) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        let ticks = [0.5, 1.0, 0.25, 20_000_000.0, 100.0].map(short);
        assert_eq!(ticks, ["0.5", "1", "0.25", "20M", "100"]);
    }

    #[test]
    fn labels_break_between_words() {
        assert_eq!(wrap("3 VMs 60 %, 100 KB", 80.0), ["3 VMs 60 %,", "100 KB"]);
        assert_eq!(wrap("indivisible", 10.0), ["indivisible"]);
    }
}
