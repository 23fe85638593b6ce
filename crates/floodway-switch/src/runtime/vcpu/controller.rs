//! The thread that looks for vCPUs, and what it gives back.
//!
//! All VMs are looked at by one thread that never waits for any of them: each has its own schedule, and a question that has no answer
//! yet is a socket that is polled.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use floodway_process::poll::{is_readable, wait_for};
use vmm_sys_util::eventfd::EventFd;

use super::Slices;
use super::call::Call;
use super::sched::{self, Attributes};
use super::threads::{self, Thread};
use crate::api::status::VcpuStatus;
use crate::config::{VcpuConfig, Vm};
use crate::host::log_limit::LogLimit;
use crate::state::port::Port;
use crate::sync::lock;

/// A VM whose vCPU threads are looked after.
pub struct ManagedVm {
    /// Name of its port.
    pub port: String,
    /// Where its threads are found, and what they get.
    pub config: VcpuConfig,
    /// Called with what has become of them, after each look.
    pub report: Box<dyn Fn(VcpuStatus) + Send>,
}

impl ManagedVm {
    /// The VM of `port`, in whose status the result is shown; `None` if it is to be left alone.
    #[must_use]
    pub fn of(port: &Arc<Port>) -> Option<Self> {
        let config = port.config.vcpu.clone()?;
        let name = port.config.name.clone();
        let port = Arc::clone(port);
        let report = move |status| *lock(&port.vcpu) = Some(status);
        Some(Self { port: name, config, report: Box::new(report) })
    }
}

/// Looks after the vCPU threads of VMs until it is dropped; then it gives back what it took.
pub struct SliceController {
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

/// A thread with our slice, and what it had before.
struct Kept {
    thread: Thread,
    before: Attributes,
}

/// What is under way for a VM.
enum Activity {
    Resting,
    Asking(Box<Call>),
}

/// One port's VM.
struct Charge {
    vm: ManagedVm,
    log_limit: LogLimit,
    activity: Activity,
    /// When it is looked at next.
    due: Instant,
    kept: BTreeMap<i32, Kept>,
    /// Said last, so as not to say it again every few seconds.
    problem: Option<String>,
}

impl SliceController {
    /// Starts looking after `vms`; `None` if there are none.
    ///
    /// # Errors
    /// There are no threads or descriptors left.
    pub fn start(vms: Vec<ManagedVm>, slices: Slices) -> io::Result<Option<Self>> {
        let mut charges: Vec<Charge> = vms.into_iter().map(Charge::new).collect();
        if charges.is_empty() {
            return Ok(None);
        }
        let stop = EventFd::new(libc::EFD_NONBLOCK)?;
        let stopped = stop.try_clone()?;
        let thread = thread::Builder::new().name("vcpu".into()).spawn(move || {
            let mut buffer = Vec::new();
            loop {
                let now = Instant::now();
                charges.iter_mut().for_each(|charge| charge.look(&slices, &mut buffer, now));
                if wait(&stopped, &charges, Instant::now()) {
                    break;
                }
            }
            charges.iter_mut().for_each(Charge::restore);
        })?;
        Ok(Some(Self { stop, thread: Some(thread) }))
    }
}

impl Drop for SliceController {
    fn drop(&mut self) {
        // Cannot fail: nobody else writes, and one write does not fill an eventfd.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after vCPUs panicked");
        }
    }
}

/// Waits until a VM has answered or is due. Returns `true` if it is time to stop.
fn wait(stopped: &EventFd, charges: &[Charge], now: Instant) -> bool {
    let due = charges.iter().map(Charge::next_event).min().unwrap_or(now);
    let rest = due.saturating_duration_since(now);
    // SAFETY: the eventfd is open as long as it is borrowed.
    let stopped = unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(stopped)) };
    let asking = charges.iter().filter_map(|charge| match &charge.activity {
        Activity::Asking(call) => Some(call.as_fd()),
        Activity::Resting => None,
    });
    let fds: Vec<_> = std::iter::once(stopped).chain(asking).collect();
    wait_for(&fds, Some(rest));
    is_readable(stopped)
}

