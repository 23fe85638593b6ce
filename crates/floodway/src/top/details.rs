//! The selected port: its last minute, what is dropped and why, its connections.

use floodway_switch::api::diagnosis::cause;
use ratatui::style::Style;

use super::app::App;
use super::canvas::Canvas;
use super::history::{History, SECONDS};
use super::model::{DropRate, Model, Row};
use super::order::state;
use super::units::{binary, decimal, delay, percent};

/// Lines that it takes.
pub const HEIGHT: u16 = 6;
/// Characters before a minute.
const LABEL: usize = 9;
/// Characters behind it.
const FIGURES: usize = 11;

/// Draws it into the canvas.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, app: &App) {
    let selected = app.selected.as_deref();
    let row = model.rows().iter().find(|row| Some(&*row.name) == selected);
    let Some(row) = row else { return };
    rule(canvas, row);
    if let Some(history) = model.history(&row.name) {
        minute(canvas, "bit/s", &history.bps, decimal);
        minute(canvas, "drops/s", &history.drops, decimal);
        minute(canvas, "delay", &history.delay, delay);
    }
    dropped(canvas, row);
    canvas.line(&offload(model, row), Style::new());
}

fn rule(canvas: &mut Canvas<'_>, row: &Row) {
    let vmm = row.front_end_pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
    let load = row.vcpu_run.zip(row.vcpu_wait);
    let load =
        load.map(|(run, wait)| format!(", vCPUs run {} wait {}", percent(run), percent(wait)));
    let load = load.unwrap_or_default();
    let text = format!(" {}: {}, worker {}{vmm}{load} ", row.name, state(row), row.worker);
    let width = usize::from(canvas.area.width);
    canvas.put(0, &canvas.look.line.repeat(width), canvas.look.quiet());
    canvas.put(2, &text, canvas.look.strong());
    canvas.next_line();
}

fn minute(canvas: &mut Canvas<'_>, name: &str, history: &History, format: fn(f64) -> String) {
    let width = usize::from(canvas.area.width);
    let cells = width.saturating_sub(LABEL + FIGURES).min(SECONDS);
    let peak = history.peak();
    let line = canvas.look.sparkline(&history.cells(cells), peak.unwrap_or(0.0));
    canvas.put(0, name, canvas.look.quiet());
    canvas.put(LABEL, &line, Style::new());
    let peak = peak.map_or_else(|| "-".to_owned(), format);
    canvas.put(LABEL + cells + 1, &format!("peak {peak}"), Style::new());
    canvas.next_line();
}

fn dropped(canvas: &mut Canvas<'_>, row: &Row) {
    if row.drops.is_empty() {
        return canvas.line("dropped  nothing", Style::new());
    }
    let text = match &row.drops[..] {
        [only] => with_cause(only),
        several => several.iter().map(drop_rate).collect::<Vec<_>>().join(", "),
    };
    canvas.line(&format!("dropped  {text}"), canvas.look.alarm());
}

/// What is dropped, and how often.
fn drop_rate(drop: &DropRate) -> String {
    format!("{} {} {}/s", drop.direction, drop.reason, decimal(drop.per_s))
}

/// The same, with what is behind it in most cases.
pub fn with_cause(drop: &DropRate) -> String {
    drop_rate(drop) + cause(&drop.reason)
}

fn offload(model: &Model, row: &Row) -> String {
    let offload = &row.offload;
    let halves = match (offload.transmit, offload.receive) {
        (false, false) => return "offload  off".to_owned(),
        (true, false) => "transmit",
        (false, true) => "receive",
        (true, true) => "both ways",
    };
    let draining = if offload.draining { " draining" } else { "" };
    let mut text =
        format!("offload  {halves}{draining}  {} of {} flows", offload.online, offload.flows);
    if let Some(flows) = model.flows(&row.name).filter(|flows| flows.count > 0) {
        // Of more flows than were looked at, these are the least.
        let least = if flows.more { ">" } else { "" };
        for (name, bytes) in
            [("held", flows.held), ("retained", flows.retained), ("kept", flows.kept)]
        {
            text += &format!("  {name} {least}{}", binary(bytes as f64));
        }
        for (n, state) in [(flows.in_loss, "in loss"), (flows.without_buffer, "without buffer")] {
            if n > 0 {
                text += &format!("  {n} {state}");
            }
        }
    }
    text
}
