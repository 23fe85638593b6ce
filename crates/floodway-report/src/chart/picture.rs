//! Charts as one SVG file, for texts that show it as an image.
//!
//! An image gets no style sheet from its text, and nobody can point at its values. So it has the style of charts inside, captions and legends as text, and a ground
//! of its own: its colours follow what the reader prefers, light or dark, and the text around it may have another theme.

use maud::{Markup, PreEscaped, html};

use super::layout::{LETTER, Layout, wrap};
use super::{Chart, PAPER, STYLE, marks, px};

/// Width of a chart that has another one beside it.
const HALF: f64 = 350.0;
/// Width of a chart that has not.
const WHOLE: f64 = 2.0 * HALF + GAP;
/// Between charts, and around all of them.
const GAP: f64 = 16.0;
/// Height of a line of a caption.
const CAPTION: f64 = 19.0;
/// How much wider than others a caption's letters are.
const BOLD: f64 = 1.15;
/// Height of a line of a legend, and of what is along the vertical axis.
const ROW: f64 = 17.0;
/// Width of an entry of the legend besides its text.
const SWATCH: f64 = 30.0;

/// Lays out `charts` as an SVG file, two beside each other if all of them have room so. `alt` says what they show to whoever does not see them.
#[must_use]
pub fn picture(charts: &[Chart], alt: &str) -> String {
    let halves: Vec<_> = charts.iter().map(|chart| Part::of(chart, HALF)).collect();
    let (columns, parts) =
        match charts.len() > 1 && halves.iter().all(|part| part.layout.width <= HALF) {
            true => (2, halves),
            false => (1, charts.iter().map(|chart| Part::of(chart, WHOLE)).collect()),
        };
    let width = parts.iter().map(|part| part.layout.width).fold(WHOLE, f64::max);
    let (mut drawn, mut top) = (Vec::new(), GAP);
    for row in parts.chunks(columns) {
        let head = row.iter().map(Part::head).fold(0.0, f64::max);
        let lefts = (0_u32..).map(|n| GAP + (HALF + GAP) * f64::from(n));
        drawn.extend(row.iter().zip(lefts).map(|(part, left)| part.draw(left, top, head)));
        top += head + row.iter().map(|part| part.layout.height).fold(0.0, f64::max) + GAP;
    }
    file([width + 2.0 * GAP, top], alt, STYLE, &drawn)
}

/// A file of this width and height, with a style of its own.
pub(super) fn file(size: [f64; 2], alt: &str, style: &str, drawn: &[Markup]) -> String {
    let [width, height] = size.map(px);
    let svg = html! {
        svg.plot xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="img" aria-label=(alt) {
            style { (PreEscaped(style)) }
            rect.ground width="100%" height="100%" rx="6" {}
            @for part in drawn { (part) }
        }
    };
    svg.into_string() + "\n"
}

/// A chart with what stands above it.
struct Part<'a> {
    chart: &'a Chart,
    caption: Vec<String>,
    legend: Vec<Entry<'a>>,
    axis: Vec<String>,
    layout: Layout,
}

impl<'a> Part<'a> {
    fn of(chart: &'a Chart, width: f64) -> Self {
        let lines = |text: &str, width: f64| match text {
            "" => Vec::new(),
            text => wrap(text, width),
        };
        Self {
            chart,
            caption: lines(&chart.title, width / BOLD),
            legend: Entry::all(chart, width),
            axis: lines(&chart.y_label, width),
            layout: Layout::of(chart, width),
        }
    }

    /// Height of what stands above the chart.
    fn head(&self) -> f64 {
        let rows = self.legend.last().map_or(0, |entry| entry.line + 1) + self.axis.len();
        CAPTION * self.caption.len() as f64 + ROW * rows as f64 + 4.0
    }

    /// It at its place; the chart begins `head` below that.
    fn draw(&self, left: f64, top: f64, head: f64) -> Markup {
        let legend = CAPTION * self.caption.len() as f64;
        // Right above its axis, also where others in the row have more above theirs.
        let axis = head - 4.0 - ROW * self.axis.len() as f64;
        html! {
            g transform=(moved(left, top)) {
                @for (n, line) in self.caption.iter().enumerate() {
                    text.caption y=(px(CAPTION * n as f64 + 13.0)) { (line) }
                }
                @for entry in &self.legend { (entry.draw(legend)) }
                @for (n, line) in self.axis.iter().enumerate() {
                    text y=(px(axis + ROW * n as f64 + 12.0)) { (line) }
                }
                g transform=(moved(0.0, head)) { (self.chart.drawing(&self.layout)) }
            }
        }
    }
}

