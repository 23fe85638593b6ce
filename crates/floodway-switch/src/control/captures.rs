//! Routes of captures.
//!
//! # Theory of operation
//! A capture shows what guests send to each other, so beginning and ending one is for those who may change the configuration: root, and the user of the switch
//! (`SO_PEERCRED`), whatever the mode of the socket's file. Unlike changes it is asked of the process that moves frames, also behind a broker: a data plane that was taken over has every frame
//! already, and the broker never touches one.
//!
//! The answer is the file, sent as it grows. Between the capture's thread and the connection is a queue of [`CHUNKS`] chunks; when it is full the thread waits, and
//! the rings lose records. The connection's end ends the capture.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{self, Bytes, HttpBody};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::changes::aside;
use super::extract::Body;
use super::failure::{Failure, Source};
use super::peer::{Peer, may};
use crate::api::capture::{CaptureList, CaptureRequest, CaptureStatus, ID_HEADER, MEDIA_TYPE};
use crate::api::control::ControlError;
use crate::operator::CaptureSink;

/// Chunks that wait for the connection.
const CHUNKS: usize = 8;

/// What answers, and the user whom the switch belongs to.
#[derive(Clone)]
pub(super) struct Owned {
    pub(super) source: Source,
    pub(super) owner: u32,
}

pub(super) async fn list(State(state): State<Owned>) -> Json<CaptureList> {
    Json(state.source.captures())
}

pub(super) async fn begin(
    State(state): State<Owned>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Result<Body<CaptureRequest>, Failure>,
) -> Result<Response, Failure> {
    let uid = check_rights(peer, state.owner)?;
    let Body(request) = request?;
    let (sender, receiver) = mpsc::channel(CHUNKS);
    let begin = move || state.source.capture(&request, uid, Box::new(Queue(sender)));
    let id = aside(begin).await?;
    let headers =
        [(header::CONTENT_TYPE.as_str(), MEDIA_TYPE.to_owned()), (ID_HEADER, id.to_string())];
    Ok((headers, body::Body::new(Chunks(receiver))).into_response())
}

pub(super) async fn end(
    State(state): State<Owned>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<u64>,
) -> Result<Json<CaptureStatus>, Failure> {
    check_rights(peer, state.owner)?;
    Ok(Json(state.source.end_capture(id)?))
}

/// Returns the user at the other end, if captures are its business.
fn check_rights(Peer(uid): Peer, owner: u32) -> Result<u32, ControlError> {
    let known = uid.unwrap_or(u32::MAX);
    if may(uid, owner) {
        return Ok(known);
    }
    tracing::warn!(uid = known, "a capture is refused");
    Err(ControlError::MayNotCapture(known))
}

/// The capture's end of the queue.
struct Queue(Sender<Vec<u8>>);

impl CaptureSink for Queue {
    fn send(&mut self, bytes: Vec<u8>) -> bool {
        self.0.blocking_send(bytes).is_ok()
    }

    fn is_open(&self) -> bool {
        !self.0.is_closed()
    }
}

/// The connection's end of the queue.
struct Chunks(Receiver<Vec<u8>>);

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.0.poll_recv(context);
        chunk.map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_owner_may_capture() {
        assert_eq!(check_rights(Peer(Some(0)), 7), Ok(0));
        assert_eq!(check_rights(Peer(Some(7)), 7), Ok(7));
        assert_eq!(check_rights(Peer(Some(8)), 7), Err(ControlError::MayNotCapture(8)));
        assert_eq!(check_rights(Peer(None), 7), Err(ControlError::MayNotCapture(u32::MAX)));
    }
}
