//! Programs that are to take the place of this one: how they are checked, and executed.
//!
//! # Theory of operation
//! A program is opened once, and what was opened is what runs: as data plane, and then in the place of the broker. Whatever becomes of its path meanwhile has no effect. Before
//! anything starts it is asked what it speaks, and whether it can read the configuration file: a broker of it will read that when it begins.
//! Whoever may ask for an upgrade may run any program as the broker's user, so only root and that user may; the check is against
//! mistakes.
//!
//! **Execution** keeps the process: its number, its children, what the service manager knows of it. Signals that stop or reload the switch are blocked from
//! before it until the next program listens to them, so none is lost or ends it in between.

use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use floodway_broker::store::Store;
use floodway_broker::upgrade::{Candidate, UpgradeControl};
use floodway_process::poll;
use floodway_process::speaks::Speaks;
use floodway_process::upgrade::{Program, Programs};
use floodway_switch::api::control::{ControlError, UpgradeRequest, UpgradeStatus};
use floodway_switch::operator::UpgradeApi;
use floodway_switch::switch::programs_status;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};

/// How long a program may take to answer: it only prints something.
const ANSWER: Duration = Duration::from_secs(5);
/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(1);
/// Longest answer in bytes.
const MAX_ANSWER: u64 = 4096;
/// Variables by which a service manager passes descriptors (sd_listen_fds(3)).
const PASSED: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];
/// The program of this process, whatever has become of its path.
const OWN: &str = "/proc/self/exe";

/// The program of this process.
pub fn own() -> Program {
    let path = fs::read_link(OWN).unwrap_or_default();
    Program::new(env!("CARGO_PKG_VERSION"), &path.to_string_lossy())
}

/// The programs that run when a broker begins, after those that a broker of before has left, if one has. With `replacing`, this broker was to be the last one's
/// replacement.
pub fn programs(left: Option<Programs>, replacing: bool) -> Programs {
    let own = own();
    let Some(mut programs) = left else {
        return Programs { broker: own.clone(), data_plane: own, ..Programs::default() };
    };
    if replacing && own.binary != programs.data_plane.binary {
        let problem = "the program of the broker could not be replaced; the data plane's was";
        programs.upgrades.problem = Some(problem.to_owned());
    }
    programs.broker = own;
    programs
}

