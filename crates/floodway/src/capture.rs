//! `floodway capture`: frames of a port or uplink, as a pcapng file.

mod filter;

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use floodway_switch::api::capture::{CaptureRequest, CaptureStatus};
use floodway_switch::control::{ControlClient, Next};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::CaptureArgs;
use crate::table::{self, Column};

/// Captures until somebody interrupts, or what was asked for is there; or shows or ends captures.
///
/// # Errors
/// The filter is not valid, the file cannot be written, or the switch does not answer or refuses.
pub fn capture(args: &CaptureArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&args.control.path)?;
    match (&args.interface, args.end) {
        (Some(interface), _) => record(&client, &request(interface, args)?, &args.write),
        (None, Some(id)) => print(&summary(&client.end_capture(id)?)),
        (None, None) => print(&list(&client.captures()?)),
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Writes a capture to `path`.
fn record(client: &ControlClient, request: &CaptureRequest, path: &Path) -> anyhow::Result<()> {
    let mut output = Output::open(path)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // A second one ends the process at once.
        flag::register_conditional_default(signal, Arc::clone(&interrupted))?;
        flag::register(signal, Arc::clone(&interrupted))?;
    }
    let (is_piped, mut failure) = (path == Path::new("-"), None);
    let id = client.capture(request, |bytes| {
        // Who reads a pipe sees each frame when it comes.
        if let Err(error) = output.write(bytes) {
            failure = Some(error);
            return Next::Leave;
        }
        if is_piped && bytes.is_empty() && is_reader_gone() {
            return Next::Leave;
        }
        if interrupted.load(Ordering::Relaxed) { Next::End } else { Next::Continue }
    })?;
    match failure {
        // Wireshark has been closed.
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Some(error) => return Err(error).context("the capture cannot be written"),
        None => {}
    }
    let captures = client.captures().unwrap_or_default();
    if let Some(status) = captures.iter().find(|capture| capture.id == id) {
        eprintln!("{}", summary(status));
    }
    Ok(())
}

/// Returns `true` if standard output is a pipe that nobody reads any more.
fn is_reader_gone() -> bool {
    let stdout = io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok()
        && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

fn request(interface: &str, args: &CaptureArgs) -> anyhow::Result<CaptureRequest> {
    let expression = args.filter.clone().unwrap_or_default();
    let filter = match expression.is_empty() {
        true => Vec::new(),
        false => filter::compile(&expression, args.snaplen)?,
    };
    let stages = match args.stage.is_empty() {
        true => CaptureRequest::new("").stages,
        false => args.stage.iter().map(|&stage| stage.into()).collect(),
    };
    Ok(CaptureRequest {
        interface: interface.to_owned(),
        stages,
        drops: args.drops,
        snap_len: args.snaplen,
        filter,
        expression,
        packets: args.count,
        seconds: args.duration,
    })
}

/// Where a capture goes.
struct Output {
    writer: Box<dyn Write>,
    /// The same file while it has what was in it before: a capture that is refused leaves it alone.
    stale: Option<File>,
}

impl Output {
    fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            if io::stdout().is_terminal() {
                bail!(
                    "a capture is no text: write it to a file (-w FILE) or a pipe (| wireshark -k -i -)"
                );
            }
            return Ok(Self { writer: Box::new(io::stdout().lock()), stale: None });
        }
        let cannot = || format!("cannot write {}", path.display());
        // What guests say is not for everybody.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).with_context(cannot)?;
        let is_regular = file.metadata().with_context(cannot)?.is_file();
        let stale = if is_regular { Some(file.try_clone()?) } else { None };
        Ok(Self { writer: Box::new(file), stale })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !bytes.is_empty()
            && let Some(file) = self.stale.take()
        {
            file.set_len(0)?;
        }
        self.writer.write_all(bytes)?;
        self.writer.flush()
    }
}

/// As tcpdump says it.
fn summary(status: &CaptureStatus) -> String {
    let CaptureStatus { interface, captured, seen, lost, end, .. } = status;
    let end = if end.is_empty() { String::new() } else { format!("; {end}") };
    format!("{interface}: {captured} frames captured, {seen} seen, {lost} lost{end}")
}

fn list(captures: &[CaptureStatus]) -> String {
    let end = |c: &CaptureStatus| if c.running { "running".to_owned() } else { c.end.clone() };
    let columns: [Column<'_, CaptureStatus>; 7] = [
        ("ID", &|c| c.id.to_string()),
        ("INTERFACE", &|c| c.interface.clone()),
        ("UID", &|c| c.uid.to_string()),
        ("CAPTURED", &|c| c.captured.to_string()),
        ("SEEN", &|c| c.seen.to_string()),
        ("LOST", &|c| c.lost.to_string()),
        ("STATE", &end),
    ];
    table::columns(captures, 2, &columns).unwrap_or_else(|| "no captures".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_are_shown_with_what_was_lost() {
        let status = CaptureStatus {
            interface: "vm1".into(),
            captured: 7,
            seen: 10,
            lost: 3,
            end: "the port was removed".into(),
            ..CaptureStatus::default()
        };
        let expected = "vm1: 7 frames captured, 10 seen, 3 lost; the port was removed";
        assert_eq!(summary(&status), expected);
        let text = list(&[CaptureStatus { id: 5, uid: 998, running: true, ..status }]);
        let words: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["5", "vm1", "998", "7", "10", "3", "running"]);
        assert_eq!(list(&[]), "no captures");
    }
}
