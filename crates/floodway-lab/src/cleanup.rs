//! Cleanup: everything that the lab makes is removed, however the lab ends.
//!
//! # Theory of operation
//!
//! Whoever makes something that outlives a process (a tap, a network namespace, a QEMU, a
//! directory) registers the action that undoes it, and keeps the [`Guard`]. The action runs
//! exactly once, at the first of:
//!
//! | how the lab ends | who runs the action |
//! |---|---|
//! | the guard goes out of scope, also by a panic that unwinds | [`Guard::drop`] |
//! | SIGINT, SIGTERM or SIGHUP | the signal thread, newest action first, then the signal's default |
//! | `exit`, return from `main`, panic of the main thread | an `atexit` handler, newest first |
//! | `kill -9`, power loss | children die by `PR_SET_PDEATHSIG` (see [`crate::process`]); the rest is swept by the next run |
//!
//! The sweep needs to know what belonged to whom. Each run holds a directory
//! `/run/floodway-lab/PID` with a lock file that it keeps locked for as long as it lives, and tags
//! every name that it gives to the kernel with that PID ([`interface_name`], [`namespace_name`]). A
//! directory whose lock can be taken belongs to a dead run: processes that work in it, its interfaces, its namespaces and the
//! directory itself are removed. The lock, not the PID, says who is alive, so a reused PID does not
//! matter.
//!
//! Invariants: an action never runs twice; the registry's lock is never held while an action runs
//! (actions may register and drop guards themselves); the run's directory goes last.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process;

/// Parent of the directories of all runs on this machine.
const RUNS: &str = "/run/floodway-lab";
/// File inside a run's directory that the run keeps locked.
const LOCK_FILE: &str = "lock";
/// Longest interface name that the kernel takes (`IFNAMSIZ` less the NUL).
const INTERFACE_NAME_MAX: usize = 15;

/// How long the end of the process waits for actions that other threads are in the middle of.
const LAST_ACTIONS: Duration = Duration::from_secs(60);

type Action = Box<dyn FnOnce() -> Result<()> + Send>;

struct Entry {
    id: u64,
    what: String,
    action: Action,
}

struct Entries {
    next_id: u64,
    pending: Vec<Entry>,
    /// Actions that some thread is running right now.
    running: usize,
}

static ENTRIES: Mutex<Entries> =
    Mutex::new(Entries { next_id: 0, pending: Vec::new(), running: 0 });
static ALL_RAN: Condvar = Condvar::new();
static RUN: OnceLock<Run> = OnceLock::new();
static INSTALLING: Mutex<()> = Mutex::new(());

/// The directory of this run, and the lock that says that the run is alive.
struct Run {
    dir: PathBuf,
    _lock: File,
}

/// Undoes one thing when dropped.
#[must_use = "dropping the guard at once undoes what it guards"]
#[derive(Debug)]
pub struct Guard {
    id: u64,
}

impl Guard {
    /// Undoes it now and says whether that worked. Does nothing when it was undone already.
    ///
    /// # Errors
    /// What the action reports.
    pub fn release(self) -> Result<()> {
        take(self.id).map_or(Ok(()), Entry::run)
        // `self` drops here and finds its entry gone.
    }

    /// Forgets the action: what it guards is gone already, or belongs to somebody else now.
    pub fn dismiss(self) {
        if let Some(entry) = take(self.id) {
            entry.forget();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(entry) = take(self.id) {
            entry.run_and_print();
        }
    }
}

impl Entry {
    fn run(self) -> Result<()> {
        let _running = Running;
        (self.action)().with_context(|| format!("cannot remove {}", self.what))
    }

    fn run_and_print(self) {
        if let Err(error) = self.run() {
            eprintln!("floodway-lab: {error:#}");
        }
    }

    fn forget(self) {
        let _running = Running;
        drop(self.action);
    }
}

/// Counts one taken entry as done when dropped, also when its action panics.
struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        entries().running -= 1;
        ALL_RAN.notify_all();
    }
}

