//! Commands in the background. A job stays known after its end, so that waiting can be repeated.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use floodway_guest::protocol::{Command, Exit, Spawned};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, kill_process_group};

use super::exec;

/// Where the output of jobs goes.
const DIRECTORY: &str = "/run/floodway";

/// All jobs since the agent started.
#[derive(Default)]
pub struct Jobs {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    jobs: BTreeMap<u64, Arc<Job>>,
}

struct Job {
    begin: Instant,
    pidfd: OwnedFd,
    state: Mutex<State>,
}

enum State {
    Running(Child),
    Ended(Exit),
}

impl Jobs {
    /// Starts a command.
    pub fn spawn(&self, command: &Command) -> Result<Spawned> {
        let mut table = lock(&self.table);
        let job = table.last + 1;
        let file = |kind| format!("{DIRECTORY}/job-{job}.{kind}");
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let mut process = exec::prepare(command)?;
        fs::create_dir_all(DIRECTORY).context(DIRECTORY)?;
        process.stdin(Stdio::null());
        process.stdout(File::create(&stdout).with_context(|| stdout.clone())?);
        process.stderr(File::create(&stderr).with_context(|| stderr.clone())?);
        let begin = Instant::now();
        let child = exec::start(process)?;
        let (pid, pidfd) = (child.id(), exec::pidfd_of(&child)?);
        table.last = job;
        table
            .jobs
            .insert(job, Arc::new(Job { begin, pidfd, state: Mutex::new(State::Running(child)) }));
        Ok(Spawned { job, pid, stdout, stderr })
    }

    /// Signals a job's process group; does nothing when the job has ended.
    pub fn signal(&self, job: u64, signal: i32) -> Result<()> {
        let signal = Signal::from_named_raw(signal)
            .with_context(|| format!("signal {signal}: no such signal"))?;
        let found = self.find(job)?;
        if let State::Running(child) = &*lock(&found.state) {
            // The group outlives its leader as long as it has members.
            match kill_process_group(exec::pid_of(child)?, signal) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => bail!("cannot signal job {job}: {error}"),
            }
        }
        Ok(())
    }

    /// Waits for a job to end.
    pub fn wait(&self, job: u64, timeout: Duration) -> Result<Exit> {
        let job = self.find(job)?;
        let mut ended = [PollFd::new(&job.pidfd, PollFlags::IN)];
        if exec::poll_until(&mut ended, Instant::now() + timeout)? == 0 {
            let elapsed_ns = u64::try_from(job.begin.elapsed().as_nanos())?;
            return Ok(Exit { code: None, signal: None, timed_out: true, elapsed_ns });
        }
        let mut state = lock(&job.state);
        let exit = match &mut *state {
            State::Running(child) => exec::exit(child.wait()?, false, job.begin.elapsed()),
            State::Ended(exit) => *exit,
        };
        *state = State::Ended(exit);
        Ok(exit)
    }

    fn find(&self, job: u64) -> Result<Arc<Job>> {
        lock(&self.table).jobs.get(&job).cloned().with_context(|| format!("job {job}: no such job"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
