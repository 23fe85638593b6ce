//! Upgrades of the switch: a part of the manage socket.
//!
//! To begin one is to check a program, which takes a moment; that is done on a thread of its own. How it goes on is asked for: whoever answers is another program by
//! the end.

use std::sync::Arc;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::get;
use axum::{Json, Router};

use super::changes::aside;
use super::failure::Failure;
use crate::api::control::{UpgradeRequest, UpgradeStatus};
use crate::operator::UpgradeApi;

type Source = Arc<dyn UpgradeApi>;

/// What there is.
pub(super) const ROUTE: &str = "/v1/upgrade";

/// The route, answered by `source`.
pub(super) fn router(source: Source) -> Router {
    Router::new().route(ROUTE, get(state).post(begin)).with_state(source)
}

async fn state(State(source): State<Source>) -> Json<UpgradeStatus> {
    Json(source.upgrades())
}

async fn begin(
    State(source): State<Source>,
    request: Result<Json<UpgradeRequest>, JsonRejection>,
) -> Result<Json<UpgradeStatus>, Failure> {
    let Json(request) = request.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    Ok(Json(aside(move || source.upgrade(&request)).await?))
}
