//! What the control socket answers. A new route is a line in [`router`] and a handler.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};

use super::{ErrorBody, Version, metrics};
use crate::status::{Status, StatusSource};

type Source = Arc<dyn StatusSource>;

pub(super) fn router(source: Source) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/version", get(version))
        .route("/metrics", get(prometheus))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(source)
}

async fn status(State(source): State<Source>) -> Json<Status> {
    Json(source.status())
}

async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION").to_owned() })
}

async fn prometheus(State(source): State<Source>) -> Response {
    match metrics::encode(source.status()) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be encoded"),
    }
}

async fn unknown(uri: Uri) -> Response {
    let message = format!("no route {}; there are /v1/status, /v1/version, /metrics", uri.path());
    error(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(uri: Uri) -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, format!("{} only answers to GET", uri.path()))
}

fn error(code: StatusCode, message: impl Into<String>) -> Response {
    (code, Json(ErrorBody { error: message.into() })).into_response()
}
