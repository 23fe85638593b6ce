//! Timelines: what happened when, in lanes above each other, as one SVG file.
//!
//! # Theory of operation
//! A [`Timeline`] is data: panels, each with lanes, over one axis of time that all panels share. A lane shows phases, the owner of each moment, how much of
//! the time somebody ran or waited, single marks, or curves. [`Timeline::render`] draws it. Time is divided into columns of half a pixel, and a column
//! shows what a lane had in it: the share of time, the owner for most of it, how many marks, the last value. So a drawing has a bounded size however
//! much happened, nothing looks longer than it was, and the same timeline gives the same bytes.

use maud::{Markup, html};

use super::picture::{Entry, file, moved};
use super::{Scale, px};
use crate::chart::layout::{LETTER, wrap};

/// Colours and fonts beyond those of charts.
const STYLE: &str = concat!(include_str!("chart.css"), include_str!("timeline.css"));
/// Width of the names of lanes, and of the time.
const NAMES: f64 = 132.0;
const PLANE: f64 = 568.0;
/// Around all.
const GAP: f64 = 16.0;
/// Width of a column of time.
const COLUMN: f64 = 0.5;
/// Height of a lane, and what is free between two.
const LANE: f64 = 16.0;
const FREE: f64 = 4.0;
/// Height of a lane of curves.
const CURVES: f64 = 96.0;
/// Height of a line of text.
const LINE: f64 = 18.0;
/// Marks in a column that make it as high as it can be.
const MOST_MARKS: f64 = 6.0;

/// What happened when. All times are in ms.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Its caption.
    pub title: String,
    /// What is shown: from when, to when.
    pub window: [f64; 2],
    /// From top to bottom.
    pub panels: Vec<Panel>,
    /// Names of colours.
    pub legend: Vec<Key>,
    /// Sentences below it, such as what is cut off.
    pub notes: Vec<String>,
}

/// A colour of the style sheet, or a lighter one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Colour {
    /// Which of [`COLOURS`](super::COLOURS).
    pub number: usize,
    /// It is the lighter one.
    pub light: bool,
}

/// What a colour means.
#[derive(Clone, Debug)]
pub struct Key {
    /// The colour.
    pub colour: Colour,
    /// Its meaning.
    pub name: String,
}

/// Lanes that belong together.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Its caption.
    pub title: String,
    /// From top to bottom.
    pub lanes: Vec<Lane>,
}

/// One lane.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Beside it.
    pub name: String,
    /// In words, for whoever points at it or does not see it.
    pub summary: String,
    /// What it shows.
    pub content: Content,
}

/// What a lane shows.
#[derive(Clone, Debug)]
pub enum Content {
    /// Stretches with names, one after the other.
    Phases(Vec<(String, [f64; 2])>),
    /// Stretches that do not overlap, each with an owner's colour.
    Owners(Vec<(Colour, [f64; 2])>),
    /// Stretches of somebody who runs, and of the same one who waits, in a lighter colour.
    Shares {
        /// Which colour.
        colour: usize,
        /// Stretches in which it runs.
        runs: Vec<[f64; 2]>,
        /// Stretches in which it waits.
        waits: Vec<[f64; 2]>,
    },
    /// Marks above a line, and below it.
    Marks {
        /// Times above, with a colour.
        above: (usize, Vec<f64>),
        /// Times below.
        below: (usize, Vec<f64>),
    },
    /// Values that stay as they are until the next one: a colour, and times with values.
    Curves(Vec<(usize, Vec<[f64; 2]>)>),
}

impl Timeline {
    /// It as an SVG file. `alt` says what it shows to whoever does not see it.
    #[must_use]
    pub fn render(&self, alt: &str) -> String {
        let axis = Axis::new(self.window);
        let (mut drawn, mut top) = (Vec::new(), GAP);
        let mut put = |markup: Markup, top: f64| {
            drawn.push(html! { g transform=(moved(GAP, top)) { (markup) } });
        };
        put(html! { text.caption y="13" { (self.title) } }, top);
        top += LINE + FREE;
        for panel in &self.panels {
            put(panel.draw(&axis), top);
            top += panel.height();
        }
        put(axis.draw(), top - FREE);
        top += LINE + FREE;
        let keys = self.legend.iter().map(|key| (key.colour.class(), &key.name[..]));
        let entries = Entry::place(keys.collect(), NAMES + PLANE);
        put(html! { @for entry in &entries { (entry.draw(0.0)) } }, top);
        top += entries.last().map_or(0.0, Entry::bottom) + FREE;
        let lines = self.notes.iter().flat_map(|note| wrap(note, NAMES + PLANE));
        for line in lines {
            put(html! { text y="12" { (line) } }, top);
            top += LINE;
        }
        file([NAMES + PLANE + 2.0 * GAP, top + GAP], alt, STYLE, &drawn)
    }
}

