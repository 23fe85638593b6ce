//! What is known, and the pages that are told of it.
//!
//! # Theory of operation
//! One lock covers what is known and the list of open pages. A page that is opened gets what there is and is put on the list under one hold of it, so it misses nothing and
//! gets nothing twice. Each page has a queue of [`QUEUE`] documents; one that does not take them is let go: its browser connects again, and begins anew with what there is then.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Sender as AskSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use floodway_switch::api::control::FlowKey;
use serde_json::Value;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::flow_page::FlowPage;
use super::overview::Overview;
use super::port_page::PortPage;
use super::series::{History, KEPT};

/// Pages at one time.
pub const MOST_PAGES: usize = 16;
/// Documents that wait for a page: some seconds of them, and those that it begins with.
const QUEUE: usize = 32;
/// Events that a page begins with.
const EVENTS: usize = 200;
/// Connections whose past is kept.
const MOST_FLOWS: usize = 1000;
/// Milliseconds for which the past of what no page shows is kept.
const STALE_MS: u64 = KEPT as u64 * 1000;

/// What a document is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// All ports.
    Overview,
    /// Events.
    Events,
    /// A port, looked at closely.
    Port(String),
    /// One of its connections.
    Flow(String, FlowKey),
}

/// A message to a page.
#[derive(Clone, Debug)]
pub struct Document {
    /// Its kind.
    pub event: &'static str,
    /// JSON in one line.
    pub json: Arc<str>,
}

impl Document {
    fn new(event: &'static str, value: &impl serde::Serialize) -> Self {
        // Only maps whose keys are no texts cannot be written, and there are none.
        let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
        Self { event, json: json.into() }
    }
}

struct Page {
    subjects: Vec<Subject>,
    queue: Sender<Document>,
}

#[derive(Default)]
struct State {
    pages: Vec<Page>,
    overview: Overview,
    ports: HashMap<String, PortPage>,
    flows: HashMap<(String, FlowKey), FlowPage>,
    events: VecDeque<Value>,
    ask: Option<AskSender<Subject>>,
}

/// See the module.
#[derive(Default)]
pub struct Board(Mutex<State>);

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        // What a thread has left that panicked is still good to look at.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be looked at without delay is sent to `ask` from now on.
    pub fn ask(&self, ask: AskSender<Subject>) {
        self.state().ask = Some(ask);
    }

    /// The documents of a page that shows `subjects`: what there is, and then what comes. None if there are [`MOST_PAGES`].
    pub fn open(&self, subjects: Vec<Subject>) -> Option<Receiver<Document>> {
        let mut state = self.state();
        state.pages.retain(|page| !page.queue.is_closed());
        if state.pages.len() >= MOST_PAGES {
            return None;
        }
        let (queue, documents) = mpsc::channel(QUEUE);
        for subject in &subjects {
            if let Some(document) = state.all(subject) {
                // There is room for all of them.
                let _ = queue.try_send(document);
            }
            if let (Some(ask), Subject::Port(_) | Subject::Flow(..)) = (&state.ask, subject) {
                // The collector has ended, and the process with it.
                let _ = ask.send(subject.clone());
            }
        }
        state.pages.push(Page { subjects, queue });
        Some(documents)
    }

    /// Ports and connections that open pages show, each once.
    pub fn shown(&self) -> Vec<Subject> {
        let mut state = self.state();
        state.pages.retain(|page| !page.queue.is_closed());
        let mut shown = Vec::new();
        for subject in state.pages.iter().flat_map(|page| &page.subjects) {
            if matches!(subject, Subject::Port(_) | Subject::Flow(..)) && !shown.contains(subject) {
                shown.push(subject.clone());
            }
        }
        shown
    }

    /// Changes what is known of all ports, and tells the pages.
    pub fn note_overview(&self, note: impl FnOnce(&mut Overview)) {
        let mut state = self.state();
        note(&mut state.overview);
        state.tell(&Subject::Overview, |state| Document::new("overview", &state.overview.last()));
    }

    /// Changes what is known of a port, and tells the pages that show it.
    pub fn note_port(&self, name: &str, note: impl FnOnce(&mut PortPage)) {
        let mut state = self.state();
        note(state.ports.entry(name.to_owned()).or_insert_with(|| PortPage::new(name)));
        let subject = Subject::Port(name.to_owned());
        state.tell(&subject, |state| Document::new("port", &state.ports[name].last()));
    }

    /// Changes what is known of a connection, and tells the pages that show it.
    pub fn note_flow(&self, port: &str, key: &FlowKey, note: impl FnOnce(&mut FlowPage)) {
        let mut state = self.state();
        let place = (port.to_owned(), *key);
        if !state.flows.contains_key(&place) {
            state.make_room_for_flow();
        }
        note(state.flows.entry(place.clone()).or_insert_with(|| FlowPage::new(port, *key)));
        let subject = Subject::Flow(port.to_owned(), *key);
        state.tell(&subject, |state| Document::new("flow", &state.flows[&place].last()));
    }

    /// When a port or a connection was looked at last, in milliseconds.
    pub fn time(&self, subject: &Subject) -> Option<u64> {
        match subject {
            Subject::Overview | Subject::Events => None,
            Subject::Port(name) => self.state().ports.get(name)?.time(),
            Subject::Flow(port, key) => self.state().flows.get(&(port.clone(), *key))?.time(),
        }
    }

    /// Notes an event, and tells the pages.
    pub fn note_event(&self, event: Value) {
        let mut state = self.state();
        state.tell(&Subject::Events, |_| events(false, &[&event]));
        if state.events.len() == EVENTS {
            state.events.pop_front();
        }
        state.events.push_back(event);
    }

    /// Forgets ports and connections that were not looked at for long before `now`, in milliseconds.
    pub fn forget(&self, now: u64) {
        let mut state = self.state();
        let is_fresh = |time: Option<u64>| time.is_none_or(|time| time + STALE_MS > now);
        state.ports.retain(|_, page| is_fresh(page.time()));
        state.flows.retain(|_, page| is_fresh(page.time()));
    }
}

