//! Commands that run to their end.
//!
//! One loop polls the output pipes and the process's pidfd, so that the output goes to the lab as
//! it comes. The command is over when it has exited and its output is closed: like a remote shell, a command that
//! leaves a child with the output open goes on until that child ends or the time is up.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use floodway_guest::protocol::{Command, Exit, OutputStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

const READ_SIZE: usize = 64 * 1024;

/// Makes a process in a group of its own out of a command line.
///
/// # Errors
/// When the command line is empty.
pub fn prepare(command: &Command) -> Result<std::process::Command> {
    let (program, args) = command.argv.split_first().context("argv is empty: name a program")?;
    let mut process = std::process::Command::new(program);
    process.args(args).envs(&command.env).process_group(0);
    process.current_dir(command.dir.as_deref().unwrap_or("/"));
    Ok(process)
}

/// Starts a prepared command.
///
/// # Errors
/// When there is no such program or no memory; the error names the program.
pub fn start(mut process: std::process::Command) -> Result<Child> {
    let program = process.get_program().to_string_lossy().into_owned();
    process.spawn().with_context(|| format!("cannot run {program}"))
}

/// Runs a command with `stdin` as its input, hands its output to `output` as it comes, and kills the
/// process group after `timeout`.
///
/// # Errors
/// When it cannot be started.
pub fn run(
    command: &Command,
    stdin: &[u8],
    timeout: Duration,
    output: impl Fn(OutputStream, &[u8]),
) -> Result<Exit> {
    let mut process = prepare(command)?;
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begin = Instant::now();
    let deadline = begin + timeout;
    let mut child = start(process)?;
    let feed = child.stdin.take();
    let timed_out = thread::scope(|scope| {
        scope.spawn(|| feed_stdin(feed, stdin));
        let timed_out = relay_until_end(&mut child, deadline, &output);
        if !matches!(timed_out, Ok(false)) {
            // Whoever may still read our pipe must go, or the feeding thread never ends.
            kill_group(&child);
        }
        timed_out
    })?;
    let status = child.wait()?;
    Ok(exit(status, timed_out, begin.elapsed()))
}

/// An [`Exit`] of a status.
pub fn exit(status: ExitStatus, timed_out: bool, elapsed: Duration) -> Exit {
    let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    Exit { code: status.code(), signal: status.signal(), timed_out, elapsed_ns }
}

/// The process ID of a child that has not been reaped.
pub fn pid_of(child: &Child) -> Result<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("process ID out of range")
}

/// A descriptor that becomes readable when the child ends.
pub fn pidfd_of(child: &Child) -> Result<OwnedFd> {
    Ok(pidfd_open(pid_of(child)?, PidfdFlags::empty())?)
}

/// Waits until one of `descriptors` is ready; none is when the deadline has passed.
pub fn poll_until(descriptors: &mut [PollFd<'_>], deadline: Instant) -> Result<usize> {
    let left = deadline.saturating_duration_since(Instant::now());
    match poll(descriptors, Some(&Timespec::try_from(left)?)) {
        Err(rustix::io::Errno::INTR) => poll_until(descriptors, deadline),
        ready => Ok(ready?),
    }
}

fn feed_stdin(pipe: Option<ChildStdin>, bytes: &[u8]) {
    if let Some(mut pipe) = pipe {
        // A command need not read its input to the end.
        let _ = pipe.write_all(bytes);
    }
}

fn kill_group(child: &Child) {
    if let Ok(pid) = pid_of(child) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Relays the output until it is closed and the child has ended. `true` when the time was up first.
fn relay_until_end(
    child: &mut Child,
    deadline: Instant,
    output: &impl Fn(OutputStream, &[u8]),
) -> Result<bool> {
    let mut stdout = child.stdout.take();
    let mut stderr = child.stderr.take();
    let pidfd = pidfd_of(child)?;
    let mut buffer = vec![0; READ_SIZE];
    while stdout.is_some() || stderr.is_some() {
        let mut ready = Vec::with_capacity(2);
        ready.extend(
            stdout.as_ref().map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)),
        );
        ready.extend(
            stderr.as_ref().map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)),
        );
        if poll_until(&mut ready, deadline)? == 0 {
            return Ok(true);
        }
        let mut ready = ready
            .iter()
            .map(|descriptor| !descriptor.revents().is_empty())
            .collect::<Vec<_>>()
            .into_iter();
        if stdout.is_some() && ready.next() == Some(true) {
            relay(&mut stdout, &mut buffer, |piece| output(OutputStream::Stdout, piece))?;
        }
        if stderr.is_some() && ready.next() == Some(true) {
            relay(&mut stderr, &mut buffer, |piece| output(OutputStream::Stderr, piece))?;
        }
    }
    let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
    Ok(poll_until(&mut ended, deadline)? == 0)
}

/// Relays one piece; closes the pipe at its end.
fn relay<P: Read>(
    pipe: &mut Option<P>,
    buffer: &mut [u8],
    output: impl FnOnce(&[u8]),
) -> Result<()> {
    if let Some(open) = pipe {
        match open.read(buffer)? {
            0 => *pipe = None,
            len => output(&buffer[..len]),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const LONG: Duration = Duration::from_secs(120);

    fn shell(script: &str, stdin: &[u8], timeout: Duration) -> (Exit, Vec<u8>, Vec<u8>) {
        let argv = ["sh", "-c", script].map(String::from).to_vec();
        let output = Mutex::new((Vec::new(), Vec::new()));
        let exit = run(&Command { argv, ..Command::default() }, stdin, timeout, |stream, piece| {
            let mut output = output.lock().unwrap();
            match stream {
                OutputStream::Stdout => output.0.extend_from_slice(piece),
                OutputStream::Stderr => output.1.extend_from_slice(piece),
            }
        });
        let (stdout, stderr) = output.into_inner().unwrap();
        (exit.unwrap(), stdout, stderr)
    }

    #[test]
    fn output_and_code_come_back() {
        let (exit, stdout, stderr) = shell("echo out; echo err >&2; exit 7", b"", LONG);
        assert_eq!((exit.code, exit.signal, exit.timed_out), (Some(7), None, false));
        assert_eq!((&stdout[..], &stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    }

    #[test]
    fn input_larger_than_a_pipe_passes_through() {
        let input: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
        let (exit, stdout, _) = shell("cat", &input, LONG);
        assert_eq!(exit.code, Some(0));
        assert!(stdout == input);
    }

    #[test]
    fn input_that_is_not_read_does_no_harm() {
        let (exit, ..) = shell("exit 0", &vec![0; 1_000_000], LONG);
        assert_eq!(exit.code, Some(0));
    }

    #[test]
    fn the_whole_group_dies_when_the_time_is_up() {
        let (exit, ..) = shell("sleep 1000 & sleep 1000", b"", Duration::from_millis(50));
        assert_eq!((exit.code, exit.signal, exit.timed_out), (None, Some(9), true));
    }

    #[test]
    fn a_signal_is_told_from_a_code() {
        let (exit, ..) = shell("kill -11 $$", b"", LONG);
        assert_eq!((exit.code, exit.signal), (None, Some(11)));
    }

    #[test]
    fn errors_name_the_program() {
        let missing = Command { argv: vec!["/no/such".into()], ..Command::default() };
        let error = run(&missing, b"", LONG, |_, _| ()).unwrap_err();
        assert!(format!("{error:#}").contains("/no/such"));
        assert!(run(&Command::default(), b"", LONG, |_, _| ()).is_err());
    }
}