/// Prepares this process: sweeps what dead runs left, takes the run's directory, and catches
/// signals and exit. Further calls do nothing.
///
/// # Errors
/// When `/run/floodway-lab` cannot be written (not root), or signals cannot be caught.
pub fn install() -> Result<()> {
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if RUN.get().is_some() {
        return Ok(());
    }
    sweep();
    let run = Run::create().with_context(|| {
        format!("cannot create {RUNS}/{}; the lab must run as root", std::process::id())
    })?;
    if RUN.set(run).is_err() {
        return Ok(());
    }
    // SAFETY: `at_exit` is an `extern "C"` function without arguments that lives for ever.
    ensure!(unsafe { libc::atexit(at_exit) } == 0, "atexit: no memory");
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals")?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                run_all();
                // Ends the process the way the signal would have: the parent sees the right status.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        })
        .context("cannot start the signal thread")?;
    Ok(())
}

/// Registers the action that undoes `what` (for messages, for example `tap fl123vm1`).
///
/// # Errors
/// When [`install`] fails; the action has then not been registered and is dropped unrun.
pub fn register(
    what: impl Into<String>,
    action: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<Guard> {
    install()?;
    let mut entries = entries();
    let id = entries.next_id;
    entries.next_id += 1;
    entries.pending.push(Entry { id, what: what.into(), action: Box::new(action) });
    Ok(Guard { id })
}

/// Registers a command that undoes `what`, for example `["ip", "link", "del", "fl123br"]`.
///
/// # Errors
/// As [`register`].
pub fn register_command(what: impl Into<String>, argv: &[&str]) -> Result<Guard> {
    let argv: Vec<String> = argv.iter().map(ToString::to_string).collect();
    register(what, move || process::run(&argv).map(drop))
}

/// Runs every action that is still registered, newest first, waits for those that other threads
/// are in the middle of, and then removes the run's directory. Failures are printed, and do not stop
/// the rest.
pub fn run_all() {
    while let Some(entry) = take_newest() {
        entry.run_and_print();
    }
    // The wait is bounded: an action that hangs must not keep the process for ever.
    drop(ALL_RAN.wait_timeout_while(entries(), LAST_ACTIONS, |entries| entries.running > 0));
    if let Some(run) = RUN.get() {
        remove_dir(&run.dir);
    }
}

/// The directory of this run, `/run/floodway-lab/PID`: for sockets, logs and the like. It is removed
/// with everything in it when the run ends.
///
/// # Errors
/// As [`install`].
pub fn run_dir() -> Result<&'static Path> {
    install()?;
    RUN.get().map(|run| run.dir.as_path()).context("the run's directory is gone")
}

/// A name for a network interface that the sweep recognises: `flPIDsuffix`.
///
/// # Errors
/// When `suffix` starts with a digit (it would read as part of the PID), is empty, or makes the name longer
/// than the kernel's 15 characters.
pub fn interface_name(suffix: &str) -> Result<String> {
    let name = format!("{}{suffix}", interface_tag(std::process::id()));
    ensure!(
        suffix.starts_with(|first: char| first.is_ascii_alphabetic()),
        "interface suffix `{suffix}`: must start with a letter"
    );
    ensure!(
        name.len() <= INTERFACE_NAME_MAX,
        "interface suffix `{suffix}`: `{name}` is longer than {INTERFACE_NAME_MAX} characters; use a shorter suffix"
    );
    Ok(name)
}

/// A name for a network namespace that the sweep recognises: `floodway-lab-PID-suffix`.
#[must_use]
pub fn namespace_name(suffix: &str) -> String {
    format!("{}{suffix}", namespace_tag(std::process::id()))
}

fn interface_tag(pid: u32) -> String {
    format!("fl{pid}")
}

fn namespace_tag(pid: u32) -> String {
    format!("floodway-lab-{pid}-")
}

