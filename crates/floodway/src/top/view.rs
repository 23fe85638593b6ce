//! Draws the model as the user has chosen to see it.
//!
//! From the top: what runs, totals, workers, the table, the selected port, and one line with keys, the filter or why there is nothing new. Only the rows
//! on the screen are formatted, so that the number of ports does not matter. What has no room is left out, the least important first.

use clap::ValueEnum;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::app::App;
use super::canvas::Canvas;
use super::columns::{self, Column};
use super::details;
use super::help;
use super::model::{Model, Row, Total};
use super::order::{Key, state};
use super::style::Look;
use super::units::{decimal, percent};

/// Keys, the most important first.
const KEYS: &str = "q quit  ? help  / filter  arrows select, sort  r reverse  p pause  +- interval";
/// Fewer lines have no room for details of the selected port.
const LEAST_HEIGHT_FOR_DETAILS: u16 = 18;

/// Draws all of it. What fits on the screen is written down in `app`.
pub fn draw(buffer: &mut Buffer, look: Look, model: &Model, app: &mut App) {
    let area = buffer.area;
    let mut canvas = Canvas { buffer, area, look };
    let last =
        Rect { y: area.y + area.height.saturating_sub(1), height: area.height.min(1), ..area };
    canvas.area.height = area.height.saturating_sub(1);
    if app.is_helping {
        help::draw(&mut canvas);
    } else {
        heading(&mut canvas, model, app);
        let has_details = !app.is_terse && area.height >= LEAST_HEIGHT_FOR_DETAILS;
        let below = if has_details { details::HEIGHT } else { 0 };
        let rest = canvas.area.height;
        canvas.area.height = rest.saturating_sub(below);
        let end =
            Rect { y: canvas.area.y + canvas.area.height, height: rest.min(below), ..canvas.area };
        table(&mut canvas, model, app);
        canvas.area = end;
        if has_details {
            details::draw(&mut canvas, model, app);
        }
    }
    canvas.area = last;
    footer(&mut canvas, app);
}

fn heading(canvas: &mut Canvas<'_>, model: &Model, app: &App) {
    title(canvas, model, app);
    let total = model.total();
    let text = format!(
        "ports    to guests {}  from guests {}  bit/s  drops {}/s",
        rate(total.rx_bps),
        rate(total.tx_bps),
        rate(total.drops_per_s)
    );
    let drops = total.drops_per_s.unwrap_or(0.0) > 0.0;
    canvas.line(&text, if drops { canvas.look.strong() } else { Style::new() });
    uplinks(canvas, model.uplinks());
    workers(canvas, model);
}

fn title(canvas: &mut Canvas<'_>, model: &Model, app: &App) {
    let mut text = "floodway".to_owned();
    if let Some(activity) = model.activity() {
        let running = model.rows().iter().filter(|row| state(row) == "running").count();
        let switch = &activity.switch;
        text = format!(
            "floodway {}  up {}  {} of {} ports running",
            switch.version,
            crate::table::duration(switch.uptime_s),
            running,
            model.rows().len()
        );
        if model.restarts() > 0 {
            text += &format!("  restarted {}x", model.restarts());
        }
    }
    canvas.put(0, &text, canvas.look.strong());
    let key = app.order.key.to_possible_value();
    let by = key.as_ref().map_or("", |key| key.get_name());
    let reversed = if app.order.reversed { " reversed" } else { "" };
    let pace = if app.is_paused { "PAUSED".to_owned() } else { format!("{:?}", app.interval) };
    let right = format!("by {by}{reversed}  {pace}");
    canvas.put_right(text.chars().count(), &right, Style::new());
    canvas.next_line();
}

fn uplinks(canvas: &mut Canvas<'_>, uplinks: &[Total]) {
    let one = |uplink: &Total| {
        let reason = uplink.drops.first().map(|drop| format!(" {}", drop.reason));
        format!(
            "{}  in {}  out {}  drops {}/s{}  work {}",
            uplink.name,
            rate(uplink.rx_bps),
            rate(uplink.tx_bps),
            rate(uplink.drops_per_s),
            reason.unwrap_or_default(),
            percent(uplink.work_share)
        )
    };
    if !uplinks.is_empty() {
        list(canvas, "uplinks  ", &uplinks.iter().map(one).collect::<Vec<_>>());
    }
}

fn workers(canvas: &mut Canvas<'_>, model: &Model) {
    let one = |worker: &super::model::WorkerRow| {
        let share = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), percent);
        format!("{}: {} awake, {} busy", worker.index, share(worker.awake), share(worker.busy))
    };
    let workers: Vec<String> = model.workers().iter().map(one).collect();
    list(canvas, "workers  ", &workers);
}

