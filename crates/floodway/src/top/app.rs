//! What the user has chosen to see, and what keys change of it.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::{Model, Row};
use super::order::{Key, Order};

/// Intervals that `+` and `-` go through, in milliseconds.
const INTERVALS: [u64; 7] = [250, 500, 1000, 2000, 5000, 10_000, 30_000];
/// Longest filter that can be typed.
const MAX_FILTER: usize = 40;

/// What sorting goes through, in the order of the columns.
pub const KEYS: [Key; 14] = [
    Key::Name,
    Key::Tx,
    Key::Rx,
    Key::TxFrames,
    Key::RxFrames,
    Key::Stored,
    Key::Kept,
    Key::Repairs,
    Key::Delay,
    Key::Drops,
    Key::Work,
    Key::Wait,
    Key::Saved,
    Key::Rate,
];

/// What is to be done after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, but the screen may look different.
    Draw,
    /// Ask the switch at another interval, or for another port's connections.
    Ask,
    /// End.
    Quit,
}

/// Why there is no new sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// What the client says.
    pub why: String,
    /// How long the last sample ago is; none if there was none.
    pub since: Option<Duration>,
}

/// What the user has chosen to see. See the module.
#[derive(Clone, Debug, Default)]
pub struct App {
    /// How rows are sorted.
    pub order: Order,
    /// Which rows are shown.
    pub filter: String,
    /// The filter is being typed.
    pub is_typing: bool,
    /// The selected port.
    pub selected: Option<String>,
    /// Where the selected port was when it was last seen.
    place: usize,
    /// First row on the screen.
    pub top: usize,
    /// Rows that fit on the screen.
    pub page: usize,
    /// The selected port's details are hidden.
    pub is_terse: bool,
    /// The keys are shown.
    pub is_helping: bool,
    /// New samples are not shown.
    pub is_paused: bool,
    /// Time between two looks.
    pub interval: Duration,
    /// The switch does not answer.
    pub lost: Option<Lost>,
}