impl Run {
    fn create() -> Result<Self> {
        let dir = Path::new(RUNS).join(std::process::id().to_string());
        // A dead run with our PID was swept just now; whatever is left is in the way.
        remove_dir(&dir);
        fs::create_dir_all(&dir)?;
        let lock = File::create(dir.join(LOCK_FILE))?;
        lock.try_lock().context("another process holds the lock")?;
        Ok(Self { dir, _lock: lock })
    }
}

extern "C" fn at_exit() {
    run_all();
}

fn entries() -> MutexGuard<'static, Entries> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(id: u64) -> Option<Entry> {
    let mut entries = entries();
    // Newest first: guards mostly drop in the reverse order of their making.
    let index = entries.pending.iter().rposition(|entry| entry.id == id)?;
    entries.running += 1;
    Some(entries.pending.remove(index))
}

fn take_newest() -> Option<Entry> {
    let mut entries = entries();
    let entry = entries.pending.pop()?;
    entries.running += 1;
    Some(entry)
}

fn remove_dir(dir: &Path) {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            eprintln!("floodway-lab: cannot remove {}: {error}", dir.display());
        }
        _ => {}
    }
}

/// Removes what dead runs left. Failures are printed: a leftover must not stop a new run.
fn sweep() {
    for dir in names_in(Path::new(RUNS)) {
        let path = Path::new(RUNS).join(&dir);
        let (Ok(pid), Ok(lock)) = (dir.parse::<u32>(), File::open(path.join(LOCK_FILE))) else {
            continue;
        };
        if lock.try_lock().is_ok() {
            report(process::kill_those_in(&path));
            sweep_run(pid);
            remove_dir(&path);
        }
    }
}

fn sweep_run(pid: u32) {
    let namespaces = names_in(Path::new("/run/netns"));
    for name in namespaces.iter().filter(|name| name.starts_with(&namespace_tag(pid))) {
        report(process::run(&["ip", "netns", "del", name]));
    }
    for name in names_in(Path::new("/sys/class/net")) {
        // A veth goes with its other end, so it may be gone by now: that is no failure.
        if is_interface_of(&name, pid) && Path::new("/sys/class/net").join(&name).exists() {
            report(process::run(&["ip", "link", "del", &name]));
        }
    }
}

fn is_interface_of(name: &str, pid: u32) -> bool {
    name.strip_prefix(&interface_tag(pid))
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_alphabetic()))
}

fn report<T>(result: Result<T>) {
    if let Err(error) = result {
        eprintln!("floodway-lab: sweeping what an earlier run left: {error:#}");
    }
}

/// Names in a directory; none when it does not exist.
fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn counted(counter: &Arc<AtomicU32>) -> Guard {
        let counter = Arc::clone(counter);
        register("a counter", move || {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .unwrap()
    }

    #[test]
    fn a_guard_runs_its_action_once() {
        let counter = Arc::new(AtomicU32::new(0));
        drop(counted(&counter));
        assert_eq!(counter.load(Ordering::SeqCst), 1);
        counted(&counter).release().unwrap();
        assert_eq!(counter.load(Ordering::SeqCst), 2);
        counted(&counter).dismiss();
        assert_eq!(counter.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_panic_runs_the_action() {
        let counter = Arc::new(AtomicU32::new(0));
        let in_thread = Arc::clone(&counter);
        let thread = std::thread::spawn(move || {
            let _guard = counted(&in_thread);
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(counter.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn release_reports_the_failure_with_what_it_was_about() {
        let guard = register("tap x", || anyhow::bail!("busy")).unwrap();
        let text = format!("{:#}", guard.release().unwrap_err());
        assert_eq!(text, "cannot remove tap x: busy");
    }

    #[test]
    fn interface_names_fit_and_are_told_apart_by_pid() {
        assert!(interface_name("vm1").unwrap().len() <= INTERFACE_NAME_MAX);
        assert!(interface_name("averylongsuffix").is_err());
        assert!(interface_name("1").is_err());
        assert!(is_interface_of("fl12a", 12));
        assert!(!is_interface_of("fl123a", 12));
        assert!(!is_interface_of("eth0", 12));
    }
}
