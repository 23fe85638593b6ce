//! Asks the switch, and writes down what it says.
//!
//! # Theory of operation
//! All ports are looked at each [`INTERVAL`], and closely those ports and connections that a page shows. When a page is opened, what it shows is looked at without waiting for
//! the next interval, unless that was done just before. A switch that does not answer leaves a gap with its reason, and is asked again.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use floodway_switch::api::control::{FlowKey, FlowQuery, FlowStatus, MAX_PAGE};
use floodway_switch::api::events::{EventId, EventQuery};
use floodway_switch::control::{ClientError, ControlClient};
use serde_json::Value;

use super::board::{Board, Subject};
use super::flow_page::key;
use crate::top::model::Model;
use crate::top::recent;
use crate::top::sampler::Sampler;

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// What was looked at since is not looked at again for a page that is opened.
const JUST_NOW_MS: u64 = 400;

/// Starts to ask the switch whose control socket is at `control`.
///
/// # Errors
/// Threads or descriptors have run out.
pub fn start(control: &Path, board: &Arc<Board>) -> anyhow::Result<()> {
    let (ask, asked) = mpsc::channel();
    board.ask(ask);
    let collector = Collector {
        board: Arc::clone(board),
        sampler: Sampler::new(control)?,
        client: ControlClient::new(control)?,
        model: Model::default(),
    };
    thread::Builder::new().name("collector".to_owned()).spawn(move || collector.run(&asked))?;
    let (control, board) = (control.to_owned(), Arc::clone(board));
    thread::Builder::new().name("events".to_owned()).spawn(move || follow(&control, &board))?;
    Ok(())
}

struct Collector {
    board: Arc<Board>,
    sampler: Sampler,
    client: ControlClient,
    model: Model,
}

impl Collector {
    fn run(mut self, asked: &Receiver<Subject>) {
        let mut next = Instant::now();
        loop {
            match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(subject) => self.look_at_once(&subject),
                Err(RecvTimeoutError::Timeout) => {
                    self.look();
                    // After a switch that was slow to answer nothing is made up for.
                    next = (next + INTERVAL).max(Instant::now());
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Looks at all ports, and at what pages show.
    fn look(&mut self) {
        let answer = self.sampler.look(None);
        let time = now();
        match answer {
            Ok(sample) => {
                self.model.take(sample);
                self.board.note_overview(|overview| overview.note(time, &self.model));
                self.board.shown().iter().for_each(|subject| self.look_at(subject));
            }
            // It is not asked for more: each question would wait as long as this one.
            Err(error) => {
                self.board.note_overview(|overview| overview.fail(time, error.to_string()));
                self.board.shown().iter().for_each(|subject| self.fail(subject, &error));
            }
        }
        self.board.forget(time);
    }

    /// Looks at what a page begins to show, unless that was done just now.
    fn look_at_once(&self, subject: &Subject) {
        if self.is_due(subject) {
            self.look_at(subject);
        }
    }

    /// Returns `true` if it was not looked at just now.
    fn is_due(&self, subject: &Subject) -> bool {
        self.board.time(subject).is_none_or(|last| last + JUST_NOW_MS <= now())
    }

    fn look_at(&self, subject: &Subject) {
        match subject {
            Subject::Port(port) => {
                if let Err(error) = self.look_at_port(port) {
                    self.fail(subject, &error);
                }
            }
            Subject::Flow(port, key) if self.is_due(subject) => {
                self.note_flow(port, key, self.client.flow(port, key));
            }
            Subject::Flow(..) | Subject::Overview | Subject::Events => {}
        }
    }

    fn fail(&self, subject: &Subject, error: &ClientError) {
        let problem = error.to_string();
        match subject {
            Subject::Port(port) => self.board.note_port(port, |page| page.fail(now(), problem)),
            Subject::Flow(port, key) => {
                self.board.note_flow(port, key, |page| page.fail(now(), problem));
            }
            Subject::Overview | Subject::Events => {}
        }
    }

    fn look_at_port(&self, port: &str) -> Result<(), ClientError> {
        let status = self.client.port_status(port)?;
        let mut diagnosis = self.client.diagnosis(port)?;
        recent::fill(&mut diagnosis, &self.model, INTERVAL);
        let (name, limit) = (Some(port.to_owned()), Some(MAX_PAGE));
        let flows = self.client.flows(&FlowQuery { port: name, limit, cursor: None })?;
        let time = now();
        let mut listed = Vec::new();
        self.board.note_port(port, |page| {
            page.note(time, status, flows, diagnosis);
            listed = page.listed().to_vec();
        });
        // A connection that somebody opens from the list has a past then.
        for flow in listed {
            if let Some(key) = key(&flow)
                && self.is_due(&Subject::Flow(port.to_owned(), key))
            {
                self.note_flow(port, &key, Ok(Some(flow)));
            }
        }
        Ok(())
    }

    fn note_flow(&self, port: &str, key: &FlowKey, flow: Result<Option<FlowStatus>, ClientError>) {
        self.board.note_flow(port, key, |page| match flow {
            Ok(flow) => page.note(now(), flow),
            Err(error) => page.fail(now(), error.to_string()),
        });
    }
}

/// Milliseconds of Unix time.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Writes down events until the process ends.
fn follow(control: &Path, board: &Board) {
    let mut last: Option<EventId> = None;
    loop {
        let query = EventQuery { port: None, since: last, follow: Some(true) };
        let read = ControlClient::new(control).and_then(|client| {
            client.events(&query, |document| {
                let Ok(event) = serde_json::from_str::<Value>(document) else { return true };
                last = event["id"].as_str().and_then(|id| id.parse().ok()).or(last);
                board.note_event(event);
                true
            })
        });
        if let Err(ClientError::Refused(_)) = read {
            // The event after which it should go on is not known: it is another switch.
            last = None;
        }
        thread::sleep(INTERVAL);
    }
}
