//! Threads that the switch cannot do without: what is done when one panics, or stands still.
//!
//! # Theory of operation
//! A switch without one of its workers is worse than none: its ports look alive and move nothing, and nobody restarts it. So a worker that
//! panics ends the process ([`spawn_critical`]), and a supervisor starts the next one. Rings are in the guests' memory: front-ends connect
//! again and guests go on; frames that a guest was not told to be sent are sent again. What is lost is what the switch
//! itself held: frames that waited, and data that the receive offload had acknowledged and not delivered.
//!
//! A worker that stands still is found by core's [`Watchdog`]: a thread looks at all workers every [`INTERVAL`]. A stall is counted and
//! logged, with the function of the kernel that the worker waits in. Whether it ends the process is for the operator to say: a worker that comes back has
//! lost nothing, and a restart does.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use floodway_core::watchdog::{Finding, Sign, Watchdog};

use crate::api::events::EventKind;
use crate::config::WatchdogConfig;
use crate::events::Events;
use crate::state::workers::WorkerStats;
use crate::sync::waker::Waker;

/// Time between two looks at the workers.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// A thread that ends the process if it panics.
///
/// # Errors
/// Threads have run out.
pub fn spawn_critical(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(move || {
        let _end = EndProcess;
        body();
    })
}

/// Ends the process if it is dropped by a panic.
struct EndProcess;

impl Drop for EndProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            // The panic's own message has been written.
            eprintln!("floodway: a thread panicked that the switch cannot do without; aborting");
            std::process::abort();
        }
    }
}

/// What is watched of a worker.
pub(crate) struct Watched {
    pub(crate) waker: Arc<Waker>,
    pub(crate) stats: Arc<WorkerStats>,
}

/// The thread that looks at the workers. It ends when this is dropped.
pub(crate) struct WatchdogThread {
    /// Dropped to end it.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WatchdogThread {
    /// Starts it; nothing if `config` says so.
    ///
    /// # Errors
    /// Threads have run out.
    pub(crate) fn start(
        config: WatchdogConfig,
        workers: Vec<Watched>,
        events: Arc<Events>,
    ) -> io::Result<Option<Self>> {
        let Some(stall) = config.stall else { return Ok(None) };
        let looks = (stall.as_millis() / INTERVAL.as_millis()) as u32;
        let mut dog = Watchdog::new(workers.len(), looks);
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("watchdog".into()).spawn(move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if look(&mut dog, &workers, &events) && config.restart {
                    eprintln!(
                        "floodway: a worker stands still, and watchdog.restart is set; aborting"
                    );
                    std::process::abort();
                }
            }
        })?;
        Ok(Some(Self { end: Some(end), thread: Some(thread) }))
    }
}

impl WatchdogThread {
    /// Lets it end, which dropping it waits for.
    pub(crate) fn begin_stop(&mut self) {
        drop(self.end.take());
    }
}

impl Drop for WatchdogThread {
    fn drop(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the watchdog's thread panicked");
        }
    }
}

/// Looks at all workers. Returns `true` if one has stalled since the last look.
fn look(dog: &mut Watchdog, workers: &[Watched], events: &Events) -> bool {
    let mut any = false;
    for (index, Watched { waker, stats }) in workers.iter().enumerate() {
        let sign = Sign { progress: stats.polls.get(), asleep: waker.is_asleep() };
        match dog.look(index, sign) {
            Finding::Nothing => {}
            Finding::Stalled => {
                any = true;
                stats.stalls.add(1);
                let waits_in = waits_in(stats.thread_id());
                events.emit(EventKind::WorkerStalled { worker: index, waits_in });
            }
            Finding::Recovered(looks) => {
                let stood_ms = (INTERVAL * looks).as_millis() as u64;
                events.emit(EventKind::WorkerResumed { worker: index, stood_ms });
            }
        }
    }
    any
}

/// The function of the kernel that a thread of ours waits in; "0" while it runs.
fn waits_in(thread: u32) -> String {
    let path = format!("/proc/self/task/{thread}/wchan");
    std::fs::read_to_string(path).unwrap_or_else(|_| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::wait_until;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Runs a test of this file again in a process of its own, where [`is_child`] is true. Returns the signal that ended it.
    fn in_child(test: &str) -> Option<i32> {
        let exe = std::env::current_exe().expect("this program");
        let mut child = Command::new(exe);
        child.args(["--exact", test, "--nocapture"]).env("FLOODWAY_TEST_CHILD", "1");
        child.output().expect("a child").status.signal()
    }

    fn is_child() -> bool {
        std::env::var_os("FLOODWAY_TEST_CHILD").is_some()
    }

    fn watched() -> Watched {
        let waker = Arc::new(Waker::new().expect("descriptors left"));
        Watched { waker, stats: Arc::default() }
    }

    #[test]
    fn a_panic_in_a_worker_ends_the_process() {
        if is_child() {
            let thread = spawn_critical("worker-0".into(), || panic!("as a worker would"));
            let _ = thread.expect("a thread").join();
            std::process::exit(0);
        }
        let test = "runtime::watchdog::tests::a_panic_in_a_worker_ends_the_process";
        assert_eq!(in_child(test), Some(libc::SIGABRT));
    }

    #[test]
    fn a_worker_that_stands_still_ends_the_process_if_that_is_wanted() {
        if is_child() {
            let config = WatchdogConfig { stall: Some(3 * INTERVAL), restart: true };
            let _dog =
                WatchdogThread::start(config, vec![watched()], Arc::default()).expect("a thread");
            thread::sleep(Duration::from_secs(60));
            std::process::exit(0);
        }
        let test = "runtime::watchdog::tests::a_worker_that_stands_still_ends_the_process_if_that_is_wanted";
        assert_eq!(in_child(test), Some(libc::SIGABRT));
    }

    #[test]
    fn a_stall_is_counted_once() {
        let worker = watched();
        let mut dog = Watchdog::new(1, 3);
        let workers = [worker];
        let events = Arc::default();
        let found = (0..10).filter(|_| look(&mut dog, &workers, &events)).count();
        assert_eq!((found, workers[0].stats.stalls.get()), (1, 1));
        workers[0].stats.polls.add(1);
        let found = (0..10).filter(|_| look(&mut dog, &workers, &events)).count();
        assert_eq!((found, workers[0].stats.stalls.get()), (1, 2));
    }

    #[test]
    fn the_watchdog_counts_and_ends() {
        let config = WatchdogConfig { stall: Some(INTERVAL), restart: false };
        let worker = watched();
        let stats = Arc::clone(&worker.stats);
        let dog = WatchdogThread::start(config, vec![worker], Arc::default()).expect("a thread");
        wait_until("a stall", || stats.stalls.get() == 1);
        drop(dog);
        let off = WatchdogConfig { stall: None, restart: true };
        assert!(WatchdogThread::start(off, vec![watched()], Arc::default()).unwrap().is_none());
    }
}