impl Colour {
    fn class(self) -> String {
        format!("s{}{}", self.number % super::COLOURS, if self.light { " light" } else { "" })
    }
}

impl Panel {
    fn height(&self) -> f64 {
        LINE + self.lanes.iter().map(|lane| lane.content.height() + FREE).sum::<f64>() + 2.0 * FREE
    }

    fn draw(&self, axis: &Axis) -> Markup {
        let mut top = LINE;
        let mut places = Vec::new();
        for lane in &self.lanes {
            places.push((lane, top));
            top += lane.content.height() + FREE;
        }
        html! {
            text.label y="12" { (self.title) }
            @for tick in axis.scale.ticks() {
                line.grid x1=(px(axis.x(tick))) x2=(px(axis.x(tick))) y1=(px(LINE)) y2=(px(top)) {}
            }
            @for (lane, top) in places { g transform=(moved(0.0, top)) { (lane.draw(axis)) } }
        }
    }
}

impl Lane {
    fn draw(&self, axis: &Axis) -> Markup {
        html! {
            title { (self.name) ": " (self.summary) }
            rect.hover width=(px(NAMES + PLANE)) height=(px(self.content.height())) {}
            text y=(px(LANE / 2.0 + 4.0)) { (self.name) }
            @match &self.content {
                Content::Phases(phases) => (draw_phases(phases, axis)),
                Content::Owners(owners) => (draw_owners(owners, axis)),
                Content::Shares { colour, runs, waits } => (draw_shares(*colour, runs, waits, axis)),
                Content::Marks { above, below } => {
                    line.grid x1=(px(NAMES)) x2=(px(NAMES + PLANE)) y1=(px(LANE / 2.0)) y2=(px(LANE / 2.0)) {}
                    (draw_marks(above, -1.0, axis)) (draw_marks(below, 1.0, axis))
                },
                Content::Curves(curves) => (draw_curves(curves, axis)),
            }
        }
    }
}

impl Content {
    const fn height(&self) -> f64 {
        if matches!(self, Self::Curves(_)) { CURVES } else { LANE }
    }
}

/// The axis of time.
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
}

impl Axis {
    fn new([from, to]: [f64; 2]) -> Self {
        let to = to.max(from + 1e-6);
        Self { scale: Scale::fixed(from, to), from, to }
    }

    fn x(&self, at: f64) -> f64 {
        NAMES + PLANE * self.scale.share(at)
    }

    fn columns() -> usize {
        (PLANE / COLUMN) as usize
    }

    /// The place of a time in columns; outside of the window if the time is.
    fn place(&self, at: f64) -> f64 {
        (at - self.from) / (self.to - self.from) * Self::columns() as f64
    }

    /// The column of a time inside the window.
    fn column(&self, at: f64) -> Option<usize> {
        let place = self.place(at);
        (place >= 0.0 && place <= Self::columns() as f64)
            .then(|| (place as usize).min(Self::columns() - 1))
    }

    fn left(column: usize) -> f64 {
        NAMES + column as f64 * COLUMN
    }

    /// Adds to each column the share of it that a stretch covers.
    fn cover(&self, [from, to]: [f64; 2], shares: &mut [f64]) {
        let end = shares.len() as f64;
        let (from, to) = (self.place(from).clamp(0.0, end), self.place(to).clamp(0.0, end));
        let mut at = from;
        while at < to {
            let next = (at.floor() + 1.0).min(to);
            shares[(at as usize).min(shares.len() - 1)] += next - at;
            at = next;
        }
    }

    fn draw(&self) -> Markup {
        html! {
            line.axis x1=(px(NAMES)) x2=(px(NAMES + PLANE)) y1="0" y2="0" {}
            @for tick in self.scale.ticks() {
                line.axis x1=(px(self.x(tick))) x2=(px(self.x(tick))) y1="0" y2="4" {}
                text x=(px(self.x(tick))) y="16" text-anchor="middle" { (crate::chart::layout::short(tick)) " ms" }
            }
        }
    }
}

