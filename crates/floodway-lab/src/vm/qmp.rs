//! Commands on QEMU's control socket (QMP). What is said there is [`Question`]'s, which the switch asks, too; this waits.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodway_switch::runtime::qmp::Question;
use serde_json::Value;

/// How long QEMU may take for an answer; decides hangs only.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a command and returns its result.
pub fn execute(path: &Path, command: &str, arguments: &Value) -> Result<Value> {
    let mut socket = UnixStream::connect(path)
        .with_context(|| format!("cannot connect to {}", path.display()))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    converse(&mut socket, Question::new(command, Some(arguments.clone())))
        .with_context(|| format!("QMP {command}"))
}

fn converse(socket: &mut UnixStream, mut question: Question) -> Result<Value> {
    let mut buffer = [0; 4096];
    loop {
        let n = socket.read(&mut buffer)?;
        ensure!(n > 0, "QEMU has closed its control socket");
        let mut commands = Vec::new();
        let answer = question.receive(&buffer[..n], &mut commands)?;
        socket.write_all(&commands)?;
        if let Some(answer) = answer {
            return Ok(answer);
        }
    }
}
