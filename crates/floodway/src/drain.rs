//! `floodway drain`: waits until a guest can leave.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use floodway_switch::api::control::DrainStatus;
use floodway_switch::control::ControlClient;

use crate::cli::DrainArgs;

/// How often the switch is asked.
const INTERVAL: Duration = Duration::from_millis(20);
/// How often a line is printed where lines stay.
const REPORT: Duration = Duration::from_secs(1);

/// Begins a drain and waits for its end, or ends one.
///
/// # Errors
/// The switch does not answer, has no such port, or is not done in time.
pub fn drain(args: &DrainArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&args.control.path)?;
    let status = client.drain(&args.port, !args.undo)?;
    let mut progress = Progress::new(&args.port);
    if args.undo {
        return progress.end("no longer draining");
    }
    wait(&client, args, status, &mut progress)
}

fn wait(
    client: &ControlClient,
    args: &DrainArgs,
    mut status: DrainStatus,
    progress: &mut Progress<'_>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    loop {
        if status.drained {
            return progress.end("drained; the guest can leave");
        }
        if !status.draining {
            anyhow::bail!("{}: the drain was ended by somebody else", args.port);
        }
        if Instant::now() >= deadline {
            anyhow::bail!(
                "{}: not drained after {} s: {}; it goes on draining, --undo ends that",
                args.port,
                args.timeout,
                left(&status)
            );
        }
        progress.show(&status)?;
        thread::sleep(INTERVAL);
        status = client.drain_status(&args.port)?;
    }
}

fn left(status: &DrainStatus) -> String {
    format!("{} flows online, {} bytes stored", status.online, status.stored_bytes)
}

/// What is left: one line that changes on a terminal, a line a second elsewhere.
struct Progress<'a> {
    port: &'a str,
    terminal: bool,
    shown: Option<Instant>,
}

impl<'a> Progress<'a> {
    fn new(port: &'a str) -> Self {
        Self { port, terminal: io::stdout().is_terminal(), shown: None }
    }

    fn show(&mut self, status: &DrainStatus) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.terminal {
            write!(out, "\r\x1b[K{}: draining: {}", self.port, left(status))?;
        } else if self.shown.is_none_or(|shown| shown.elapsed() >= REPORT) {
            writeln!(out, "{}: draining: {}", self.port, left(status))?;
            self.shown = Some(Instant::now());
        }
        Ok(out.flush()?)
    }

    fn end(&mut self, what: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.terminal {
            write!(out, "\r\x1b[K")?;
        }
        writeln!(out, "{}: {what}", self.port)?;
        Ok(out.flush()?)
    }
}