fn draw_phases(phases: &[(String, [f64; 2])], axis: &Axis) -> Markup {
    html! {
        @for (name, [from, to]) in phases.iter().filter(|(_, [from, to])| *to > axis.from && *from < axis.to) {
            @let (left, right) = (axis.x(*from), axis.x(*to));
            g {
                title { (name) ": " (format!("{:.2} ms", to - from)) }
                rect.phase x=(px(left)) width=(px(right - left)) height=(px(LANE)) {}
                line.cut x1=(px(left)) x2=(px(left)) y1="0" y2=(px(LANE)) {}
                @if name.chars().count() as f64 * LETTER < right - left {
                    text.label x=(px((left + right) / 2.0)) y=(px(LANE / 2.0 + 4.0)) text-anchor="middle" { (name) }
                }
            }
        }
    }
}

/// One path per colour; a column has that of whoever has most of it.
fn draw_owners(owners: &[(Colour, [f64; 2])], axis: &Axis) -> Markup {
    let mut colours: Vec<_> = owners.iter().map(|(colour, _)| *colour).collect();
    colours.sort();
    colours.dedup();
    let shares: Vec<_> = colours
        .iter()
        .map(|wanted| {
            let mut shares = vec![0.0; Axis::columns()];
            let own = owners.iter().filter(|(colour, _)| colour == wanted);
            own.for_each(|(_, stretch)| axis.cover(*stretch, &mut shares));
            shares
        })
        .collect();
    let owner = |column: usize| {
        let most = |&a: &usize, &b: &usize| shares[a][column].total_cmp(&shares[b][column]);
        (0..colours.len()).max_by(most).filter(|&n| shares[n][column] > 0.0)
    };
    let owner: Vec<_> = (0..Axis::columns()).map(owner).collect();
    let of = |n: usize| bars(owner.iter().map(|at| if *at == Some(n) { LANE } else { 0.0 }));
    html! {
        @for (n, colour) in colours.iter().enumerate() {
            path class={ "share " (colour.class()) } d=(of(n)) {}
        }
    }
}

fn draw_shares(colour: usize, runs: &[[f64; 2]], waits: &[[f64; 2]], axis: &Axis) -> Markup {
    let mut shares = [vec![0.0; Axis::columns()], vec![0.0; Axis::columns()]];
    runs.iter().for_each(|run| axis.cover(*run, &mut shares[0]));
    waits.iter().for_each(|wait| axis.cover(*wait, &mut shares[1]));
    let [ran, waited] = shares;
    let both = ran.iter().zip(&waited).map(|(ran, waited)| (ran + waited) * LANE);
    html! {
        path class={ "share s" (colour) " light" } d=(bars(both)) {}
        path class={ "share s" (colour) } d=(bars(ran.iter().map(|share| share * LANE))) {}
    }
}

/// The outline of columns that stand on the lower end of a lane.
fn bars(heights: impl Iterator<Item = f64>) -> String {
    let (mut d, mut at) = (String::new(), String::new());
    let mut last = 0;
    for (column, height) in heights.enumerate() {
        let top = px((LANE - height.min(LANE)).max(0.0));
        if top != at && (column > 0 || height > 0.0) {
            let left = px(Axis::left(column));
            d += &match d.is_empty() {
                true => format!("M{left} {LANE}V{top}"),
                false => format!("H{left}V{top}"),
            };
        }
        (at, last) = (top, column + 1);
    }
    match d.is_empty() {
        true => d,
        false => d + &format!("H{}V{LANE}z", px(Axis::left(last))),
    }
}

fn draw_marks((colour, times): &(usize, Vec<f64>), way: f64, axis: &Axis) -> Markup {
    let mut counts = vec![0_u32; Axis::columns()];
    times.iter().filter_map(|at| axis.column(*at)).for_each(|column| counts[column] += 1);
    let some = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    let d: String = some
        .map(|(column, &count)| {
            let height = 3.0 + (LANE / 2.0 - 3.0) * (f64::from(count) / MOST_MARKS).min(1.0);
            format!("M{} {}v{}", px(Axis::left(column)), px(LANE / 2.0), px(way * height))
        })
        .collect();
    html! { @if !d.is_empty() { path class={ "mark s" (colour) } d=(d) {} } }
}

fn draw_curves(curves: &[(usize, Vec<[f64; 2]>)], axis: &Axis) -> Markup {
    let values = curves.iter().flat_map(|(_, points)| points).map(|point| point[1]);
    let scale = Scale::around(values, false, false);
    let y = |value: f64| CURVES * (1.0 - scale.share(value));
    html! {
        @for tick in scale.ticks() {
            line.grid x1=(px(NAMES)) x2=(px(NAMES + PLANE)) y1=(px(y(tick))) y2=(px(y(tick))) {}
            @if tick > 0.0 { text x=(px(NAMES - 6.0)) y=(px(y(tick) + 4.0)) text-anchor="end" { (crate::chart::layout::short(tick)) } }
        }
        @for (colour, points) in curves {
            path class={ "line thin s" (colour) } d=(stairs(points, axis, y)) {}
        }
    }
}

