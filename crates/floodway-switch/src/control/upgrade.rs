//! Upgrades of the switch: a part of the manage socket.
//!
//! To begin one is to check a program, which takes a moment; that is done on a thread of its own. How it goes on is asked for: whoever answers is another program by
//! the end.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::changes::aside;
use super::extract::Body;
use super::failure::Failure;
use super::table::Routes;
use crate::api::control::{UpgradeRequest, UpgradeStatus};
use crate::operator::UpgradeApi;

type Source = Arc<dyn UpgradeApi>;

/// The routes, answered by `source`.
pub(super) fn routes(source: Source) -> Routes<()> {
    Routes::new()
        .on("GET", "/v1/upgrade", state)
        .on("POST", "/v1/upgrade", begin)
        .with_state(source)
}

async fn state(State(source): State<Source>) -> Json<UpgradeStatus> {
    Json(source.upgrades())
}

async fn begin(
    State(source): State<Source>,
    Body(request): Body<UpgradeRequest>,
) -> Result<Json<UpgradeStatus>, Failure> {
    Ok(Json(aside(move || source.upgrade(&request)).await?))
}
