//! `floodway capture`: frames of a port or uplink, as a pcapng file.

mod filter;

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use floodway_switch::api::capture::{CaptureRequest, CaptureStatus};
use floodway_switch::control::{ControlClient, Next};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::CaptureArgs;

/// Captures until somebody interrupts, or what was asked for is there.
///
/// # Errors
/// The filter is not valid, the file cannot be written, or the switch does not answer or refuses.
pub fn capture(args: &CaptureArgs) -> anyhow::Result<()> {
    let request = request(args)?;
    let mut output = output(&args.write)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // A second one ends the process at once.
        flag::register_conditional_default(signal, Arc::clone(&interrupted))?;
        flag::register(signal, Arc::clone(&interrupted))?;
    }
    let client = ControlClient::new(&args.control.path)?;
    let mut failure = None;
    let id = client.capture(&request, |bytes| {
        // Who reads a pipe sees each frame when it comes.
        if let Err(error) = output.write_all(bytes).and_then(|()| output.flush()) {
            failure = Some(error);
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

fn request(args: &CaptureArgs) -> anyhow::Result<CaptureRequest> {
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
        interface: args.interface.clone(),
        stages,
        drops: args.drops,
        snap_len: args.snaplen,
        filter,
        expression,
        packets: args.count,
        seconds: args.duration,
    })
}

fn output(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path == Path::new("-") {
        if io::stdout().is_terminal() {
            bail!(
                "a capture is no text: write it to a file (-w FILE) or a pipe (| wireshark -k -i -)"
            );
        }
        return Ok(Box::new(io::stdout().lock()));
    }
    // What guests say is not for everybody.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    Ok(Box::new(file.with_context(|| format!("cannot write {}", path.display()))?))
}

/// As tcpdump says it.
fn summary(status: &CaptureStatus) -> String {
    let CaptureStatus { interface, captured, seen, lost, end, .. } = status;
    let end = if end.is_empty() { String::new() } else { format!("; {end}") };
    format!("{interface}: {captured} frames captured, {seen} seen, {lost} lost{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_says_what_was_lost() {
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
    }
}