impl State {
    /// All that is known of a subject; none if nothing is.
    fn all(&self, subject: &Subject) -> Option<Document> {
        Some(match subject {
            Subject::Overview => Document::new("overview", &self.overview.all()),
            Subject::Events => events(true, &self.events.iter().collect::<Vec<_>>()),
            Subject::Port(name) => Document::new("port", &self.ports.get(name)?.all()),
            Subject::Flow(port, key) => {
                Document::new("flow", &self.flows.get(&(port.clone(), *key))?.all())
            }
        })
    }

    /// Forgets the connection that was looked at the longest ago if there are [`MOST_FLOWS`].
    fn make_room_for_flow(&mut self) {
        if self.flows.len() >= MOST_FLOWS
            && let Some((oldest, _)) = self.flows.iter().min_by_key(|(_, page)| page.time())
        {
            let oldest = oldest.clone();
            self.flows.remove(&oldest);
        }
    }

    /// Sends what `write` makes to the pages that show the subject. If there are none nothing is made.
    fn tell(&mut self, subject: &Subject, write: impl FnOnce(&Self) -> Document) {
        if !self.pages.iter().any(|page| page.subjects.contains(subject)) {
            return;
        }
        let document = write(self);
        self.pages.retain(|page| {
            !page.subjects.contains(subject) || page.queue.try_send(document.clone()).is_ok()
        });
    }
}

fn events(reset: bool, events: &[&Value]) -> Document {
    Document::new("events", &serde_json::json!({ "reset": reset, "events": events }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(documents: &mut Receiver<Document>) -> Vec<String> {
        std::iter::from_fn(|| documents.try_recv().ok())
            .filter(|document| document.event == "events")
            .map(|document| document.json.to_string())
            .collect()
    }

    #[test]
    fn a_page_begins_with_what_there_is_and_goes_on_with_what_comes() {
        let board = Board::default();
        board.note_event(Value::from(1));
        let mut page = board.open(vec![Subject::Overview, Subject::Events]).unwrap();
        board.note_event(Value::from(2));
        let expected = [r#"{"events":[1],"reset":true}"#, r#"{"events":[2],"reset":false}"#];
        assert_eq!(texts(&mut page), expected);
    }

    #[test]
    fn pages_are_bounded_and_make_room_when_they_go() {
        let board = Board::default();
        let open = || board.open(vec![Subject::Events]);
        let mut pages: Vec<_> = (0..MOST_PAGES).map(|_| open().unwrap()).collect();
        assert!(open().is_none());
        drop(pages.pop());
        assert!(open().is_some());
    }

    #[test]
    fn a_page_that_takes_nothing_is_let_go() {
        let board = Board::default();
        let mut page = board.open(vec![Subject::Events]).unwrap();
        (0..1000).for_each(|n| board.note_event(Value::from(n)));
        assert_eq!(texts(&mut page).len(), QUEUE);
        assert!(page.is_closed() && board.state().pages.is_empty());
        let first = texts(&mut board.open(vec![Subject::Events]).unwrap()).remove(0);
        assert!(first.contains("[800,") && first.contains(",999]"), "the last events are there");
    }

    #[test]
    fn of_too_many_connections_those_looked_at_last_are_kept() {
        let board = Board::default();
        let key = |port| FlowKey {
            guest: ([10, 0, 0, 1], port).into(),
            peer: ([10, 0, 0, 2], 80).into(),
            vlan: None,
        };
        let time = |port| board.time(&Subject::Flow("vm1".to_owned(), key(port)));
        let most = MOST_FLOWS as u16;
        for port in 0..most {
            board.note_flow("vm1", &key(port), |page| page.note(port.into(), None));
        }
        board.note_flow("vm1", &key(0), |page| page.note(9999, None));
        board.note_flow("vm1", &key(most), |page| page.note(9999, None));
        assert_eq!((time(0), time(1), time(2)), (Some(9999), None, Some(2)));
        assert_eq!(board.state().flows.len(), MOST_FLOWS);
    }

    #[test]
    fn what_nobody_shows_is_not_looked_at_and_forgotten_in_the_end() {
        let board = Board::default();
        let port = || Subject::Port("vm1".to_owned());
        let pages = [board.open(vec![Subject::Overview, port()]), board.open(vec![port()])];
        assert_eq!(board.shown(), [port()]);
        board.note_port("vm1", |page| page.fail(1_000, "it is gone".to_owned()));
        drop(pages);
        assert_eq!(board.shown(), []);
        board.forget(1_000 + STALE_MS - 1);
        assert_eq!(board.state().ports.len(), 1);
        board.forget(1_000 + STALE_MS);
        assert_eq!(board.state().ports.len(), 0);
    }
}
