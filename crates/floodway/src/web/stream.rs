//! The stream of a page: server-sent events, one for each document of the board that the page shows.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use floodway_switch::api::control::FlowKey;
use futures_core::Stream;
use serde::Deserialize;
use tokio::sync::mpsc::Receiver;

use super::board::{Board, Document, Subject};
use super::guard;

/// Longest silence.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Longest name of a port that is asked for; none is longer.
const LONGEST_NAME: usize = 64;

/// What a page shows.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    /// Looked at by the guard.
    #[serde(default, rename = "token")]
    _token: String,
    /// A port.
    port: Option<String>,
    /// One of its connections: address and port of the guest.
    guest: Option<SocketAddr>,
    /// Address and port of the peer.
    peer: Option<SocketAddr>,
    /// VLAN of the connection.
    vlan: Option<u16>,
}

impl Shown {
    /// What is sent to such a page.
    fn subjects(self) -> Result<Vec<Subject>, &'static str> {
        let mut subjects = vec![Subject::Overview, Subject::Events];
        match (self.port, self.guest, self.peer) {
            (None, None, None) => {}
            (Some(port), ..) if port.len() > LONGEST_NAME => {
                return Err("no port has such a long name");
            }
            (Some(port), None, None) => subjects.push(Subject::Port(port)),
            (Some(port), Some(guest), Some(peer)) => {
                subjects.push(Subject::Flow(port, FlowKey { guest, peer, vlan: self.vlan }));
            }
            _ => return Err("a connection is port, guest and peer"),
        }
        Ok(subjects)
    }
}

/// `GET /v1/stream?port=&guest=&peer=&vlan=`
pub async fn open(
    State(board): State<Arc<Board>>,
    query: Result<Query<Shown>, QueryRejection>,
) -> Response {
    let subjects = match query {
        Ok(Query(shown)) => shown.subjects().map_err(str::to_owned),
        Err(rejection) => Err(rejection.body_text()),
    };
    let subjects = match subjects {
        Ok(subjects) => subjects,
        Err(reason) => return guard::refuse(StatusCode::BAD_REQUEST, &reason),
    };
    match board.open(subjects) {
        Some(documents) => {
            let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
            Sse::new(Documents(documents)).keep_alive(keep_alive).into_response()
        }
        None => guard::refuse(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open"),
    }
}

struct Documents(Receiver<Document>);

impl Stream for Documents {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.0.poll_recv(context);
        next.map(|document| {
            // A document is JSON in one line.
            document.map(|Document { event, json }| Ok(Event::default().event(event).data(&*json)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_shows_a_port_or_one_of_its_connections() {
        let port = || Some("vm1".to_owned());
        let end = || Some(SocketAddr::from(([10, 0, 0, 1], 80)));
        let subjects = |shown: Shown| shown.subjects().map(|subjects| subjects.len());
        assert_eq!(subjects(Shown::default()), Ok(2));
        assert_eq!(subjects(Shown { port: port(), ..Shown::default() }), Ok(3));
        let flow = || Shown { port: port(), guest: end(), peer: end(), ..Shown::default() };
        assert_eq!(subjects(flow()), Ok(3));
        assert!(subjects(Shown { peer: None, ..flow() }).is_err());
        assert!(subjects(Shown { port: None, ..flow() }).is_err());
        assert!(subjects(Shown { port: Some("x".repeat(65)), ..Shown::default() }).is_err());
    }
}
