//! A path as the lab uses it: a child process that goes away with its handle.
//!
//! The process is started with its description in the run's directory, is up when its control
//! socket answers, and is killed by [`Process`] on every way out. Taps that it made go with it;
//! namespaces and veth pairs belong to who made them.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use floodway_netem::control::{self, Answer, Change, Request, Reset, What};
use floodway_netem::{Counters, LinkSpec, Side, Spec};

use crate::child::Process;
use crate::cleanup;
use crate::switch_process::{self, Usage};

/// Overrides which program is started as `floodway-lab path run`.
pub const BINARY_VARIABLE: &str = "FLOODWAY_LAB_BIN";
/// How long a new process may take until its control socket answers.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const START_POLL: Duration = Duration::from_millis(5);
/// How long a process may take to end when asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Last bytes of the log that an error quotes.
const LOG_TAIL: usize = 2000;

/// A running path or switch, killed when dropped.
#[derive(Debug)]
pub struct Path {
    spec: Spec,
    control: PathBuf,
    log: PathBuf,
    process: Process,
}

impl Path {
    /// Starts a path or switch on `core`, or wherever the kernel likes, and waits until packets
    /// pass. The interfaces of packet ports must exist and be up; those of tap ports are created.
    ///
    /// # Errors
    /// When the description makes no sense, a device cannot be opened, or the process does not
    /// come up; the error quotes its log.
    pub fn start(spec: &Spec, core: Option<usize>) -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        spec.check()?;
        let number = STARTED.fetch_add(1, Relaxed);
        let file = |suffix: &str| -> Result<PathBuf> {
            Ok(cleanup::run_dir()?.join(format!("path-{number}.{suffix}")))
        };
        let (description, control, log) = (file("toml")?, file("sock")?, file("log")?);
        fs::write(&description, toml::to_string(spec)?).context("cannot write the description")?;
        let output = File::create(&log).context("cannot write the log")?;
        let mut command = Command::new(binary()?);
        command.args(["path", "run"]).arg(&description).arg("--control").arg(&control);
        if let Some(core) = core {
            command.arg("--core").arg(core.to_string());
        }
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let process = Process::spawn(format!("path {number}"), command)?;
        let path = Self { spec: spec.clone(), control, log, process };
        path.wait_until_up()?;
        Ok(path)
    }

    /// Everything that it counts.
    ///
    /// # Errors
    /// When it has ended; the error quotes its log.
    pub fn counters(&self) -> Result<Counters> {
        match self.ask(&Request::Get(What::Counters))? {
            Answer::Counters(counters) => Ok(*counters),
            other => bail!("the path answered {other:?}"),
        }
    }

    /// Starts the high-water marks and the timing anew.
    ///
    /// # Errors
    /// As [`Path::counters`].
    pub fn reset_marks(&self) -> Result<()> {
        self.ask(&Request::Reset(Reset::Marks)).map(drop)
    }

    /// Gives a link other parameters from now on. Packets in it stay.
    ///
    /// # Errors
    /// When there is no such link, the parameters make no sense, or the path has ended.
    pub fn set(&mut self, port: &str, side: Side, link: &LinkSpec) -> Result<()> {
        let change = Change { port: port.into(), side, link: link.clone() };
        self.ask(&Request::Set(Box::new(change)))?;
        if let Some(known) = self.spec.port.iter_mut().find(|known| known.name == port) {
            match side {
                Side::Ingress => known.ingress = Some(link.clone()),
                Side::Egress => known.egress = link.clone(),
            }
        }
        Ok(())
    }

    /// Changes some parameters of the link to the host at `port`, and keeps the others.
    ///
    /// # Errors
    /// As [`Path::set`].
    pub fn update(&mut self, port: &str, edit: impl FnOnce(&mut LinkSpec)) -> Result<()> {
        let known = self.spec.port.iter().find(|known| known.name == port);
        let mut link = known.with_context(|| format!("no port is called {port}"))?.egress.clone();
        edit(&mut link);
        self.set(port, Side::Egress, &link)
    }

    /// The description as it stands.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// CPU time and memory of the process.
    ///
    /// # Errors
    /// When it has ended.
    pub fn usage(&self) -> Result<Usage> {
        switch_process::usage(self.process.id()).context("path")
    }

    /// Ends it and returns its last counters.
    ///
    /// # Errors
    /// When it has ended before.
    pub fn stop(self) -> Result<Counters> {
        let counters = self.counters()?;
        let status = self.process.terminate(STOP_TIMEOUT)?;
        ensure!(status.success(), "the path ended with {status}");
        Ok(counters)
    }

    fn ask(&self, request: &Request) -> Result<Answer> {
        control::ask(&self.control, request).map_err(|error| match self.process.try_wait() {
            Ok(Some(status)) => {
                error.context(format!("the path has ended ({status}):\n{}", self.log_tail()))
            }
            _ => error,
        })
    }

    fn wait_until_up(&self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while let Err(error) = self.counters() {
            if let Some(status) = self.process.try_wait()? {
                bail!("the path ended ({status}): {}", self.log_tail());
            }
            ensure!(
                Instant::now() < deadline,
                "the path is not up after {START_TIMEOUT:?}: {error:#}; its log ends with:\n{}",
                self.log_tail()
            );
            sleep(START_POLL);
        }
        Ok(())
    }

    fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let tail = log.get(log.len().saturating_sub(LOG_TAIL)..).unwrap_or_default();
        String::from_utf8_lossy(tail).trim().to_owned()
    }
}

/// The lab's own program: `$FLOODWAY_LAB_BIN`, this program if it is the lab, or the one of the
/// same build.
///
/// # Errors
/// When there is none.
fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE).map(PathBuf::from) {
        ensure!(path.is_file(), "{BINARY_VARIABLE}={}: no such file", path.display());
        return Ok(path);
    }
    let name = env!("CARGO_PKG_NAME");
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    // A test program lives in `deps`, beside which the lab is.
    let beside = own.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    std::iter::once(own.clone())
        .filter(|own| own.file_name().is_some_and(|file| file == name))
        .chain(beside)
        .find(|candidate| candidate.is_file())
        .with_context(|| {
            format!("no {name} beside {}; name one in {BINARY_VARIABLE}", own.display())
        })
}
