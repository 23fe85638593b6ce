//! The server's thread and its routes.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;

use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::get;
use axum::serve::Listener;
use axum::{Json, Router, middleware};
use floodway_switch::control::{ControlListener, Version};
use tokio::runtime;

use super::assets::ASSETS;
use super::board::Board;
use super::listen::{Limited, MOST_CONNECTIONS, SILENCE};
use super::token::Token;
use super::{guard, stream};

/// Where the page is served.
pub enum Place {
    /// On an address, to who knows the token.
    Tcp(std::net::TcpListener, Token),
    /// On a Unix socket, to who may connect.
    Unix(UnixListener),
}

impl Place {
    /// That of `listener`, whose file stays the caller's.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn unix(listener: &ControlListener) -> io::Result<Self> {
        Ok(Self::Unix(listener.as_fd().try_clone_to_owned()?.into()))
    }
}

/// Serves the page in a thread of its own, until the process ends.
///
/// # Errors
/// Threads or descriptors have run out.
pub fn start(place: Place, board: Arc<Board>) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let serve = move || {
        if let Err(error) = runtime.block_on(serve(place, board)) {
            eprintln!("floodway: the page is not served any more: {error}");
            std::process::exit(1);
        }
    };
    thread::Builder::new().name("web".to_owned()).spawn(serve)?;
    Ok(())
}

async fn serve(place: Place, board: Arc<Board>) -> io::Result<()> {
    match place {
        Place::Tcp(listener, token) => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(limited(listener), router(board, Some(token))).await
        }
        Place::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            axum::serve(limited(listener), router(board, None)).await
        }
    }
}

fn limited<L: Listener>(listener: L) -> Limited<L> {
    Limited::new(listener, MOST_CONNECTIONS, SILENCE)
}

/// The page's files, and behind the token what says something about the switch.
pub fn router(board: Arc<Board>, token: Option<Token>) -> Router {
    let secret = Router::new()
        .route("/v1/stream", get(stream::open))
        .route("/v1/version", get(version))
        .with_state(board)
        .route_layer(middleware::from_fn_with_state(token, guard::what_is_secret));
    ASSETS
        .iter()
        .fold(secret, |router, asset| router.route(asset.path, get(move || async move { asset })))
        .fallback(unknown)
        .layer(middleware::from_fn(guard::every_request))
}

/// For a page whose stream was refused, which a browser does not tell why.
async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION").to_owned() })
}

async fn unknown(uri: Uri) -> Response {
    let reason = format!("no route {}; the page is at /", uri.path());
    guard::refuse(StatusCode::NOT_FOUND, &reason)
}
