//! Colours and glyphs.
//!
//! Text keeps the terminal's own colours, which are readable whether it is dark or light. Only what is wrong is red, and nothing is said by a colour alone. With
//! `NO_COLOR` (<https://no-color.org>) there is none; bold, dim and reversed text stay.

use ratatui::style::{Color, Modifier, Style};

/// How things are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Colours may be used.
    pub colours: bool,
    /// Bars for an eighth, two eighths and so on.
    pub bars: [&'static str; 8],
    /// A horizontal line's character.
    pub line: &'static str,
}

impl Look {
    /// Bars and lines of Unicode, or of ASCII only.
    #[must_use]
    pub const fn new(colours: bool, unicode: bool) -> Self {
        if unicode {
            let bars = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
            Self { colours, bars, line: "─" }
        } else {
            let bars = ["_", ".", ":", "-", "=", "+", "*", "#"];
            Self { colours, bars, line: "-" }
        }
    }

    /// What these environment variables ask for; `variable` returns one, if it is set.
    #[must_use]
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        // In the order of locale(7).
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let locale = locale.unwrap_or_default().to_lowercase();
        let unicode = locale.contains("utf-8") || locale.contains("utf8");
        Self::new(set("NO_COLOR").is_none(), unicode)
    }

    /// What is wrong.
    #[must_use]
    pub fn alarm(&self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colours { style.fg(Color::Red) } else { style }
    }

    /// What is of less interest.
    #[must_use]
    pub fn quiet(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// What is of more.
    #[must_use]
    pub fn strong(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// A line that stands out.
    #[must_use]
    pub fn reversed(&self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// A minute as bars, the highest of them for `peak`; blank where nothing is known. What is not zero is seen.
    #[must_use]
    pub fn sparkline(&self, cells: &[Option<f64>], peak: f64) -> String {
        let bar = |cell: &Option<f64>| match cell {
            None => " ",
            Some(value) if *value <= 0.0 || peak <= 0.0 => self.bars[0],
            Some(value) => {
                let eighth = (value / peak * 7.0).ceil().clamp(1.0, 7.0);
                self.bars[eighth as usize]
            }
        };
        cells.iter().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(variables: &[(&str, &str)]) -> Look {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
        Look::of_environment(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn no_color_means_no_colour() {
        assert!(look(&[]).colours);
        assert!(look(&[("NO_COLOR", "")]).colours, "as no-color.org has it");
        let look = look(&[("NO_COLOR", "1")]);
        assert_eq!((look.alarm().fg, look.alarm().bg), (None, None));
    }

    #[test]
    fn bars_are_what_the_locale_has() {
        assert_eq!(look(&[("LANG", "de_DE.UTF-8")]).line, "─");
        assert_eq!(look(&[("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")]).line, "-");
        assert_eq!(look(&[("LANG", "C.utf8"), ("LC_ALL", "")]).line, "─");
        assert_eq!(look(&[]).line, "-");
    }

    #[test]
    fn what_is_little_differs_from_nothing_and_from_what_is_not_known() {
        let look = Look::new(true, true);
        let cells = [None, Some(0.0), Some(0.001), Some(4.0), Some(7.0)];
        assert_eq!(look.sparkline(&cells, 7.0), " ▁▂▅█");
        assert_eq!(look.sparkline(&[Some(0.0)], 0.0), "▁");
    }
}
