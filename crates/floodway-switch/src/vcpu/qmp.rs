//! The vCPU threads of a VM, asked for on QEMU's control socket (QMP).
//!
//! The socket takes one client at a time, so each question is a connection of its own, of at most a few seconds. An answer
//! is bounded: what speaks there is not necessarily QEMU.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// How long one read may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a whole conversation: 4096 CPUs have 600 KB.
const MAX_BYTES: u64 = 1 << 20;

/// Numbers of the VM's vCPU threads.
///
/// # Errors
/// Nobody listens on the socket, somebody else is connected, or the answer is none.
pub fn vcpus(socket: &Path) -> io::Result<Vec<i32>> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut lines = BufReader::new((&stream).take(MAX_BYTES));
    let greeting = read(&mut lines)?;
    if greeting.get("QMP").is_none() {
        return Err(wrong("it is not a QMP socket"));
    }
    execute(&stream, &mut lines, "qmp_capabilities")?;
    let cpus = execute(&stream, &mut lines, "query-cpus-fast")?;
    let id = |cpu: &Value| i32::try_from(cpu.get("thread-id")?.as_i64()?).ok().filter(|&id| id > 0);
    let ids = cpus.as_array().and_then(|cpus| cpus.iter().map(id).collect::<Option<Vec<_>>>());
    ids.ok_or_else(|| wrong("query-cpus-fast names no threads"))
}

fn execute(mut stream: &UnixStream, lines: &mut impl BufRead, command: &str) -> io::Result<Value> {
    let line = format!("{}\n", json!({ "execute": command }));
    stream.write_all(line.as_bytes())?;
    loop {
        let mut answer = read(lines)?;
        if let Some(result) = answer.get_mut("return") {
            return Ok(result.take());
        }
        if let Some(error) = answer.get("error") {
            let text: String = error.to_string().chars().take(200).collect();
            return Err(wrong(&format!("{command}: {text}")));
        }
        // Events come in between.
    }
}

fn read(lines: &mut impl BufRead) -> io::Result<Value> {
    let mut line = String::new();
    lines.read_line(&mut line).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let problem =
                "no answer; another client may be connected, give floodway a socket of its own";
            io::Error::new(io::ErrorKind::TimedOut, problem)
        }
        _ => error,
    })?;
    serde_json::from_str(&line).map_err(|_| wrong("the answer is not QMP"))
}

fn wrong(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Answers each line that it hears with the next of `answers`.
    fn asked(greeting: &str, answers: &[&str]) -> io::Result<Vec<i32>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let (greeting, answers) = (greeting.to_owned(), answers.join("\n@").replace('\n', ""));
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(format!("{greeting}\n").as_bytes());
            let mut commands = BufReader::new(stream.try_clone().unwrap()).lines();
            for answer in answers.split('@') {
                if commands.next().is_none() {
                    return;
                }
                let _ = stream.write_all(format!("{}\n", answer.replace('|', "\n")).as_bytes());
            }
        });
        let result = vcpus(&path);
        server.join().unwrap();
        result
    }

    const HELLO: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;
    const OK: &str = r#"{"return": {}}"#;

    #[test]
    fn threads_are_those_that_qemu_names() {
        let cpus = r#"{"event": "RESUME"}|{"return": [{"cpu-index": 0, "thread-id": 77}, {"thread-id": 78}]}"#;
        assert_eq!(asked(HELLO, &[OK, cpus]).unwrap(), [77, 78]);
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        assert!(asked("220 mail ready", &[]).is_err());
        assert!(asked(r#"{"hello": 1}"#, &[]).unwrap_err().to_string().contains("QMP"));
        for cpus in [r#"{"error": {"class": "CommandNotFound"}}"#, r#"{"return": [{}]}"#, OK, ""] {
            assert!(asked(HELLO, &[OK, cpus]).is_err(), "{cpus}");
        }
        let evil = r#"{"return": [{"thread-id": -1}]}"#;
        assert!(asked(HELLO, &[OK, evil]).is_err(), "a number that would mean something else");
        assert!(vcpus(Path::new("/nonexistent/qmp")).is_err());
    }
}