/// A line with as many entries as fit, and how many others there are.
fn list(canvas: &mut Canvas<'_>, name: &str, entries: &[String]) {
    let width = usize::from(canvas.area.width);
    let mut text = name.to_owned();
    for (n, entry) in entries.iter().enumerate() {
        let rest = entries.len() - n - 1;
        let room = if rest > 0 { " +1000".len() } else { 0 };
        if n > 0 && text.chars().count() + 3 + entry.chars().count() + room > width {
            text += &format!("  +{}", rest + 1);
            break;
        }
        if n > 0 {
            text += "   ";
        }
        text += entry;
    }
    canvas.line(&text, Style::new());
}

fn table(canvas: &mut Canvas<'_>, model: &Model, app: &mut App) {
    let columns = columns::fit(usize::from(canvas.area.width));
    canvas.paint(canvas.look.strong());
    let mut x = 0;
    for column in &columns {
        let text = aligned(column, column.title);
        let is_sorted = column.key == app.order.key;
        let style = canvas.look.strong();
        canvas.put(x, &text, if is_sorted { style.patch(canvas.look.reversed()) } else { style });
        x += column.width + 1;
    }
    canvas.next_line();
    app.page = usize::from(canvas.area.height).max(1);
    let rows = app.rows(model);
    app.settle(&rows);
    if rows.is_empty() && model.activity().is_some() {
        let why = if app.filter.is_empty() { "no ports" } else { "no port fits the filter" };
        canvas.line(why, canvas.look.quiet());
    }
    for row in rows.iter().skip(app.top).take(usize::from(canvas.area.height)) {
        port(canvas, model, app, row, &columns);
    }
}

fn port(canvas: &mut Canvas<'_>, model: &Model, app: &App, row: &Row, columns: &[Column]) {
    let is_selected = app.selected.as_ref() == Some(&row.name);
    let is_old = app.lost.is_some() || state(row) != "running";
    let line = match (is_selected, is_old) {
        (true, _) => canvas.look.reversed(),
        (false, true) => canvas.look.quiet(),
        (false, false) => Style::new(),
    };
    canvas.paint(line);
    let mut x = 0;
    for column in columns {
        let text = match column.key {
            Key::Name => name(row, column.width),
            Key::Rate => minute(canvas.look, model, row, column.width),
            key => aligned(column, &columns::number(key, row)),
        };
        let style =
            if is_alarming(column.key, row) { line.patch(canvas.look.alarm()) } else { line };
        canvas.put(x, &text, style);
        x += column.width + 1;
    }
    canvas.next_line();
}

/// The name with its state, cut at its end.
fn name(row: &Row, width: usize) -> String {
    let mark = match state(row) {
        "running" => ' ',
        "connected" => '~',
        "quarantined" => '!',
        _ => '-',
    };
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let name: String = row.name.chars().map(printable).take(width - 1).collect();
    format!("{mark}{name}")
}

fn minute(look: Look, model: &Model, row: &Row, width: usize) -> String {
    let Some(history) = model.history(&row.name) else { return String::new() };
    look.sparkline(&history.bps.cells(width), history.bps.peak().unwrap_or(0.0))
}

/// What an operator should look at.
pub fn is_alarming(key: Key, row: &Row) -> bool {
    let over = |value: Option<f64>, limit: f64| value.is_some_and(|value| value > limit);
    match key {
        Key::Drops => over(row.drops_per_s, 0.0),
        Key::Delay => over(row.delay_s, 0.1),
        Key::Wait => over(row.vcpu_wait, 0.3),
        Key::Name => row.quarantined,
        _ => false,
    }
}

/// Names and minutes are on the left of their column, numbers on its right.
fn aligned(column: &Column, text: &str) -> String {
    let width = column.width;
    match column.key {
        Key::Name | Key::Rate => format!("{text:<width$}"),
        _ => format!("{text:>width$}"),
    }
}

/// A rate, or that there is none yet.
fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), decimal)
}

fn footer(canvas: &mut Canvas<'_>, app: &App) {
    if let Some(lost) = &app.lost {
        let since = lost.since.map(|ago| format!(", last answer {} s ago", ago.as_secs()));
        let text = format!("NO ANSWER{}: {}", since.unwrap_or_default(), lost.why);
        let style = canvas.look.alarm().patch(canvas.look.reversed());
        canvas.paint(style);
        canvas.put(0, &text, style);
    } else if app.is_typing {
        canvas.put(0, &format!("filter: {}_", app.filter), canvas.look.strong());
    } else if !app.filter.is_empty() {
        let text = format!("filter: {}   / change  Esc show all  q quit", app.filter);
        canvas.put(0, &text, canvas.look.strong());
    } else {
        canvas.put(0, KEYS, canvas.look.quiet());
    }
}
