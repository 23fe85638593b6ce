//! Programs that end before the comparison does, or with it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// How often a waiting parent looks whether its child has ended.
const POLL: Duration = Duration::from_millis(10);

/// Runs a program to its end.
///
/// # Errors
/// When it cannot be started or fails; the error quotes the command and its standard error.
pub(super) fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start `{}`", describe(command)))?;
    let (status, stderr) = (output.status, String::from_utf8_lossy(&output.stderr));
    ensure!(status.success(), "`{}` failed ({status}): {}", describe(command), stderr.trim());
    Ok(())
}

/// Runs a program to its end, and kills it when that takes longer than `timeout`. It dies with the calling thread,
/// too, however that ends.
///
/// # Errors
/// When it cannot be started or takes too long.
pub(super) fn run_for(command: &mut Command, timeout: Duration) -> Result<ExitStatus> {
    let parent = getpid();
    // SAFETY: the closure runs between fork and exec and calls only async-signal-safe functions.
    unsafe {
        command.pre_exec(move || die_with(parent));
    }
    let child = command.spawn();
    let mut child = Killed(child.with_context(|| format!("cannot start `{}`", describe(command)))?);
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        if let Some(status) = child.0.try_wait()? {
            return Ok(status);
        }
        sleep(POLL);
    }
    bail!("`{}` still runs after {timeout:?}", describe(command))
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(std::ffi::OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// A child that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both do nothing to a child that has ended; there is nobody to tell about one that cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks the kernel to kill the calling process when the thread that forked it ends.
fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the request took effect.
    if getppid() != Some(parent) {
        return Err(Errno::SRCH.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_failing_program_is_quoted_with_its_stderr() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let error = run(&mut shell("echo oops >&2; exit 3")).unwrap_err().to_string();
        assert!(error.contains("sh -c") && error.contains("oops"), "{error}");
        run(&mut shell("true")).unwrap();
        assert!(run(&mut Command::new("/nonexistent/program")).is_err());
        assert_eq!(run_for(&mut shell("exit 3"), LONG).unwrap().code(), Some(3));
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0.part\"; mv \"$0.part\" \"$0\"; exec sleep 1000"]);
        command.arg(&file);
        let error = run_for(&mut command, Duration::from_secs(2)).unwrap_err().to_string();
        assert!(error.contains("still runs"), "{error}");
        // Without the file it was killed before it could say who it is.
        if let Ok(pid) = std::fs::read_to_string(&file) {
            assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
        }
    }
}
