//! Captures: an answer that goes on until somebody ends it.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response, StatusCode};
use tokio::time::timeout;

use super::transport::Door;
use super::{ClientError, ControlClient};
use crate::capture::{CaptureList, CaptureRequest, CaptureStatus, ID_HEADER};

/// How often a capture is asked whether it is to go on.
const LOOK: Duration = Duration::from_millis(50);

/// What a capture has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Continue,
    /// It is to end, and the rest of the file is wanted.
    End,
    /// Nothing more is wanted.
    Leave,
}

impl ControlClient {
    /// Captures frames, and calls `each` with the next bytes of the file as they come, and with none every so often. Returns the capture's number.
    ///
    /// # Errors
    /// There is no answer, the switch refuses, or it ends in the middle of the file.
    pub fn capture(
        &self,
        request: &CaptureRequest,
        mut each: impl FnMut(&[u8]) -> Next,
    ) -> Result<u64, ClientError> {
        let body = self.encode(request)?;
        self.follow((&Method::POST, "/v1/captures"), body, async |answer| {
            self.read_capture(answer, &mut each).await
        })
    }

    async fn read_capture(
        &self,
        answer: Response<Incoming>,
        each: &mut impl FnMut(&[u8]) -> Next,
    ) -> Result<u64, ClientError> {
        let (head, mut body) = answer.into_parts();
        let id = head.headers.get(ID_HEADER).and_then(|id| id.to_str().ok()?.parse().ok());
        let id = id.ok_or_else(|| self.bad_answer(format!("no header {ID_HEADER}")))?;
        let mut asked = false;
        loop {
            let bytes = match timeout(LOOK, body.frame()).await {
                Err(_) => Bytes::new(),
                Ok(None) => return Ok(id),
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => {
                    return Err(self.bad_answer(format!("the capture breaks off: {error}")));
                }
            };
            match each(&bytes) {
                Next::Continue => {}
                Next::Leave => return Ok(id),
                Next::End if asked => {}
                Next::End => {
                    asked = true;
                    self.end_within(id).await?;
                }
            }
        }
    }

    /// Asks for the end of a capture on a connection of its own.
    async fn end_within(&self, id: u64) -> Result<(), ClientError> {
        let route = format!("/v1/captures/{id}");
        let exchange = self.exchange(Door::Control, &Method::DELETE, &route, Bytes::new());
        let (code, body) = exchange.await?;
        // One that has ended in the meantime is what was wanted.
        if matches!(code, StatusCode::OK | StatusCode::NOT_FOUND) {
            return Ok(());
        }
        Err(self.failure(&route, code, &body))
    }

    /// Captures that run, and the last ones that have ended.
    ///
    /// # Errors
    /// There is no answer.
    pub fn captures(&self) -> Result<Vec<CaptureStatus>, ClientError> {
        self.get("/v1/captures").map(|list: CaptureList| list.captures)
    }

    /// Ends a capture.
    ///
    /// # Errors
    /// There is no answer, or no such capture.
    pub fn end_capture(&self, id: u64) -> Result<CaptureStatus, ClientError> {
        let route = format!("/v1/captures/{id}");
        self.decode(
            &route,
            &self.request(Door::Control, &Method::DELETE, &route, Bytes::new(), self.timeout)?,
        )
    }
}
