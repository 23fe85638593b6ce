//! A broker's manage socket: changes of the configuration, and nothing else.
//!
//! # Theory of operation
//! The data plane of a switch of two processes answers operators on the control socket, and may have been taken over by a guest. So the configuration
//! says nothing to it that it could pass on: changes of it come in here, at a process that no guest's byte reaches. Whoever may change the configuration
//! may name any path as a socket; so the socket is its owner's alone (mode 0600), and a peer has to be root or the user of this process,
//! whatever has become of the file's mode (`SO_PEERCRED`).

use std::sync::Arc;

use axum::Router;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use tokio::net::UnixListener;

use super::failure::{Failure, error};
use super::{changes, routes};
use crate::api::control::ControlError;
use crate::operator::ConfigApi;

/// User of the process at the other end; `None` if it is unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(Option<u32>);

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self(stream.io().peer_cred().ok().map(|peer| peer.uid()))
    }
}

/// The routes, answered by `source`, for root and the user `owner`.
pub(super) fn router(source: Arc<dyn ConfigApi>, owner: u32) -> Router {
    changes::router(source)
        .fallback(unknown)
        .method_not_allowed_fallback(routes::wrong_method)
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

/// Returns `true` if the user `uid` may change what belongs to `owner`.
fn may(uid: Option<u32>, owner: u32) -> bool {
    uid.is_some_and(|uid| uid == 0 || uid == owner)
}

async fn unknown(uri: Uri) -> Response {
    let routes = changes::ROUTES;
    let message = format!(
        "no route {}; there are {routes}, and the others are on the control socket",
        uri.path()
    );
    error(axum::http::StatusCode::NOT_FOUND, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_owner_may_change_anything() {
        let allowed = [Some(0), Some(7), Some(1), Some(u32::MAX), None].map(|uid| may(uid, 7));
        assert_eq!(allowed, [true, true, false, false, false]);
    }
}
