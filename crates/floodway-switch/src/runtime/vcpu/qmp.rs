//! The vCPU threads of a VM, asked for on QEMU's control socket (QMP). The conversation is [`Question`]'s; sockets and time are
//! `call`'s.
//!
//! Source: QEMU's `qapi/machine.json`.

use std::io;

use serde::Deserialize;

use crate::runtime::qmp::{Question, wrong};

/// vCPUs of a VM: as many as QEMU allows any machine.
pub const MAX_VCPUS: usize = 4096;

/// One question, from the greeting to the numbers of the threads.
#[derive(Debug)]
pub struct Conversation(Question);

impl Default for Conversation {
    fn default() -> Self {
        Self(Question::new("query-cpus-fast", None))
    }
}

#[derive(Deserialize)]
struct Cpu {
    #[serde(rename = "thread-id")]
    thread_id: i32,
}

impl Conversation {
    /// As [`Question::receive`]. Returns the numbers of the VM's vCPU threads once they are there, each once and in order.
    ///
    /// # Errors
    /// As [`Question::receive`]; or the threads are too many, or none that can be.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        commands: &mut Vec<u8>,
    ) -> io::Result<Option<Vec<i32>>> {
        self.0.receive(bytes, commands)?.map(threads).transpose()
    }

    /// Bytes that were looked at so far, as often as they were: at most twice what came.
    #[must_use]
    pub const fn work(&self) -> usize {
        self.0.work()
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::runtime::qmp::MAX_BYTES;
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