pub(super) fn moved(left: f64, top: f64) -> String {
    format!("translate({} {})", px(left), px(top))
}

/// An entry of a legend at its place.
pub(super) struct Entry<'a> {
    class: String,
    name: &'a str,
    left: f64,
    line: usize,
}

impl<'a> Entry<'a> {
    /// All of a chart's legend, in lines of at most `width`.
    fn all(chart: &'a Chart, width: f64) -> Vec<Self> {
        Self::place(chart.entries(), width)
    }

    /// Entries with the class of their colour, in lines of at most `width`.
    pub(super) fn place(entries: Vec<(String, &'a str)>, width: f64) -> Vec<Self> {
        let (mut left, mut line) = (0.0, 0);
        let place = |(class, name): (String, &'a str)| {
            let own = SWATCH + name.chars().count() as f64 * LETTER;
            if left > 0.0 && left + own > width {
                (left, line) = (0.0, line + 1);
            }
            let entry = Self { class, name, left, line };
            left += own;
            entry
        };
        entries.into_iter().map(place).collect()
    }

    /// Where its line ends, below the first line's beginning.
    pub(super) fn bottom(&self) -> f64 {
        ROW * (self.line + 1) as f64
    }

    pub(super) fn draw(&self, top: f64) -> Markup {
        let middle = top + ROW * (self.line as f64 + 0.5);
        html! {
            @if self.class == PAPER { path.paper d=(marks::diamond(self.left + 5.0, middle)) {} }
            @else { rect class={ "bar " (self.class) } x=(px(self.left)) y=(px(middle - 5.0)) width="10" height="10" rx="2" {} }
            text.label x=(px(self.left + 16.0)) y=(px(middle + 4.0)) { (self.name) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::chart;
    use super::*;
    use crate::chart::{Across, Mark, Point, Series};

    #[test]
    fn a_picture_is_a_document_with_its_own_style_that_needs_nothing_else() {
        let svg = picture(&[chart(), chart()], "a \"gain\" & <more>");
        let document = roxmltree::Document::parse(&svg).expect("well-formed XML");
        let root = document.root_element();
        assert_eq!(root.attribute("aria-label"), Some("a \"gain\" & <more>"));
        assert_eq!(root.tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
        assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("class=\"ground\""));
        for outside in ["href", "url(", "@import", "<script", "<image"] {
            assert!(!svg.contains(outside), "{outside}");
        }
    }

    #[test]
    fn every_class_of_a_picture_is_in_its_style() {
        let mut given = chart();
        given.series[1].mark = Mark::Steps(0.1);
        let svg = picture(&[given], "alt");
        let document = roxmltree::Document::parse(&svg).unwrap();
        let classes = document.descendants().filter_map(|node| node.attribute("class"));
        for class in classes.flat_map(|classes| classes.split(' ')) {
            assert!(STYLE.contains(&format!(".{class}")), "{class}");
        }
    }

    /// Left edges of the parts of a picture.
    fn lefts(charts: &[Chart]) -> Vec<f64> {
        let svg = picture(charts, "");
        let document = roxmltree::Document::parse(&svg).unwrap();
        let parts = document.root_element().children().filter(|node| node.has_tag_name("g"));
        let left = |text: &str| text["translate(".len()..].split(' ').next()?.parse().ok();
        parts.map(|part| part.attribute("transform").and_then(left).unwrap()).collect()
    }

    #[test]
    fn charts_stand_beside_each_other_if_they_have_room() {
        assert_eq!(lefts(&[chart(), chart(), chart()]), [GAP, 2.0 * GAP + HALF, GAP]);
        let labels = (0..30).map(|n| format!("a-long-label-{n}")).collect();
        let wide = Chart { across: Across::Labels(labels), ..chart() };
        assert_eq!(lefts(&[chart(), wide]), [GAP, GAP], "one has not");
    }

    #[test]
    fn a_legend_that_is_too_long_has_more_lines() {
        let series = |n: usize| Series {
            name: format!("a series of number {n}"),
            points: vec![Point::default()],
            ..Series::default()
        };
        let many = Chart { series: (0..6).map(series).collect(), ..chart() };
        let entries = Entry::all(&many, HALF);
        assert!(entries.last().is_some_and(|entry| entry.line > 0 && entry.name == PAPER));
        let ends = |entry: &Entry<'_>| entry.left + entry.name.len() as f64 * LETTER;
        assert!(entries.iter().all(|entry| ends(entry) <= HALF));
        assert_eq!(
            Part::of(&many, HALF).head() - Part::of(&chart(), HALF).head(),
            ROW * entries[6].line as f64
        );
    }
}
