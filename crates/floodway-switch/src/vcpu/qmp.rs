//! The vCPU threads of a VM, asked for on QEMU's control socket (QMP).
//!
//! # Theory of operation
//! Bytes go in, commands and the answer come out; sockets and time are `call`'s. What speaks there is not
//! necessarily QEMU, so the conversation is bounded in bytes and lines are read into the few fields that are wanted: the work
//! and the memory are linear in what came.
//!
//! States: the greeting, the answer to `qmp_capabilities`, the answer to `query-cpus-fast`. Events may come in between.
//!
//! Source: QEMU's `docs/interop/qmp-spec.rst` and `qapi/machine.json`.

use std::borrow::Cow;
use std::io;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Bytes of a whole conversation: 4096 CPUs have 600 KB.
pub const MAX_BYTES: usize = 1 << 20;
/// vCPUs of a VM: as many as QEMU allows any machine.
pub const MAX_VCPUS: usize = 4096;
/// Characters of what the peer says that are passed on.
const MAX_EXCERPT: usize = 200;

/// What is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Capabilities,
    Cpus,
}

impl State {
    /// The command whose answer is expected.
    const fn command(self) -> &'static str {
        match self {
            Self::Greeting => "",
            Self::Capabilities => "qmp_capabilities",
            Self::Cpus => "query-cpus-fast",
        }
    }
}

/// One question, from the greeting to the numbers of the threads.
#[derive(Debug)]
pub struct Conversation {
    state: State,
    /// A line that has not ended yet.
    line: Vec<u8>,
    received: usize,
    /// Bytes scanned and parsed.
    work: usize,
}

impl Default for Conversation {
    fn default() -> Self {
        Self { state: State::Greeting, line: Vec::new(), received: 0, work: 0 }
    }
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

#[derive(Deserialize)]
struct Cpu {
    #[serde(rename = "thread-id")]
    thread_id: i32,
}

impl Conversation {
    /// Takes what the peer has sent, in pieces of any size, and appends to `commands` what is to be sent. Returns the numbers
    /// of the VM's vCPU threads once they are there, each once and in order.
    ///
    /// # Errors
    /// What the peer says is not QMP, is too long, or is a refusal.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        commands: &mut Vec<u8>,
    ) -> io::Result<Option<Vec<i32>>> {
        self.received = self.received.saturating_add(bytes.len());
        if self.received > MAX_BYTES {
            return Err(wrong("the answer is too long"));
        }
        self.work += bytes.len();
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (piece, rest) = bytes.split_at(end + 1);
            self.line.extend_from_slice(piece);
            let line = std::mem::take(&mut self.line);
            if let Some(threads) = self.receive_line(&line, commands)? {
                return Ok(Some(threads));
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

    fn receive_line(
        &mut self,
        line: &[u8],
        commands: &mut Vec<u8>,
    ) -> io::Result<Option<Vec<i32>>> {
        self.work += line.len();
        let next = match self.state {
            State::Greeting => {
                let greeting: Result<Greeting, _> = serde_json::from_slice(line);
                greeting.map_err(|_| wrong("it is not a QMP socket"))?;
                State::Capabilities
            }
            State::Capabilities => match self.answer::<IgnoredAny>(line)? {
                Some(_) => State::Cpus,
                None => return Ok(None),
            },
            State::Cpus => return self.answer(line)?.map(threads).transpose(),
        };
        self.state = next;
        commands.extend_from_slice(b"{\"execute\":\"");
        commands.extend_from_slice(next.command().as_bytes());
        commands.extend_from_slice(b"\"}\n");
        Ok(None)
    }

    /// Returns what the command has returned; `None` for an event.
    fn answer<'a, T: Deserialize<'a>>(&self, line: &'a [u8]) -> io::Result<Option<T>> {
        let command = self.state.command();
        let answer: Answer<'_, T> = serde_json::from_slice(line).map_err(|_| {
            wrong(&format!("the answer to {command} is not QMP, or not as expected"))
        })?;
        match answer.error {
            Some(Refusal { class, desc }) => {
                let text: String = format!("{class}: {desc}").chars().take(MAX_EXCERPT).collect();
                Err(wrong(&format!("{command}: {text:?}")))
            }
            None => Ok(answer.result),
        }
    }
}

fn threads(cpus: Vec<Cpu>) -> io::Result<Vec<i32>> {
    if cpus.len() > MAX_VCPUS {
        return Err(wrong(&format!("query-cpus-fast names more than {MAX_VCPUS} threads")));
    }
    let mut threads: Vec<i32> = cpus.into_iter().map(|cpu| cpu.thread_id).collect();
    if threads.iter().any(|&thread| thread <= 0) {
        return Err(wrong("query-cpus-fast names a thread that cannot be"));
    }
    threads.sort_unstable();
    threads.dedup();
    Ok(threads)
}

