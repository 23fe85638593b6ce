//! The ring, its readers, and the log beside it.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

use super::*;
use crate::api::control::ControlError;
use crate::api::events::{EventQuery, MAX_READERS};

fn stalled(worker: usize) -> EventKind {
    EventKind::WorkerStalled { worker, waits_in: "0".into() }
}

fn connected(port: &str) -> EventKind {
    EventKind::PortConnected { port: port.into(), pid: None }
}

fn reader(events: &Arc<Events>, query: &EventQuery) -> EventReader {
    EventReader::new(events, query).unwrap()
}

/// All that a reader gets now.
fn read(reader: &mut EventReader) -> Vec<Arc<Event>> {
    let context = Context::from_waker(Waker::noop());
    std::iter::from_fn(|| match reader.poll_next(&context) {
        Poll::Ready(event) => event,
        Poll::Pending => None,
    })
    .collect()
}

fn kinds(events: &[Arc<Event>]) -> Vec<EventKind> {
    events.iter().map(|event| event.kind.clone()).collect()
}

#[test]
fn a_reader_gets_what_is_kept_and_then_what_comes() {
    let events = Arc::new(Events::default());
    events.emit(stalled(1));
    let mut all = reader(&events, &EventQuery::default());
    assert_eq!(kinds(&read(&mut all)), [stalled(1)]);
    events.emit(stalled(2));
    let got = read(&mut all);
    assert_eq!((got[0].id, got.len()), (EventId { history: events.history, number: 2 }, 1));
    let resumed = EventQuery { since: Some(got[0].id), ..EventQuery::default() };
    events.emit(stalled(3));
    assert_eq!(kinds(&read(&mut reader(&events, &resumed))), [stalled(3)]);
}

#[test]
fn a_slow_reader_is_told_exactly_how_many_it_has_lost_and_holds_up_nobody() {
    let events = Arc::new(Events::default());
    let mut slow = reader(&events, &EventQuery::default());
    events.emit(stalled(0));
    assert_eq!(read(&mut slow).len(), 1);
    for worker in 1..=HISTORY + 7 {
        events.emit(stalled(worker));
    }
    let got = read(&mut slow);
    assert_eq!((got.len(), &got[0].kind), (HISTORY + 1, &EventKind::Lost { count: Some(7) }));
    assert_eq!((got[0].id.number, &got[1].kind), (8, &stalled(8)));
    // Who goes on from that misses nothing more.
    let query = EventQuery { since: Some(got[0].id), ..EventQuery::default() };
    assert_eq!(read(&mut reader(&events, &query))[0].kind, stalled(8));
    assert_eq!(lock(&events.ring).kept.len(), HISTORY);
}

#[test]
fn who_goes_on_from_another_history_gets_all_of_this_one_and_is_told() {
    let events = Arc::new(Events::default());
    events.emit(stalled(1));
    let since = EventId { history: events.history - 1, number: 500 };
    let query = EventQuery { since: Some(since), ..EventQuery::default() };
    let got = read(&mut reader(&events, &query));
    assert_eq!(kinds(&got), [EventKind::Lost { count: None }, stalled(1)]);
    let future = EventId { history: events.history, number: 2 };
    let query = EventQuery { since: Some(future), ..EventQuery::default() };
    let last = EventId { number: 1, ..future };
    let error = EventReader::new(&events, &query).unwrap_err().to_string();
    assert_eq!(error, format!("since = {future}: no such event yet; the last is {last}"));
}