impl App {
    /// A view that is renewed at that interval.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self { interval, page: 1, ..Self::default() }
    }

    /// The rows to show, in order.
    #[must_use]
    pub fn rows<'a>(&self, model: &'a Model) -> Vec<&'a Row> {
        self.order.of(model.rows(), &self.filter)
    }

    /// Keeps the selection on its port, or where that was, and on the screen.
    pub fn settle(&mut self, rows: &[&Row]) {
        let is_selected = |row: &&Row| Some(&row.name) == self.selected.as_ref();
        let last = rows.len().saturating_sub(1);
        self.place = rows.iter().position(is_selected).unwrap_or(self.place.min(last));
        self.selected = rows.get(self.place).map(|row| row.name.clone());
        let page = self.page.max(1);
        let first = (self.place + 1).saturating_sub(page);
        self.top = self.top.clamp(first, self.place).min(rows.len().saturating_sub(page));
    }

    /// Takes a key.
    pub fn on_key(&mut self, key: KeyEvent, model: &Model) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Next::Quit } else { Next::Draw };
        }
        // Escape and a key at once, from some terminals: neither is meant.
        if key.modifiers.contains(KeyModifiers::ALT) {
            return Next::Draw;
        }
        if self.is_typing {
            return self.on_typed(key.code, model);
        }
        if self.is_helping {
            self.is_helping = false;
            return if key.code == KeyCode::Char('q') { Next::Quit } else { Next::Draw };
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?' | 'h') => self.is_helping = true,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => return self.on_filter(String::new(), model),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('+' | '=') => return self.pace(false),
            KeyCode::Char('-') => return self.pace(true),
            KeyCode::Enter => {
                self.is_terse = !self.is_terse;
                return Next::Ask;
            }
            code => return self.on_order_key(code, model),
        }
        Next::Draw
    }

    fn on_order_key(&mut self, code: KeyCode, model: &Model) -> Next {
        match code {
            KeyCode::Char('<' | ',') | KeyCode::Left => self.sort_beside(KEYS.len() - 1),
            KeyCode::Char('>' | '.') | KeyCode::Right => self.sort_beside(1),
            KeyCode::Char('r') => self.order.reversed = !self.order.reversed,
            KeyCode::Char('n') => self.sort(Key::Name),
            KeyCode::Char('b') => self.sort(Key::Rate),
            KeyCode::Char('d') => self.sort(Key::Drops),
            KeyCode::Char('l') => self.sort(Key::Delay),
            KeyCode::Char('w') => self.sort(Key::Wait),
            KeyCode::Char('c') => self.sort(Key::Work),
            code => return self.on_move(code, model),
        }
        self.top = 0;
        self.renew(model);
        Next::Draw
    }

    fn on_move(&mut self, code: KeyCode, model: &Model) -> Next {
        let place = match code {
            KeyCode::Up | KeyCode::Char('k') => self.place.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.place + 1,
            KeyCode::PageUp => self.place.saturating_sub(self.page),
            KeyCode::PageDown => self.place + self.page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => usize::MAX,
            _ => return Next::Draw,
        };
        self.selected = None;
        self.place = place;
        self.renew(model);
        Next::Ask
    }

    fn on_typed(&mut self, code: KeyCode, model: &Model) -> Next {
        let mut filter = self.filter.clone();
        match code {
            KeyCode::Enter => {
                self.is_typing = false;
                return Next::Draw;
            }
            KeyCode::Esc => {
                self.is_typing = false;
                filter.clear();
            }
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Char(c) if filter.chars().count() < MAX_FILTER => filter.push(c),
            _ => return Next::Draw,
        }
        self.on_filter(filter, model)
    }

    fn on_filter(&mut self, filter: String, model: &Model) -> Next {
        self.filter = filter;
        self.renew(model);
        Next::Ask
    }

    fn renew(&mut self, model: &Model) {
        let rows = self.rows(model);
        self.settle(&rows);
    }

    fn sort(&mut self, key: Key) {
        self.order = Order { key, reversed: false };
    }

    /// Sorts by what is so many columns to the right, round about.
    fn sort_beside(&mut self, columns: usize) {
        let place = KEYS.iter().position(|&key| key == self.order.key).unwrap_or(0);
        self.sort(KEYS[(place + columns) % KEYS.len()]);
    }

    /// Looks less often if `slower`, more often otherwise.
    fn pace(&mut self, slower: bool) -> Next {
        let now = self.interval.as_millis() as u64;
        let next = if slower {
            INTERVALS.iter().find(|&&ms| ms > now)
        } else {
            INTERVALS.iter().rev().find(|&&ms| ms < now)
        };
        self.interval = Duration::from_millis(next.copied().unwrap_or(now));
        Next::Ask
    }

    /// The port whose connections are wanted; none if no details are shown.
    #[must_use]
    pub fn wants_flows_of(&self) -> Option<&str> {
        self.selected.as_deref().filter(|_| !self.is_terse)
    }
}

#[cfg(test)]
mod tests {
    use floodway_switch::api::activity::{Activity, PortActivity};

    use super::*;
    use crate::top::sample::Sample;

    /// A model with that many ports, p0 to pN.
    fn model(ports: usize) -> Model {
        let port = |n| PortActivity { name: format!("p{n}"), ..PortActivity::default() };
        let activity = Activity { ports: (0..ports).map(port).collect(), ..Activity::default() };
        let mut model = Model::default();
        model.take(Sample { activity, ..Sample::default() });
        model
    }

    /// A view of `ports` ports of which `page` fit on the screen, after these keys.
    fn after(ports: usize, page: usize, keys: &[KeyCode]) -> (App, Next) {
        let model = model(ports);
        let mut app = App { page, ..App::new(Duration::from_secs(1)) };
        app.renew(&model);
        let mut next = Next::Draw;
        for &code in keys {
            next = app.on_key(KeyEvent::new(code, KeyModifiers::NONE), &model);
        }
        (app, next)
    }

