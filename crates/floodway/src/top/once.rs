//! What `floodway top` prints where there is no terminal: the rates of one interval, or JSON for each.

use std::io::{self, Write};
use std::thread;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde::Serialize;

use super::app::App;
use super::model::{DropRate, Model, Row, Total, WorkerRow};
use super::order::Key;
use super::sampler::Sampler;
use super::style::Look;
use super::units::percent;
use super::{details, view};
use crate::cli::TopArgs;

/// Columns of the text.
const WIDTH: u16 = 120;
/// Lines beside those of ports, at most.
const LINES: usize = 8;
/// Lines about what is wrong, at most.
const MOST_FINDINGS: usize = 20;

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct Document<'a> {
    version: &'a str,
    pid: u32,
    uptime_s: f64,
    total: Total,
    workers: &'a [WorkerRow],
    uplinks: &'a [Total],
    ports: Vec<&'a Row>,
}

/// Prints what the switch does: once, or for each interval until nobody reads any more.
///
/// # Errors
/// The switch does not answer, or standard output takes no more.
pub fn print(args: &TopArgs) -> anyhow::Result<()> {
    let mut sampler = Sampler::new(&args.control.path)?;
    let mut app = App::new(args.interval);
    app.is_terse = true;
    app.order.key = args.sort;
    app.filter.clone_from(&args.filter);
    let mut model = Model::default();
    model.take(sampler.look(None)?);
    loop {
        thread::sleep(args.interval);
        model.take(sampler.look(None)?);
        let text = match (args.json, args.once) {
            (false, _) => text(&model, &mut app),
            (true, true) => serde_json::to_string_pretty(&document(&model, &app))?,
            (true, false) => serde_json::to_string(&document(&model, &app))?,
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()?;
        if args.once {
            return Ok(());
        }
    }
}

fn document<'a>(model: &'a Model, app: &App) -> Document<'a> {
    let switch = model.activity().map(|activity| &activity.switch);
    Document {
        version: switch.map_or("", |switch| &switch.version),
        pid: switch.map_or(0, |switch| switch.pid),
        uptime_s: switch.map_or(0.0, |switch| switch.uptime_s),
        total: model.total(),
        workers: model.workers(),
        uplinks: model.uplinks(),
        ports: app.rows(model),
    }
}

/// The picture as text, with all ports and without keys, and what is wrong.
pub fn text(model: &Model, app: &mut App) -> String {
    let height = u16::try_from(app.rows(model).len() + LINES).unwrap_or(u16::MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, WIDTH, height));
    view::draw(&mut buffer, Look::new(false, true), model, app);
    let lines: Vec<String> = (0..height - 1).map(|y| line(&buffer, y)).collect();
    let findings = findings(model, app);
    let blank = if findings.is_empty() { "" } else { "\n\n" };
    format!("{}{blank}{}", lines.join("\n").trim_end(), findings.join("\n"))
}

/// What is wrong with the ports that are shown, in their order, and with uplinks: a line each.
fn findings(model: &Model, app: &App) -> Vec<String> {
    let dropped = |name: &str, drops: &[DropRate]| {
        let line = |drop| format!("{name}: dropped {}", details::with_cause(drop));
        drops.iter().map(line).collect::<Vec<_>>()
    };
    let mut lines = Vec::new();
    for row in app.rows(model) {
        lines.extend(dropped(&row.name, &row.drops));
        if let Some(wait) = row.vcpu_wait.filter(|_| view::is_alarming(Key::Wait, row)) {
            lines.push(format!("{}: vCPUs wait for a CPU, {}", row.name, percent(wait)));
        }
    }
    lines.extend(model.uplinks().iter().flat_map(|uplink| dropped(&uplink.name, &uplink.drops)));
    lines.truncate(MOST_FINDINGS);
    lines
}

/// A line of a picture, without spaces at its end.
pub fn line(buffer: &Buffer, y: u16) -> String {
    let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
    cells.collect::<String>().trim_end().to_owned()
}
