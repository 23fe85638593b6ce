//! The control socket of a path: JSON lines over a Unix stream socket.
//!
//! A request is a line, and so is its answer. Several requests may follow on one connection.
//!
//! | request | answer |
//! |---|---|
//! | `{"get": "counters"}` | `{"counters": {...}}` |
//! | `{"reset": "marks"}` | `{"done": true}`: high-water marks and timing start anew |
//! | `{"set": {"port": "b", "side": "egress", "link": {...}}}` | `{"done": true}` |
//!
//! `link` is a whole link as in the description: what is left out is the default, not what was
//! there before. The serving side never blocks: a client that does not read its answers is closed.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::report::Counters;
use super::spec::{LinkSpec, Side};

/// Longest request, in bytes.
const MAX_REQUEST: usize = 1 << 16;
/// Clients at a time; more have to wait.
const MAX_CLIENTS: usize = 16;
/// How long a client waits for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// Everything there is.
    Counters,
}

/// What starts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reset {
    /// High-water marks and timing.
    Marks,
}

/// New parameters of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Name of the port.
    pub port: String,
    /// Which of its links.
    pub side: Side,
    /// The whole link.
    pub link: LinkSpec,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Asks for numbers.
    Get(What),
    /// Starts something anew.
    Reset(Reset),
    /// Changes a link.
    Set(Box<Change>),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// All numbers.
    Counters(Box<Counters>),
    /// It was done.
    Done(bool),
    /// It was not done, and why.
    Error(String),
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
}

/// The serving side. Its socket file goes away with it.
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
}

impl Server {
    /// Listens at `path`; a socket file that is left over from a dead process is replaced.
    ///
    /// # Errors
    /// When somebody listens there, or the file cannot be made.
    pub fn listen(path: &Path) -> Result<Self> {
        if UnixStream::connect(path).is_ok() {
            bail!("{} is in use by a running path", path.display());
        }
        let _ = fs::remove_file(path);
        let context = || format!("cannot listen at {}", path.display());
        let listener = UnixListener::bind(path).with_context(context)?;
        listener.set_nonblocking(true).with_context(context)?;
        Ok(Self { path: path.into(), listener, clients: Vec::new() })
    }

    /// What becomes readable when there is something to serve.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        let clients = self.clients.iter().map(|client| client.stream.as_raw_fd());
        std::iter::once(self.listener.as_raw_fd()).chain(clients)
    }

    /// Answers all requests that have arrived. Never blocks.
    pub fn serve(&mut self, mut answer: impl FnMut(Request) -> Answer) {
        while self.clients.len() < MAX_CLIENTS {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client { stream, input: Vec::new() });
            }
        }
        self.clients.retain_mut(|client| client.serve(&mut answer).is_ok());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Client {
    /// An error means that the client is to be closed.
    fn serve(&mut self, answer: &mut impl FnMut(Request) -> Answer) -> io::Result<()> {
        let closed = self.read()?;
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let reply = match serde_json::from_slice(&line) {
                Ok(request) => answer(request),
                Err(error) => Answer::Error(format!("no request: {error}")),
            };
            let mut text = serde_json::to_vec(&reply)?;
            text.push(b'\n');
            self.stream.write_all(&text)?;
        }
        if closed || self.input.len() > MAX_REQUEST {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    /// Takes what has arrived; true at the end of the stream.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        while self.input.len() <= MAX_REQUEST {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(len) => self.input.extend_from_slice(buffer.get(..len).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Asks the path that listens at `path`.
///
/// # Errors
/// When it does not answer, or says no.
pub fn ask(path: &Path, request: &Request) -> Result<Answer> {
    let context = || format!("control socket {}", path.display());
    let stream = UnixStream::connect(path).with_context(context)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    (&stream).write_all(&text).with_context(context)?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).with_context(context)?;
    match serde_json::from_str(&line).with_context(context)? {
        Answer::Error(why) => bail!("{why}"),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_documented() {
        let parse = |text| serde_json::from_str::<Request>(text);
        assert_eq!(parse(r#"{"get": "counters"}"#).unwrap(), Request::Get(What::Counters));
        assert_eq!(parse(r#"{"reset": "marks"}"#).unwrap(), Request::Reset(Reset::Marks));
        let text = r#"{"set": {"port": "b", "side": "egress", "link": {"rate_mbit": 5}}}"#;
        let link = LinkSpec { rate_mbit: Some(5.0), ..LinkSpec::default() };
        let change = Change { port: "b".into(), side: Side::Egress, link };
        assert_eq!(parse(text).unwrap(), Request::Set(Box::new(change)));
    }

    #[test]
    fn a_client_may_be_slow_and_may_be_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let mut server = Server::listen(&path).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        client.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        let mut served = 0;
        let mut serve = |server: &mut Server| {
            server.serve(|_| {
                served += 1;
                Answer::Done(true)
            });
        };
        client.write_all(b"{\"get\": \"coun").unwrap();
        serve(&mut server);
        client.write_all(b"ters\"}\nnonsense\n").unwrap();
        serve(&mut server);
        let mut lines = BufReader::new(&client).lines();
        assert_eq!(lines.next().unwrap().unwrap(), r#"{"done":true}"#);
        assert!(lines.next().unwrap().unwrap().starts_with(r#"{"error":"no request"#));
        assert_eq!(server.fds().count(), 2);
        drop(lines);
        drop(client);
        serve(&mut server);
        assert_eq!((server.fds().count(), served), (1, 1));
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn an_endless_request_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let mut server = Server::listen(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        client.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while sent <= 4 * MAX_REQUEST {
            match (&client).write(&[b'x'; 4096]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            server.serve(|_| Answer::Done(true));
        }
        assert_eq!(server.fds().count(), 1);
        assert!(sent < 4 * MAX_REQUEST);
    }

    #[test]
    fn a_running_path_is_not_robbed_of_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let server = Server::listen(&path).unwrap();
        assert!(Server::listen(&path).is_err());
        // Without its owner, the file alone is no hindrance.
        let file = fs::hard_link(&path, dir.path().join("left"));
        drop(server);
        file.unwrap();
        assert!(Server::listen(&dir.path().join("left")).is_ok());
    }
}
