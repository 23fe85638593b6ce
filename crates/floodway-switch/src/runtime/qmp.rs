//! One command on QEMU's control socket (QMP).
//!
//! # Theory of operation
//! Bytes go in, commands and the answer come out; sockets and time are the caller's. What speaks there is not
//! necessarily QEMU, so the conversation is bounded in bytes and lines are read into the few fields that are wanted: the work
//! and the memory are linear in what came.
//!
//! States: the greeting, the answer to `qmp_capabilities`, the answer to the command. Events may come in between.
//!
//! Source: QEMU's `docs/interop/qmp-spec.rst`.

use std::borrow::Cow;
use std::io;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

/// Bytes of a whole conversation: what `query-cpus-fast` says of 4096 CPUs has 600 KB.
pub const MAX_BYTES: usize = 1 << 20;
/// Characters of what the peer says that are passed on.
const MAX_EXCERPT: usize = 200;
/// The command that ends the negotiation.
const CAPABILITIES: &str = "qmp_capabilities";

/// What is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Capabilities,
    Command,
}

/// One command, from the greeting to its answer.
#[derive(Debug)]
pub struct Question {
    state: State,
    command: String,
    arguments: Option<Value>,
    /// A line that has not ended yet.
    line: Vec<u8>,
    received: usize,
    /// Bytes scanned and parsed.
    work: usize,
}

#[derive(Deserialize)]
struct Greeting {
    #[serde(rename = "QMP")]
    _qmp: IgnoredAny,
}

#[derive(Deserialize)]
struct Answer<'a, T> {
    #[serde(rename = "return")]
    result: Option<T>,
    #[serde(borrow)]
    error: Option<Refusal<'a>>,
}

#[derive(Deserialize)]
struct Refusal<'a> {
    #[serde(borrow, default)]
    class: Cow<'a, str>,
    #[serde(borrow, default)]
    desc: Cow<'a, str>,
}

impl Question {
    /// A conversation of which nothing was said yet.
    #[must_use]
    pub fn new(command: &str, arguments: Option<Value>) -> Self {
        let (state, line) = (State::Greeting, Vec::new());
        Self { state, command: command.into(), arguments, line, received: 0, work: 0 }
    }

    /// Takes what the peer has sent, in pieces of any size, and appends to `commands` what is to be sent. Returns what the
    /// command has returned once that is there.
    ///
    /// # Errors
    /// What the peer says is not QMP, is too long, or is a refusal.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        mut bytes: &[u8],
        commands: &mut Vec<u8>,
    ) -> io::Result<Option<T>> {
        self.received = self.received.saturating_add(bytes.len());
        if self.received > MAX_BYTES {
            return Err(wrong("the answer is too long"));
        }
        self.work += bytes.len();
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (piece, rest) = bytes.split_at(end + 1);
            self.line.extend_from_slice(piece);
            let line = std::mem::take(&mut self.line);
            if let Some(result) = self.receive_line(&line, commands)? {
                return Ok(Some(result));
            }
            bytes = rest;
        }
        self.line.extend_from_slice(bytes);
        Ok(None)
    }

    /// Bytes that were looked at so far, as often as they were: at most twice what came.
    #[must_use]
    pub const fn work(&self) -> usize {
        self.work
    }

    fn receive_line<T: DeserializeOwned>(
        &mut self,
        line: &[u8],
        commands: &mut Vec<u8>,
    ) -> io::Result<Option<T>> {
        self.work += line.len();
        match self.state {
            State::Greeting => {
                let greeting: Result<Greeting, _> = serde_json::from_slice(line);
                greeting.map_err(|_| wrong("it is not a QMP socket"))?;
                self.state = State::Capabilities;
                commands.extend_from_slice(&written(CAPABILITIES, None));
            }
            State::Capabilities => {
                if answer::<IgnoredAny>(CAPABILITIES, line)?.is_some() {
                    self.state = State::Command;
                    commands.extend_from_slice(&written(&self.command, self.arguments.as_ref()));
                }
            }
            State::Command => return answer(&self.command, line),
        }
        Ok(None)
    }
}

/// A command as it is sent.
fn written(command: &str, arguments: Option<&Value>) -> Vec<u8> {
    let line = match arguments {
        Some(arguments) => json!({ "execute": command, "arguments": arguments }),
        None => json!({ "execute": command }),
    };
    (line.to_string() + "\n").into_bytes()
}

/// Returns what `command` has returned; `None` for an event.
fn answer<'a, T: Deserialize<'a>>(command: &str, line: &'a [u8]) -> io::Result<Option<T>> {
    let answer: Answer<'_, T> = serde_json::from_slice(line)
        .map_err(|_| wrong(&format!("the answer to {command} is not QMP, or not as expected")))?;
    match answer.error {
        Some(Refusal { class, desc }) => {
            let text: String = format!("{class}: {desc}").chars().take(MAX_EXCERPT).collect();
            Err(wrong(&format!("{command}: {text:?}")))
        }
        None => Ok(answer.result),
    }
}

/// What the peer says cannot be used.
pub(crate) fn wrong(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_its_arguments_and_returns_what_the_peer_says() {
        let mut question = Question::new("migrate", Some(json!({ "uri": "exec:cat" })));
        let mut commands = Vec::new();
        let lines = "{\"QMP\": {}}\n{\"return\": {}}\n{\"event\": \"STOP\"}\n";
        let none = question.receive::<Value>(lines.as_bytes(), &mut commands).unwrap();
        assert_eq!(none, None);
        let said = String::from_utf8(commands).unwrap();
        let said: Vec<Value> =
            said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let command = json!({ "execute": "migrate", "arguments": { "uri": "exec:cat" } });
        assert_eq!(said, [json!({ "execute": "qmp_capabilities" }), command]);
        let answer = question.receive::<Value>(b"{\"return\": {\"n\": 1}}\n", &mut Vec::new());
        assert_eq!(answer.unwrap(), Some(json!({ "n": 1 })));
    }
}