    fn characters(text: &str) -> Vec<KeyCode> {
        text.chars().map(KeyCode::Char).collect()
    }

    #[test]
    fn the_selection_stays_among_the_rows_and_on_the_screen() {
        let moves = [
            (KeyCode::Down, "p1", 0),
            (KeyCode::Down, "p2", 0),
            (KeyCode::Down, "p3", 1),
            (KeyCode::End, "p9", 7),
            (KeyCode::Down, "p9", 7),
            (KeyCode::PageUp, "p6", 6),
            (KeyCode::Home, "p0", 0),
            (KeyCode::Up, "p0", 0),
        ];
        for n in 0..moves.len() {
            let keys: Vec<_> = moves[..=n].iter().map(|&(key, _, _)| key).collect();
            let (app, next) = after(10, 3, &keys);
            let (_, selected, top) = moves[n];
            assert_eq!((app.selected.as_deref(), app.top), (Some(selected), top), "{keys:?}");
            assert_eq!(next, Next::Ask, "its connections are to be asked for");
        }
    }

    #[test]
    fn a_selected_port_is_followed_and_one_that_goes_leaves_its_place() {
        let (mut app, _) = after(5, 5, &[KeyCode::End]);
        let (more, fewer, none) = (model(9), model(2), model(0));
        app.renew(&more);
        assert_eq!(app.selected.as_deref(), Some("p4"));
        app.renew(&fewer);
        assert_eq!(app.selected.as_deref(), Some("p1"));
        app.renew(&none);
        assert_eq!((app.selected.as_deref(), app.top), (None, 0));
    }

    #[test]
    fn a_filter_is_typed_kept_and_taken_away() {
        let (app, next) = after(20, 5, &characters("/p1q"));
        assert_eq!((&*app.filter, app.is_typing, next), ("p1q", true, Next::Ask));
        let mut keys = characters("/p1q");
        keys.extend([KeyCode::Backspace, KeyCode::Enter]);
        let (app, _) = after(20, 5, &keys);
        assert_eq!((&*app.filter, app.is_typing), ("p1", false));
        assert_eq!(app.selected.as_deref(), Some("p1"));
        keys.push(KeyCode::Esc);
        assert_eq!(after(20, 5, &keys).0.filter, "");
    }

    #[test]
    fn sorting_goes_round_all_columns() {
        let mut keys = Vec::new();
        for n in 1..=KEYS.len() {
            keys.push(KeyCode::Right);
            let (app, _) = after(2, 2, &keys);
            assert_eq!(app.order.key, KEYS[(KEYS.len() - 1 + n) % KEYS.len()]);
        }
        let (app, _) = after(2, 2, &characters("<<r"));
        assert_eq!(app.order, Order { key: Key::Wait, reversed: true });
        let (app, _) = after(2, 2, &characters("rd"));
        assert_eq!(app.order, Order { key: Key::Drops, reversed: false });
    }

    #[test]
    fn keys_that_end_it_and_keys_that_do_not() {
        assert_eq!(after(1, 1, &characters("q")).1, Next::Quit);
        assert_eq!(after(1, 1, &characters("?q")).1, Next::Quit);
        assert_ne!(after(1, 1, &characters("/q")).1, Next::Quit);
        let (mut app, _) = after(1, 1, &characters("/"));
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.on_key(control_c, &model(1)), Next::Quit);
    }

    #[test]
    fn the_interval_has_bounds() {
        let (app, next) = after(1, 1, &characters("++++++"));
        assert_eq!((app.interval, next), (Duration::from_millis(250), Next::Ask));
        let (app, _) = after(1, 1, &characters("---------"));
        assert_eq!(app.interval, Duration::from_secs(30));
    }

    #[test]
    fn connections_are_wanted_only_while_they_are_shown() {
        assert_eq!(after(2, 2, &[KeyCode::Down]).0.wants_flows_of(), Some("p1"));
        assert_eq!(after(2, 2, &[KeyCode::Down, KeyCode::Enter]).0.wants_flows_of(), None);
    }
}
