//! A broker's manage socket: changes of the configuration, and upgrades.
//!
//! # Theory of operation
//! The data plane of a switch of two processes answers operators on the control socket, and may have been taken over by a guest. So the configuration
//! says nothing to it that it could pass on: changes of it come in here, at a process that no guest's byte reaches. Whoever may change the configuration
//! may name any path as a socket, and whoever may upgrade any program; so the socket is its owner's alone (mode 0600), and a peer has to be root or the user of this process,
//! whatever has become of the file's mode (`SO_PEERCRED`).

use std::sync::Arc;

use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

use super::failure::{Failure, error};
use super::peer::{Peer, may};
use super::routes::wrong_method;
use super::table::Routes;
use super::{changes, upgrade};
use crate::api::control::ControlError;
use crate::api::openapi::{self, Sockets};
use crate::operator::{ConfigApi, UpgradeApi};

/// The routes, answered by `source` and `upgrades`.
pub(super) fn routes(source: &Arc<dyn ConfigApi>, upgrades: Arc<dyn UpgradeApi>) -> Routes<()> {
    changes::routes(source).merge(upgrade::routes(upgrades))
}

/// A router of these routes, for root and the user `owner`.
pub(super) fn router(
    source: &Arc<dyn ConfigApi>,
    upgrades: Arc<dyn UpgradeApi>,
    owner: u32,
) -> Router {
    routes(source, upgrades)
        .into_router()
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(owner, check_rights))
}

async fn check_rights(
    State(owner): State<u32>,
    ConnectInfo(Peer(uid)): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if may(uid, owner) {
        return next.run(request).await;
    }
    let uid = uid.unwrap_or(u32::MAX);
    tracing::warn!(uid, "a request on the manage socket is refused");
    Failure::from(ControlError::Forbidden(uid)).into_response()
}

async fn unknown(uri: Uri) -> Response {
    let mut here: Vec<_> = openapi::OPERATIONS
        .iter()
        .filter(|operation| operation.sockets != Sockets::Control)
        .map(|operation| operation.path)
        .collect();
    here.dedup();
    let message = format!(
        "no route {}; there are {}, and the others are on the control socket",
        uri.path(),
        here.join(", ")
    );
    error(axum::http::StatusCode::NOT_FOUND, message)
}
