//! `floodway top`: what VMs do, the busiest first, again and again.
//!
//! # Theory of operation
//! Three threads tell the main one what happens: one asks the switch at each interval, one reads keys, one waits for signals. The main thread
//! alone has the [model], the user's [choices](app) and the terminal, and waits for nobody else: a switch that does not answer keeps no key from being heard.
//! While it does not, the last picture stays, with a line that says why, and it is asked again at each interval.
//!
//! The terminal is restored on each way out: by a key, by a signal, by an error, and by a panic of any thread, after which the command ends.
//!
//! Asked for at each interval: [`Activity`](floodway_switch::api::activity::Activity), whose size grows with the number of ports only; a page of connections of the selected
//! port; and from the kernel, what the vCPUs of the ports' VMMs have run and waited.

mod app;
mod canvas;
mod columns;
mod details;
mod help;
mod history;
pub mod model;
mod once;
mod order;
pub mod recent;
pub mod sample;
pub mod sampler;
mod style;
mod terminal;
mod units;
mod view;
pub mod wait;

#[cfg(test)]
mod tests;

use std::env;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::TopArgs;
use app::{App, Lost, Next};
use model::Model;
use sample::Sample;
use sampler::{Sampler, Wish};
use style::Look;
use terminal::Terminal;

/// How often the picture is drawn if nothing happens, for the time since the last answer.
const IDLE: Duration = Duration::from_secs(1);

/// What happens.
enum Happened {
    /// The switch answered, or did not.
    Answer(Result<Box<Sample>, String>),
    /// The user pressed a key.
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// A signal asks us to end.
    Stop,
    /// A thread cannot go on.
    Failed(String),
}

/// Shows what ports do until the user has seen enough, or prints it.
///
/// # Errors
/// The terminal cannot be used; for what is printed, the switch does not answer.
pub fn top(args: &TopArgs) -> anyhow::Result<()> {
    if args.once || args.json {
        return once::print(args);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("top needs a terminal (--once prints the ports once, --once --json for scripts)");
    }
    show(args)
}

fn show(args: &TopArgs) -> anyhow::Result<()> {
    let (tell, happened) = mpsc::channel();
    let mut app = App::new(args.interval);
    app.order.key = args.sort;
    app.filter.clone_from(&args.filter);
    // Before the terminal is touched: signals that come from now on are heard.
    listen_to_signals(tell.clone())?;
    let mut sampler = Sampler::new(&args.control.path)?;
    // A switch that does not answer at all is an error as for any command; one that stops answering is waited for.
    let mut model = Model::default();
    model.take(sampler.look(None)?);
    let wish = Wish { interval: args.interval, flows_of: None };
    let ask = sampler.spawn(wish, tell.clone()).context("cannot start a thread")?;
    let look = Look::of_environment(|name| env::var(name).ok());
    let mut screen = Screen { terminal: Terminal::open()?, look, model, app };
    listen_to_keys(tell);
    let mut asked = None;
    loop {
        screen.draw()?;
        match happened.recv_timeout(IDLE) {
            Ok(first) => {
                // One picture for all that has happened, however many keys repeat.
                for happened in std::iter::once(first).chain(happened.try_iter()) {
                    if screen.on(happened)? == Next::Quit {
                        return Ok(());
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => screen.tick(),
            Err(RecvTimeoutError::Disconnected) => bail!("nobody asks the switch any more"),
        }
        let wish = screen.wish();
        if asked.as_ref() != Some(&wish) {
            asked = Some(wish.clone());
            // It has ended, and has given the reason.
            let _ = ask.send(wish);
        }
    }
}

/// All that the main thread has.
struct Screen {
    terminal: Terminal,
    look: Look,
    model: Model,
    app: App,
}

impl Screen {
    fn draw(&mut self) -> anyhow::Result<()> {
        let Self { terminal, look, model, app } = self;
        Ok(terminal.draw(|buffer| view::draw(buffer, *look, model, app))?)
    }

    fn on(&mut self, happened: Happened) -> anyhow::Result<Next> {
        match happened {
            Happened::Answer(Ok(sample)) => {
                self.terminal.answered = Some(Instant::now());
                self.app.lost = None;
                if !self.app.is_paused {
                    self.model.take(*sample);
                }
            }
            Happened::Answer(Err(why)) => {
                self.app.lost = Some(Lost { why, since: None });
                self.tick();
            }
            Happened::Key(key) => return Ok(self.app.on_key(key, &self.model)),
            Happened::Resized => {}
            Happened::Stop => return Ok(Next::Quit),
            Happened::Failed(why) => bail!(why),
        }
        Ok(Next::Draw)
    }

    /// Some time has passed.
    fn tick(&mut self) {
        if let Some(lost) = &mut self.app.lost {
            lost.since = self.terminal.answered.map(|at| at.elapsed());
        }
    }

    fn wish(&self) -> Wish {
        let flows_of = self.app.wants_flows_of().map(str::to_owned);
        Wish { interval: self.app.interval, flows_of }
    }
}

fn listen_to_signals(tell: Sender<Happened>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let listen = move || {
        for _ in signals.forever() {
            if tell.send(Happened::Stop).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
    Ok(())
}

/// Tells of keys and sizes until the terminal is gone.
fn listen_to_keys(tell: Sender<Happened>) {
    thread::spawn(move || {
        loop {
            let happened = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Happened::Key(key),
                Ok(Event::Resize(_, _)) => Happened::Resized,
                Ok(_) => continue,
                Err(error) => Happened::Failed(format!("cannot read keys: {error}")),
            };
            let is_last = matches!(happened, Happened::Failed(_));
            if tell.send(happened).is_err() || is_last {
                return;
            }
        }
    });
}
