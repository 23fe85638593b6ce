//! Captures: an answer that goes on until somebody ends it.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response, StatusCode};
use tokio::time::timeout;

use super::{ClientError, ControlClient, Door, MAX_ANSWER, TIMEOUT};
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
        self.runtime.block_on(async {
            let stream = self.connect(Door::Control).await?;
            let (mut sender, connection) = self.shake_hands(stream).await?;
            let request = self.request_of(&Method::POST, "/v1/captures", body)?;
            let answer = async move {
                let answer = timeout(TIMEOUT, sender.send_request(request)).await;
                let timed_out = |_| ClientError::TimedOut(self.path.clone(), TIMEOUT.as_secs());
                let answer = answer.map_err(timed_out)?;
                let answer = answer.map_err(|error| self.bad_answer(error.to_string()))?;
                self.follow(answer, &mut each).await
            };
            // The connection moves the bytes; whichever is over first ends both.
            tokio::pin!(answer);
            tokio::select! {
                answer = &mut answer => answer,
                _ = connection => answer.await,
            }
        })
    }

    async fn follow(
        &self,
        answer: Response<Incoming>,
        each: &mut impl FnMut(&[u8]) -> Next,
    ) -> Result<u64, ClientError> {
        let (head, mut body) = answer.into_parts();
        if head.status != StatusCode::OK {
            return Err(self.refusal("/v1/captures", head.status, body).await);
        }
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

    /// What an answer says that is not a success, and whose body has not been read.
    pub(super) async fn refusal(
        &self,
        route: &str,
        code: StatusCode,
        body: Incoming,
    ) -> ClientError {
        match Limited::new(body, MAX_ANSWER).collect().await {
            Ok(body) => self.failure(route, code, &body.to_bytes()),
            Err(error) => self.bad_answer(error.to_string()),
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
            &self.request(Door::Control, &Method::DELETE, &route, Bytes::new(), TIMEOUT)?,
        )
    }
}
