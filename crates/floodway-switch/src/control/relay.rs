//! Metrics for who may see and not touch: a server with one route, in a process that only has the control socket's path.
//!
//! # Theory of operation
//! The control socket serves readers and writers alike, so a scraper that may connect to it may also change things. This server has `GET /metrics` and nothing
//! else, and asks the control socket at each scrape. It is not the switch's: a scraper's bytes reach neither the broker nor the process that moves frames.
//!
//! Invariants: at most [`MOST_SCRAPES`] requests ask the switch at one time, and others are refused (503) instead of waiting; while the switch does not
//! answer, scrapes fail with the reason, and it is found again by itself.

use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::failure::error;
use super::metrics::Format;
use super::routes;
use super::socket::ControlListener;
use crate::api::client::ClientError;

/// Scrapes at one time.
const MOST_SCRAPES: usize = 4;

/// Asks for the metrics, as text; may block.
pub type MetricsSource = Arc<dyn Fn() -> Result<Vec<u8>, ClientError> + Send + Sync>;

/// Where metrics are served.
#[derive(Debug)]
pub enum MetricsListener {
    /// At a path.
    Unix(ControlListener),
    /// At an address.
    Tcp(TcpListener),
}

#[derive(Clone)]
struct Relay {
    source: MetricsSource,
    scrapes: Arc<Semaphore>,
}

/// The route, answered by `source`.
pub(super) fn router(source: MetricsSource) -> Router {
    let scrapes = Arc::new(Semaphore::new(MOST_SCRAPES));
    Router::new()
        .route("/metrics", get(metrics))
        .fallback(unknown)
        .method_not_allowed_fallback(routes::wrong_method)
        .with_state(Relay { source, scrapes })
}

async fn metrics(State(Relay { source, scrapes }): State<Relay>) -> Response {
    let Ok(_permit) = scrapes.try_acquire() else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "too many scrapes at one time");
    };
    match spawn_blocking(move || source()).await {
        Ok(Ok(text)) => {
            ([(header::CONTENT_TYPE, Format::Text.content_type())], text).into_response()
        }
        Ok(Err(problem)) => error(StatusCode::SERVICE_UNAVAILABLE, problem.to_string()),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be had"),
    }
}

async fn unknown(uri: Uri) -> Response {
    error(StatusCode::NOT_FOUND, format!("no route {}; there is /metrics", uri.path()))
}