impl Charge {
    fn new(vm: ManagedVm) -> Self {
        Self {
            vm,
            log_limit: LogLimit::default(),
            activity: Activity::Resting,
            due: Instant::now(),
            kept: BTreeMap::new(),
            problem: None,
        }
    }

    fn next_event(&self) -> Instant {
        match &self.activity {
            Activity::Resting => self.due,
            Activity::Asking(call) => call.deadline,
        }
    }

    /// Does what can be done now: begins to look when it is due, goes on with a question, and gives new threads their slice.
    fn look(&mut self, slices: &Slices, buffer: &mut Vec<u8>, now: Instant) {
        let found = match &mut self.activity {
            Activity::Resting if now < self.due => return,
            Activity::Resting => {
                self.due = now + slices.look_every;
                self.begin(now)
            }
            Activity::Asking(call) => call.advance(buffer, now),
        };
        match found {
            Ok(None) => {}
            Ok(Some(threads)) => self.finish(Ok(threads), slices),
            Err(error) => self.finish(Err(error), slices),
        }
    }

    /// Looks for the threads; `None` if the VM has been asked for them.
    fn begin(&mut self, now: Instant) -> io::Result<Option<Vec<Thread>>> {
        match &self.vm.config.vm {
            Vm::Pid(pid) => {
                let ids = threads::vcpus_of(*pid)?;
                Ok(Some(ids.into_iter().filter_map(Thread::find).collect()))
            }
            Vm::Qmp(socket) => {
                self.activity = Activity::Asking(Box::new(Call::open(socket, now)?));
                Ok(None)
            }
        }
    }

    /// Gives vCPU threads that are new the policy's slice, and says how that went.
    fn finish(&mut self, found: io::Result<Vec<Thread>>, slices: &Slices) {
        self.activity = Activity::Resting;
        self.kept.retain(|_, kept| kept.thread.is_alive());
        let slice = slices.of(self.vm.config.policy);
        let problem = match found {
            Err(error) => Some(format!("{}: {error}", self.vm.config.vm)),
            Ok(threads) => {
                threads.into_iter().filter_map(|thread| self.keep(thread, slice).err()).last()
            }
        };
        if problem != self.problem {
            self.log(problem.as_deref(), slice);
        }
        self.problem.clone_from(&problem);
        let threads = self.kept.len() as u64;
        (self.vm.report)(VcpuStatus::new(self.vm.config.policy, slice, threads, problem));
    }

    fn log(&self, problem: Option<&str>, slice: Duration) {
        let Some(suppressed) = self.log_limit.admit() else { return };
        // Only where there were any.
        let suppressed = (suppressed > 0).then_some(suppressed);
        let (port, threads) = (&self.vm.port, self.kept.len());
        match problem {
            Some(problem) => {
                tracing::warn!(port, suppressed, problem, "vCPU threads keep their slices");
            }
            None => tracing::info!(port, suppressed, threads, ?slice, "vCPU slices set"),
        }
    }

    fn keep(&mut self, thread: Thread, slice: Duration) -> Result<(), String> {
        if self.kept.get(&thread.id).is_some_and(|kept| kept.thread == thread) {
            return Ok(());
        }
        match sched::set_slice(thread.id, slice) {
            // It has ended since it was found, and its number is another's.
            Ok(before) if !thread.is_alive() => drop(before.apply(thread.id)),
            Ok(before) => drop(self.kept.insert(thread.id, Kept { thread, before })),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    /// Gives all threads what they had.
    fn restore(&mut self) {
        for Kept { thread, before } in std::mem::take(&mut self.kept).into_values() {
            if thread.is_alive()
                && let Err(error) = before.apply(thread.id)
            {
                let port = &self.vm.port;
                tracing::warn!(port, thread = thread.id, %error, "cannot give a slice back");
            }
        }
    }
}