/// What programs are executed by.
fn path_of(file: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// A command of the program of `candidate`, or of this one.
pub fn command(candidate: Option<&Candidate>) -> Command {
    // Not by its path: that may lead to another version by now.
    let mut command = match candidate {
        Some(candidate) => Command::new(path_of(&candidate.file)),
        None => Command::new(OWN),
    };
    command.arg0("floodway");
    command
}

/// Where upgrades are asked for.
pub struct Upgrader {
    control: Arc<UpgradeControl>,
    /// The configuration file.
    config: PathBuf,
    /// What the next broker would take everything from.
    store: Store,
}

impl Upgrader {
    /// Upgrades by `control` of a switch whose configuration file is `config`, and which leaves everything in `store`.
    pub fn new(control: Arc<UpgradeControl>, config: &Path, store: Store) -> Self {
        Self { control, config: config.to_owned(), store }
    }

    fn check(&self, binary: &Path) -> anyhow::Result<Candidate> {
        if self.store.has_failed() {
            bail!(
                "there is no descriptor store that the next broker could take everything from (restart the switch, without --no-descriptor-store)"
            );
        }
        let file = open_program(binary)?;
        let answer = ask(&file, &["speaks".as_ref()])?;
        let speaks: Speaks = serde_json::from_str(&answer)
            .map_err(|_| anyhow!("it does not say which messages it speaks, so it is no floodway that can be upgraded to"))?;
        let (version, flows) = speaks.accept()?;
        let words =
            ["run".as_ref(), "--check".as_ref(), "--config".as_ref(), self.config.as_os_str()];
        ask(&file, &words).context("it cannot begin with the configuration file")?;
        let path = fs::read_link(path_of(&file))?;
        Ok(Candidate { program: Program::new(&version, &path.to_string_lossy()), flows, file })
    }

    fn status(&self) -> UpgradeStatus {
        let state = self.control.state();
        UpgradeStatus { running: state.is_running, programs: programs_status(&state.programs) }
    }
}

impl UpgradeApi for Upgrader {
    fn upgrade(&self, request: &UpgradeRequest) -> Result<UpgradeStatus, ControlError> {
        let binary = &request.binary;
        let refused = |error: &dyn Display| {
            ControlError::Failed(format!("not upgraded to {}: {error}", binary.display()))
        };
        let candidate = self.check(binary).map_err(|error| refused(&format_args!("{error:#}")))?;
        self.control.ask(candidate).map_err(|error| refused(&error))?;
        Ok(self.status())
    }

    fn upgrades(&self) -> UpgradeStatus {
        self.status()
    }
}

/// Opens the file of a program.
fn open_program(path: &Path) -> anyhow::Result<OwnedFd> {
    if !path.is_absolute() {
        bail!("its path has to be absolute");
    }
    let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let status = fstat(&file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        bail!("it is no regular file");
    }
    if status.st_mode & 0o111 == 0 {
        bail!("it is not executable");
    }
    Ok(file)
}

/// Runs the program in `file` with these words. Returns what it prints.
fn ask(file: &OwnedFd, words: &[&OsStr]) -> anyhow::Result<String> {
    let mut command = Command::new(path_of(file));
    command.arg0("floodway").args(words).env_clear().stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Asked(command.spawn().context("it cannot be run")?);
    let deadline = Instant::now() + ANSWER;
    let (Some(stdout), Some(stderr)) = (child.0.stdout.take(), child.0.stderr.take()) else {
        bail!("it has no output");
    };
    let answer = read(&stdout, deadline)?;
    let complaint = read(&stderr, deadline)?;
    // One that has more to say than is read does not wait for a reader.
    drop((stdout, stderr));
    let status = child.wait(deadline)?;
    if status.success() {
        return Ok(answer);
    }
    match complaint.lines().last() {
        Some(line) => bail!("{line}"),
        None => bail!("it ends with {status}"),
    }
}

/// A process that is killed if nobody has waited for it.
struct Asked(Child);

impl Asked {
    fn wait(&mut self, deadline: Instant) -> anyhow::Result<ExitStatus> {
        loop {
            match self.0.try_wait()? {
                Some(status) => return Ok(status),
                None if Instant::now() >= deadline => bail!("{}", no_answer()),
                None => thread::sleep(LOOK),
            }
        }
    }
}

fn no_answer() -> String {
    format!("it does not answer within {} s", ANSWER.as_secs())
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What comes from `pipe` until its end, as long as an answer may be.
fn read(pipe: &(impl AsFd + AsRawFd), deadline: Instant) -> anyhow::Result<String> {
    let mut text = Vec::new();
    let mut file = fs::File::from(pipe.as_fd().try_clone_to_owned()?).take(MAX_ANSWER);
    while wait_for(pipe.as_fd(), deadline) {
        let mut part = [0; 512];
        match file.read(&mut part)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            n => text.extend_from_slice(&part[..n]),
        }
    }
    bail!("{}", no_answer())
}

/// Returns `true` once `fd` can be read without waiting, `false` at the deadline.
fn wait_for(fd: BorrowedFd<'_>, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        poll::wait_for(&[fd], Some(left));
        if poll::is_readable(fd) {
            return true;
        }
        if left.is_zero() {
            return false;
        }
    }
}

/// Executes the program of `candidate` in the place of this one, with the same words, or this one again if that is not possible.
///
/// # Errors
/// Neither can be executed.
pub fn replace(candidate: &Candidate) -> io::Result<Infallible> {
    block_signals(SigmaskHow::SIG_BLOCK)?;
    let words = std::env::args_os().map(|word| CString::new(word.into_vec()));
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let variables = environment()?;
    for path in [path_of(&candidate.file), OWN.into()] {
        let path = CString::new(path.into_os_string().into_vec())?;
        let Err(error) = nix::unistd::execve(&path, &words, &variables);
        // The log has ended.
        eprintln!("floodway: cannot execute {}: {error}", path.to_string_lossy());
    }
    Err(io::Error::other("the broker has ended; frames go on, start floodway run again"))
}

/// The variables of this process, without those that name what the service manager has passed to it: the descriptors are not there any more.
fn environment() -> io::Result<Vec<CString>> {
    let passed = |name: &OsStr| PASSED.iter().any(|passed| name == *passed);
    let variables = std::env::vars_os().filter(|(name, _)| !passed(name));
    let words = variables.map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='));
    Ok(words.map(CString::new).collect::<Result<_, _>>()?)
}

/// Lets signals through that were blocked while programs were replaced: somebody listens to them by now.
///
/// # Errors
/// The system refuses.
pub fn unblock_signals() -> io::Result<()> {
    block_signals(SigmaskHow::SIG_UNBLOCK)
}

fn block_signals(how: SigmaskHow) -> io::Result<()> {
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    Ok(pthread_sigmask(how, Some(&signals), None)?)
}
