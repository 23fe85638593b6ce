//! The route of events: `text/event-stream`, as the HTML standard says.
//!
//! # Theory of operation
//! The answer is what an [`EventReader`] gets, one message for each event: `id` is its number, `event` the name of its kind, `data` its document. A client that
//! connects again sends the last number that it has seen (`Last-Event-ID`), and misses nothing that is still kept.
//!
//! The connection asks for the next event when it has room for it, so a client that does not read takes no memory beyond its connection's buffers. A comment
//! every [`KEEP_ALIVE`] finds clients that are gone.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_core::Stream;

use super::extract::Query;
use super::failure::{Failure, Source};
use crate::api::events::EventQuery;
use crate::events::EventReader;

/// Longest silence.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn follow(
    State(source): State<Source>,
    Query(mut query): Query<EventQuery>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Failure> {
    // It is later than what the address says: a browser repeats that when it connects again.
    if let Some(last) = headers.get("last-event-id") {
        let id = last.to_str().unwrap_or_default().parse();
        let wrong = |error| Failure::bad_request(format!("Last-Event-ID: {error}"));
        query.since = Some(id.map_err(wrong)?);
    }
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(Messages(source.events(&query)?)).keep_alive(keep_alive))
}

/// Events as messages.
struct Messages(EventReader);

impl Stream for Messages {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.0.poll_next(context);
        next.map(|event| {
            event.map(|event| {
                // A document of ours has no line breaks and no keys that are not text.
                let data = serde_json::to_string(&*event).unwrap_or_default();
                let message = Event::default().id(event.id.to_string());
                Ok(message.event(event.kind.name()).data(data))
            })
        })
    }
}
