//! The thread that looks for vCPUs, and what it gives back.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};

use super::sched::{self, Attributes};
use super::threads::{self, Thread};
use super::{Slices, qmp};
use crate::config::{VcpuConfig, Vm};
use crate::port::{Port, lock};
use crate::status::VcpuStatus;

/// Looks after the vCPU threads of all ports that say so, until it is dropped; then it gives back what it took.
pub struct Keeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A thread with our slice, and what it had before.
struct Kept {
    thread: Thread,
    before: Attributes,
}

/// One port's VM.
struct Charge {
    port: Arc<Port>,
    config: VcpuConfig,
    kept: Vec<Kept>,
    /// Said last, so as not to say it again every few seconds.
    problem: Option<String>,
}

impl Keeper {
    /// Starts looking; `None` if no port wants it.
    ///
    /// # Errors
    /// There are no threads left.
    pub fn start(ports: &[Arc<Port>], slices: Slices) -> io::Result<Option<Self>> {
        let mut charges: Vec<Charge> = ports.iter().filter_map(Charge::new).collect();
        if charges.is_empty() {
            return Ok(None);
        }
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("vcpu".into()).spawn(move || {
            loop {
                charges.iter_mut().for_each(|charge| charge.look(&slices));
                match stopped.recv_timeout(slices.look_every) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => break,
                }
            }
            charges.iter_mut().for_each(Charge::restore);
        })?;
        Ok(Some(Self { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after vCPUs panicked");
        }
    }
}

impl Charge {
    fn new(port: &Arc<Port>) -> Option<Self> {
        let config = port.config.vcpu.clone()?;
        Some(Self { port: Arc::clone(port), config, kept: Vec::new(), problem: None })
    }

    /// Gives vCPU threads that are new the policy's slice.
    fn look(&mut self, slices: &Slices) {
        self.kept.retain(|kept| kept.thread.is_alive());
        let slice = slices.of(self.config.policy);
        let problem = match find(&self.config.vm) {
            Err(error) => Some(format!("{}: {error}", self.config.vm)),
            Ok(ids) => ids.into_iter().filter_map(|id| self.keep(id, slice).err()).last(),
        };
        if problem != self.problem {
            let port = &self.port.config.name;
            match &problem {
                Some(problem) => tracing::warn!(port, problem, "vCPU threads keep their slices"),
                None => tracing::info!(port, threads = self.kept.len(), ?slice, "vCPU slices set"),
            }
        }
        self.problem.clone_from(&problem);
        *lock(&self.port.vcpu) = Some(VcpuStatus {
            policy: self.config.policy.name().to_owned(),
            slice_us: slice.as_micros() as u64,
            threads: self.kept.len() as u64,
            problem,
        });
    }

    fn keep(&mut self, id: i32, slice: std::time::Duration) -> Result<(), String> {
        let Some(thread) = Thread::find(id) else { return Ok(()) };
        if self.kept.iter().any(|kept| kept.thread == thread) {
            return Ok(());
        }
        match sched::set_slice(id, slice) {
            Ok(before) => self.kept.push(Kept { thread, before }),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    /// Gives all threads what they had.
    fn restore(&mut self) {
        for Kept { thread, before } in self.kept.drain(..) {
            if thread.is_alive()
                && let Err(error) = before.apply(thread.id)
            {
                let port = &self.port.config.name;
                tracing::warn!(port, thread = thread.id, %error, "cannot give a slice back");
            }
        }
    }
}

fn find(vm: &Vm) -> io::Result<Vec<i32>> {
    match vm {
        Vm::Qmp(socket) => qmp::vcpus(socket),
        Vm::Pid(pid) => threads::vcpus_of(*pid),
    }
}
