//! QEMU's control socket (QMP): one JSON object a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// How long QEMU may take for an answer; decides hangs only.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A connection that is ready for commands.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and leaves the negotiation behind.
    pub fn connect(path: &Path) -> Result<Self> {
        let socket = UnixStream::connect(path)
            .with_context(|| format!("cannot connect to {}", path.display()))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let mut qmp = Self { reader: BufReader::new(socket) };
        qmp.read().context("no greeting from QEMU")?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its result. Events in between are skipped.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let mut line = serde_json::to_vec(&json!({"execute": command, "arguments": arguments}))?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line)?;
        loop {
            let mut answer = self.read().with_context(|| format!("QMP {command}"))?;
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = answer.get("error") {
                bail!("QMP {command}: {error}");
            }
        }
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            bail!("QEMU has closed its control socket");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
