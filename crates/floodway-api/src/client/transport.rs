//! HTTP/1.1 over the control socket and the broker's: a connection for each request.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{ClientError, ControlClient};

/// Longest answer that is read: the status of thousands of ports.
const MAX_ANSWER: usize = 64 << 20;

/// Which socket a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// The control socket.
    Control,
    /// The broker's, for changes of the configuration; the control socket if there is no broker.
    Manage,
    /// As above, and also if this user may not use the broker's.
    Configuration,
    /// The broker's, and no other.
    Broker,
}

impl ControlClient {
    /// The body of the answer, which is a success.
    pub(super) fn request(
        &self,
        door: Door,
        method: &Method,
        route: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, ClientError> {
        let (code, body) = self.answer(door, method, route, body, limit)?;
        if code == StatusCode::OK {
            return Ok(body);
        }
        Err(self.failure(route, code, &body))
    }

    /// The code and the body of the answer, whatever it is.
    pub(super) fn answer(
        &self,
        door: Door,
        method: &Method,
        route: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let exchange = async { timeout(limit, self.exchange(door, method, route, body)).await };
        let answer = self.runtime.block_on(exchange);
        answer.map_err(|_| ClientError::TimedOut(self.path.clone(), limit.as_secs()))?
    }

    /// As [`answer`](Self::answer), for as long as it takes.
    pub(super) async fn exchange(
        &self,
        door: Door,
        method: &Method,
        route: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = self.connect(door).await?;
        let failed = |error: hyper::Error| self.bad_answer(error.to_string());
        let (mut sender, connection) = self.shake_hands(stream).await?;
        let request = self.request_of(method, route, body)?;
        let answer = async move {
            let answer = sender.send_request(request).await.map_err(failed)?;
            let code = answer.status();
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|error| self.bad_answer(error.to_string()))?;
            Ok((code, body.to_bytes()))
        };
        // The connection moves the bytes until the request, which owns the sender, is done with it.
        // Its own errors reach the request too.
        let (answer, _) = tokio::join!(answer, connection);
        answer
    }

    /// Sends a request whose answer goes on, and lets `read` follow that.
    pub(super) fn follow<T>(
        &self,
        (method, route): (&Method, &str),
        body: Bytes,
        read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.runtime.block_on(async {
            let stream = self.connect(Door::Control).await?;
            let (mut sender, connection) = self.shake_hands(stream).await?;
            let request = self.request_of(method, route, body)?;
            let answer = async move {
                let answer = timeout(self.timeout, sender.send_request(request)).await;
                let timed_out =
                    |_| ClientError::TimedOut(self.path.clone(), self.timeout.as_secs());
                let answer = answer.map_err(timed_out)?;
                let answer = answer.map_err(|error| self.bad_answer(error.to_string()))?;
                if answer.status() == StatusCode::OK {
                    return read(answer).await;
                }
                let code = answer.status();
                match Limited::new(answer.into_body(), MAX_ANSWER).collect().await {
                    Ok(body) => Err(self.failure(route, code, &body.to_bytes())),
                    Err(error) => Err(self.bad_answer(error.to_string())),
                }
            };
            // The connection moves the bytes; whichever is over first ends both.
            tokio::pin!(answer);
            tokio::select! {
                answer = &mut answer => answer,
                _ = connection => answer.await,
            }
        })
    }

    async fn shake_hands(
        &self,
        stream: UnixStream,
    ) -> Result<(SendRequest<Full<Bytes>>, Connection<TokioIo<UnixStream>, Full<Bytes>>), ClientError>
    {
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        handshake.map_err(|error| self.bad_answer(error.to_string()))
    }

    fn request_of(
        &self,
        method: &Method,
        route: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(route)
            .header(header::HOST, "floodway")
            .header(header::CONTENT_TYPE, "application/json");
        request.body(Full::new(body)).map_err(|error| self.bad_answer(error.to_string()))
    }

    async fn connect(&self, door: Door) -> Result<UnixStream, ClientError> {
        if door != Door::Control {
            match UnixStream::connect(&self.manage).await {
                Ok(stream) => return Ok(stream),
                Err(error) if is_nobody(&error) && door != Door::Broker => {}
                Err(error)
                    if door == Door::Configuration
                        && error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => return Err(refused(&self.manage, error)),
            }
        }
        UnixStream::connect(&self.path).await.map_err(|error| refused(&self.path, error))
    }
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn refused(path: &Path, source: io::Error) -> ClientError {
    let path = path.to_owned();
    match source.kind() {
        _ if is_nobody(&source) => ClientError::NotRunning(path),
        io::ErrorKind::PermissionDenied => ClientError::PermissionDenied(path),
        _ => ClientError::Io { path, source },
    }
}