fn wrong(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::fuzz::qmp as check_conversation;

    /// A peer that says all of `lines` without being asked.
    fn heard(lines: &[&str]) -> io::Result<Option<Vec<i32>>> {
        let said = lines.iter().map(|line| format!("{line}\r\n")).collect::<String>();
        Conversation::default().receive(said.as_bytes(), &mut Vec::new())
    }

    const HELLO: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;
    const OK: &str = r#"{"return": {}}"#;

    #[test]
    fn threads_are_those_that_qemu_names() {
        let event = r#"{"event": "RESUME", "timestamp": {"seconds": 1}}"#;
        let cpus = r#"{"return": [{"cpu-index": 0, "thread-id": 78}, {"thread-id": 77, "props": {}}, {"thread-id": 78}]}"#;
        assert_eq!(heard(&[HELLO, event, OK, event, cpus]).unwrap(), Some(vec![77, 78]));
    }

    #[test]
    fn commands_follow_the_answers() {
        let (mut conversation, mut commands) = (Conversation::default(), Vec::new());
        let steps = [
            (HELLO, "{\"execute\":\"qmp_capabilities\"}\n"),
            (r#"{"event": "RESUME"}"#, ""),
            (OK, "{\"execute\":\"query-cpus-fast\"}\n"),
        ];
        for (line, command) in steps {
            let threads = conversation.receive(format!("{line}\n").as_bytes(), &mut commands);
            assert_eq!(threads.unwrap(), None);
            assert_eq!(String::from_utf8_lossy(&commands), command);
            commands.clear();
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        assert!(heard(&["220 mail ready"]).is_err());
        assert!(heard(&[r#"{"hello": 1}"#]).unwrap_err().to_string().contains("QMP"));
        let refused = r#"{"error": {"class": "CommandNotFound", "desc": "no \u001b[2J"}}"#;
        let problem = heard(&[HELLO, OK, refused]).unwrap_err().to_string();
        assert!(problem.starts_with("query-cpus-fast: \"CommandNotFound"), "{problem}");
        assert!(!problem.contains('\u{1b}'), "no control characters in logs");
        for cpus in [r#"{"return": [{}]}"#, OK, "", "[1]"] {
            assert!(heard(&[HELLO, OK, cpus]).is_err(), "{cpus}");
        }
        for id in ["-1", "0", "4294967297", "\"7\"", "1.5"] {
            let cpus = format!("{{\"return\": [{{\"thread-id\": {id}}}]}}");
            assert!(
                heard(&[HELLO, OK, &cpus]).is_err(),
                "a number that would mean something else: {id}"
            );
        }
    }

    #[test]
    fn an_answer_is_bounded() {
        let many = vec![r#"{"thread-id":7}"#; MAX_VCPUS + 1].join(",");
        let problem = heard(&[HELLO, OK, &format!("{{\"return\": [{many}]}}")]).unwrap_err();
        assert!(problem.to_string().contains("4096"), "{problem}");
        let mut conversation = Conversation::default();
        let spaces = [b' '; 4096];
        let taken = (0..).take_while(|_| conversation.receive(&spaces, &mut Vec::new()).is_ok());
        assert_eq!(taken.count() * spaces.len(), MAX_BYTES);
    }

    #[test]
    fn seeds_of_the_fuzz_target_hold() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/qmp");
        let seeds = std::fs::read_dir(dir).expect("seeds").map(|seed| seed.expect("a seed").path());
        let fed =
            seeds.map(|seed| check_conversation(&std::fs::read(seed).expect("a seed"))).count();
        assert!(fed >= 3, "{fed} seeds");
    }

    proptest! {
        /// The property of the fuzz target `qmp`, on text that gets past the greeting more often.
        #[test]
        fn any_bytes_are_an_answer_or_an_error_at_a_bounded_cost(
            words in proptest::collection::vec(prop_oneof![
                Just(HELLO), Just(OK), Just("\n"), Just("{\"return\": ["), Just("{\"thread-id\": 7}"),
                Just(","), Just("]}"), Just("{\"event\": 1}"), Just("\u{fffd}"), Just("{\"error\": {}}"),
            ], 0..40),
            cut in any::<u8>(),
        ) {
            check_conversation(&[&[cut], words.concat().as_bytes()].concat());
        }
    }
}