#[test]
fn a_reader_of_one_port_gets_no_other_events_and_one_that_does_not_follow_ends() {
    let events = Arc::new(Events::default());
    [connected("vm1"), connected("vm2"), stalled(0)].into_iter().for_each(|e| events.emit(e));
    assert!(events.know("vm2") && !events.know("vm3"));
    let port = Some("vm2".to_owned());
    let mut reader = reader(&events, &EventQuery { port, follow: Some(false), since: None });
    let context = Context::from_waker(Waker::noop());
    let Poll::Ready(Some(event)) = reader.poll_next(&context) else { panic!("no event") };
    assert_eq!(event.kind, connected("vm2"));
    assert!(matches!(reader.poll_next(&context), Poll::Ready(None)));
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_reader_that_waits_is_woken_once_and_one_that_left_is_not() {
    let events = Arc::new(Events::default());
    let (stays, leaves) = (Arc::<Count>::default(), Arc::<Count>::default());
    let woken = [&stays, &leaves].map(|count| Waker::from(Arc::clone(count)));
    let mut readers = [(); 2].map(|()| reader(&events, &EventQuery::default()));
    for (reader, waker) in readers.iter_mut().zip(&woken) {
        assert!(reader.poll_next(&Context::from_waker(waker)).is_pending());
    }
    let [mut stayed, left] = readers;
    drop(left);
    events.emit(stalled(0));
    events.emit(stalled(1));
    assert_eq!([&stays, &leaves].map(|count| count.0.load(Ordering::Relaxed)), [1, 0]);
    assert_eq!(read(&mut stayed).len(), 2);
    drop(stayed);
    assert!(lock(&events.ring).readers.is_empty());
}

#[test]
fn there_are_only_so_many_readers() {
    let events = Arc::new(Events::default());
    let query = EventQuery::default();
    let all: Vec<_> = (0..MAX_READERS).map(|_| reader(&events, &query)).collect();
    let error = EventReader::new(&events, &query).unwrap_err();
    assert_eq!(error, ControlError::TooManyReaders(MAX_READERS));
    drop(all);
    assert!(EventReader::new(&events, &query).is_ok());
}

#[test]
fn a_port_that_causes_too_many_says_so_later_and_others_are_heard() {
    let events = Arc::new(Events::default());
    let (noisy, quiet) =
        (PortEvents::new(Arc::clone(&events)), PortEvents::new(Arc::clone(&events)));
    for _ in 0..1000 {
        noisy.emit("vm1", |port| EventKind::GuestStarted { port });
    }
    quiet.emit("vm2", |port| EventKind::GuestStarted { port });
    let got = read(&mut reader(&events, &EventQuery::default()));
    assert!(got.len() < 100, "{} events", got.len());
    assert_eq!(got.last().unwrap().kind.port(), Some("vm2"));
}

#[test]
fn texts_of_others_have_an_end() {
    assert_eq!(clip("short".into()), "short");
    let clipped = clip("\u{e9}".repeat(MAX_TEXT));
    assert!(clipped.len() <= MAX_TEXT && clipped.ends_with("\u{e9} ..."));
}

/// Lines of the log, with their fields.
#[derive(Default)]
struct Lines(Mutex<Vec<(tracing::Level, Fields)>>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

struct Log(Arc<Lines>);

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        lock(&self.0.0).push((*event.metadata().level(), fields));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn level_of(severity: Severity) -> tracing::Level {
    match severity {
        Severity::Info => tracing::Level::INFO,
        Severity::Warning => tracing::Level::WARN,
        Severity::Error => tracing::Level::ERROR,
    }
}

#[test]
fn each_event_has_a_line_with_its_number_severity_and_text() {
    let lines = Arc::<Lines>::default();
    let events = Arc::new(Events::default());
    tracing::subscriber::with_default(Log(Arc::clone(&lines)), || {
        events.emit(connected("vm1"));
        events.emit(stalled(4));
    });
    let got = read(&mut reader(&events, &EventQuery::default()));
    let lines = lock(&lines.0);
    assert_eq!(lines.len(), got.len());
    for ((level, Fields(fields)), event) in lines.iter().zip(&got) {
        assert_eq!(*level, level_of(event.severity));
        let field = |name| fields.get(name).map(String::as_str);
        assert_eq!(field("message"), Some(&*event.text));
        assert_eq!(field("event"), Some(event.kind.name()));
        assert_eq!(field("id"), Some(&*event.id.to_string()));
        assert_eq!(field("port"), event.kind.port());
    }
}