/// A line that goes across, and up or down at each column with another last value.
fn stairs(points: &[[f64; 2]], axis: &Axis, y: impl Fn(f64) -> f64) -> String {
    let mut last: Vec<Option<f64>> = vec![None; Axis::columns()];
    for [at, value] in points {
        // What was before the window is how it begins.
        let column = if *at < axis.from { Some(0) } else { axis.column(*at) };
        column.into_iter().for_each(|column| last[column] = Some(*value));
    }
    let mut d = String::new();
    for (column, value) in last.iter().enumerate() {
        let Some(value) = value.map(|value| px(y(value))) else { continue };
        let left = px(Axis::left(column));
        d += &match d.is_empty() {
            true => format!("M{left} {value}"),
            false => format!("H{left}V{value}"),
        };
    }
    match d.is_empty() {
        true => d,
        false => d + &format!("H{}", px(NAMES + PLANE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        let colour = Colour { number: 1, light: true };
        let lane =
            |name: &str, content| Lane { name: name.into(), summary: "<so>".into(), content };
        let lanes = vec![
            lane("phases", Content::Phases(vec![("data".into(), [1.0, 9.0])])),
            lane("owner", Content::Owners(vec![(colour, [0.0, 5.0])])),
            lane(
                "VM",
                Content::Shares { colour: 0, runs: vec![[0.0, 2.5]], waits: vec![[5.0, 10.0]] },
            ),
            lane("packets", Content::Marks { above: (0, vec![1.0, 1.0]), below: (2, vec![12.0]) }),
            lane("bytes", Content::Curves(vec![(0, vec![[0.0, 0.0], [5.0, 100.0]])])),
        ];
        Timeline {
            title: "a & b".into(),
            window: [0.0, 10.0],
            panels: vec![Panel { title: "on".into(), lanes }],
            legend: vec![Key { colour, name: "waits".into() }],
            notes: vec!["cut".into()],
        }
    }

    #[test]
    fn a_timeline_is_a_document_that_needs_nothing_else() {
        let svg = timeline().render("alt");
        let document = roxmltree::Document::parse(&svg).expect("well-formed XML");
        for class in document.descendants().filter_map(|node| node.attribute("class")) {
            for class in class.split(' ') {
                assert!(STYLE.contains(&format!(".{class}")), "{class}");
            }
        }
        assert!(svg.contains("prefers-color-scheme:dark") && !svg.contains("href"));
        assert!(svg.contains("packets: &lt;so&gt;"));
        insta::assert_snapshot!(svg);
    }

    #[test]
    fn a_column_has_the_share_of_its_time_that_somebody_ran() {
        let axis = Axis::new([0.0, Axis::columns() as f64]);
        let mut shares = vec![0.0; Axis::columns()];
        [[-5.0, 0.25], [1.5, 3.5], [1e9, 2e9]]
            .iter()
            .for_each(|stretch| axis.cover(*stretch, &mut shares));
        for (share, expected) in shares.iter().zip([0.25, 0.5, 1.0, 0.5, 0.0]) {
            assert!((share - expected).abs() < 1e-9, "{share} for {expected}");
        }
        assert!((shares.iter().sum::<f64>() - 2.25).abs() < 1e-9);
    }

    #[test]
    fn its_size_is_bounded_however_much_happened() {
        let mut full = timeline();
        let many = || (0..200_000).map(|n| f64::from(n) * 5e-5);
        let stretches: Vec<_> = many().map(|at| [at, at + 2e-5]).collect();
        for lane in &mut full.panels[0].lanes {
            match &mut lane.content {
                Content::Shares { runs, .. } => runs.clone_from(&stretches),
                Content::Marks { above, .. } => above.1 = many().collect(),
                Content::Curves(curves) => curves[0].1 = many().map(|at| [at, at.sin()]).collect(),
                Content::Phases(_) | Content::Owners(_) => {}
            }
        }
        assert!(full.render("").len() < 100_000);
    }

    #[test]
    fn what_is_outside_of_the_window_is_not_drawn() {
        let before = Timeline { window: [20.0, 30.0], ..timeline() };
        let svg = before.render("");
        assert!(!svg.contains("class=\"mark"), "{svg}");
        assert!(!svg.contains("class=\"phase"), "{svg}");
    }
}
