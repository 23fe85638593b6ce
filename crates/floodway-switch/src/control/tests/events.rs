//! Events over a real socket.

use std::io::{BufRead, BufReader};

use super::*;
use crate::api::events::{Event, EventId, EventKind, EventQuery, HISTORY};
use crate::events::Events;

fn start(path: &Path, events: &Arc<Events>) -> ControlServer {
    let fixed = Fixed { events: Arc::clone(events), ..Fixed::new(sample()) };
    ControlServer::start(ControlListener::bind(path).unwrap(), Arc::new(fixed)).unwrap()
}

fn kept() -> EventQuery {
    EventQuery { follow: Some(false), ..EventQuery::default() }
}

fn read(client: &ControlClient, query: &EventQuery) -> Vec<Event> {
    let mut got = Vec::new();
    let each = |data: &str| {
        got.push(serde_json::from_str(data).unwrap());
        true
    };
    client.events(query, each).unwrap();
    got
}

fn stalled(worker: usize) -> EventKind {
    EventKind::WorkerStalled { worker, waits_in: "x".repeat(400) }
}

#[test]
fn events_that_are_kept_are_read_and_then_those_that_come() {
    let (_directory, path) = socket();
    let events = Arc::<Events>::default();
    let _server = start(&path, &events);
    let client = ControlClient::new(&path).unwrap();
    assert_eq!(read(&client, &kept()), []);
    (0..3).for_each(|worker| events.emit(stalled(worker)));
    let all = read(&client, &kept());
    assert_eq!(
        all.iter().map(|event| event.kind.clone()).collect::<Vec<_>>(),
        [0, 1, 2].map(stalled)
    );
    let since = EventQuery { since: Some(all[1].id), ..kept() };
    assert_eq!(read(&client, &since), all[2..]);
}

#[test]
fn who_follows_gets_what_comes() {
    let (_directory, path) = socket();
    let events = Arc::<Events>::default();
    let _server = start(&path, &events);
    let client = ControlClient::new(&path).unwrap();
    (0..3).for_each(|worker| events.emit(stalled(worker)));
    // It makes the next event itself, when it has seen all before.
    let mut seen = 0;
    let each = |_: &str| {
        seen += 1;
        if seen >= 3 {
            events.emit(stalled(seen));
        }
        seen < 6
    };
    client.events(&EventQuery::default(), each).unwrap();
    assert_eq!(seen, 6);
}

#[test]
fn what_is_asked_wrongly_is_refused() {
    let (_directory, path) = socket();
    let events = Arc::<Events>::default();
    let _server = start(&path, &events);
    let client = ControlClient::new(&path).unwrap();
    let error = |route: &str| client.get_bytes(route).unwrap_err().to_string();
    assert!(error("/v1/events?since=x").contains("like 1763954272123-17"));
    assert!(error("/v1/events?ports=vm1").contains("ports"));
    events.emit(stalled(0));
    let EventId { history, .. } = read(&client, &kept())[0].id;
    let text = error(&format!("/v1/events?since={history}-9"));
    assert!(text.contains(&format!("no such event yet; the last is {history}-1")), "{text}");
}

/// The answer to a request for what is kept after `since`, with a header.
fn ask(path: &Path, since: EventId, header: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    let route = format!("/v1/events?follow=false&since={since}");
    let head = format!("GET {route} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What a client in any language sees, and what a browser's `EventSource` does.
#[test]
fn messages_have_numbers_and_names_and_the_last_number_in_a_header_counts() {
    let (_directory, path) = socket();
    let events = Arc::<Events>::default();
    let _server = start(&path, &events);
    (0..3).for_each(|worker| events.emit(stalled(worker)));
    let client = ControlClient::new(&path).unwrap();
    let ids: Vec<_> = read(&client, &kept()).iter().map(|event| event.id).collect();
    let answer = ask(&path, ids[0], &format!("Last-Event-ID: {}\r\n", ids[1]));
    assert!(answer.contains("content-type: text/event-stream"), "{answer}");
    let lines: Vec<_> = answer.lines().filter(|line| line.starts_with("id: ")).collect();
    assert_eq!(lines, [format!("id: {}", ids[2])], "what the address says is older");
    assert!(answer.lines().any(|line| line == "event: worker_stalled"), "{answer}");
    let answer = ask(&path, ids[0], "Last-Event-ID: 7\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("Last-Event-ID: "), "{answer}");
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_and_is_told_what_it_lost() {
    const EMITTED: usize = 20_000;
    let (_directory, path) = socket();
    let events = Arc::<Events>::default();
    let _server = start(&path, &events);
    events.emit(stalled(0));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut next = || -> Event {
        loop {
            let line = lines.next().unwrap().unwrap();
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    };
    let first = next();
    // Far more than the ring and the connection's buffers hold.
    (1..EMITTED).for_each(|worker| events.emit(stalled(worker)));
    let (mut got, mut lost, mut last) = (1, 0, first.id.number);
    while got + lost < EMITTED {
        let event = next();
        match event.kind {
            EventKind::Lost { count: Some(count) } => {
                lost += count as usize;
                last += count;
            }
            _ => {
                got += 1;
                last += 1;
            }
        }
        assert_eq!(event.id.number, last);
    }
    assert!(lost > 0 && got >= HISTORY, "{got} read, {lost} lost");
    assert_eq!(last, EMITTED as u64);
}
