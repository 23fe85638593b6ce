//! CPU hogs: see [`floodway_guest::protocol::Hog`] for what they do.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_guest::protocol::{Hog, HogUse};
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const MIN_PERIOD_US: u64 = 100;

/// The hogs that run.
#[derive(Default)]
pub struct Hogs {
    running: Mutex<Vec<Running>>,
}

struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<HogUse>>,
}

impl Hogs {
    /// Starts hogs in place of any that run.
    pub fn start(&self, hog: &Hog) -> Result<()> {
        ensure!((0.0..=1.0).contains(&hog.duty), "duty {}: must be between 0.0 and 1.0", hog.duty);
        ensure!(
            hog.period_us >= MIN_PERIOD_US,
            "period_us {}: must be at least {MIN_PERIOD_US}",
            hog.period_us
        );
        ensure!((-20..=19).contains(&hog.nice), "nice {}: must be between -20 and 19", hog.nice);
        let online = u32::try_from(thread::available_parallelism()?.get())?;
        let vcpus = if hog.vcpus.is_empty() { (0..online).collect() } else { hog.vcpus.clone() };
        if let Some(vcpu) = vcpus.iter().find(|vcpu| **vcpu >= online) {
            return Err(anyhow!("vcpus {vcpu}: this guest has vCPUs 0 to {}", online - 1));
        }
        let mut running = self.lock();
        stop(&mut running)?;
        for vcpu in vcpus {
            running.push(start_one(vcpu, hog)?);
        }
        Ok(())
    }

    /// Stops all hogs and says what each did.
    pub fn stop(&self) -> Result<Vec<HogUse>> {
        stop(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stop(running: &mut Vec<Running>) -> Result<Vec<HogUse>> {
    for hog in running.iter() {
        hog.stop.store(true, Ordering::Relaxed);
        // It may be asleep for the rest of a long period.
        hog.thread.thread().unpark();
    }
    let join = |hog: Running| hog.thread.join().map_err(|_| anyhow!("a hog failed"))?;
    running.drain(..).map(join).collect()
}

fn start_one(vcpu: u32, hog: &Hog) -> Result<Running> {
    let stop = Arc::new(AtomicBool::new(false));
    let (stop_too, nice) = (Arc::clone(&stop), hog.nice);
    let period = Duration::from_micros(hog.period_us);
    let busy = period.mul_f64(hog.duty);
    let thread = thread::Builder::new()
        .name(format!("hog{vcpu}"))
        .spawn(move || {
            place(vcpu, nice)?;
            Ok(load(vcpu, busy, period - busy, &stop_too))
        })
        .context("cannot start a thread")?;
    Ok(Running { stop, thread })
}

/// Pins the calling thread and sets its nice value.
fn place(vcpu: u32, nice: i32) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(vcpu as usize);
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin to vCPU {vcpu}"))?;
    // Linux takes a thread ID here and changes that thread only.
    setpriority_process(Some(gettid()), nice).with_context(|| format!("cannot set nice {nice}"))
}

fn load(vcpu: u32, busy: Duration, idle: Duration, stop: &AtomicBool) -> HogUse {
    let mut total = HogUse { vcpu, ..HogUse::default() };
    let (mut busy_time, mut idle_time) = (Duration::ZERO, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        while begin.elapsed() < busy && !stop.load(Ordering::Relaxed) {
            total.rounds += 1;
            spin_loop();
        }
        let middle = Instant::now();
        while middle.elapsed() < idle && !stop.load(Ordering::Relaxed) {
            thread::park_timeout(idle.saturating_sub(middle.elapsed()));
        }
        busy_time += middle - begin;
        idle_time += middle.elapsed();
        // The last period may have been cut short.
        total.periods += u64::from(!stop.load(Ordering::Relaxed));
    }
    total.busy_ns = nanoseconds(busy_time);
    total.idle_ns = nanoseconds(idle_time);
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    total.cpu_ns = nanoseconds(Duration::try_from(cpu).unwrap_or_default());
    total
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hog(duty: f64, period_us: u64) -> Hog {
        Hog { duty, period_us, vcpus: vec![0], nice: 0 }
    }

    #[test]
    fn phases_are_never_shorter_than_asked() {
        let hogs = Hogs::default();
        hogs.start(&hog(0.25, 4000)).unwrap();
        thread::sleep(Duration::from_millis(100));
        let used = hogs.stop().unwrap();
        assert_eq!(used.len(), 1);
        assert!(used[0].busy_ns >= used[0].periods * 1_000_000, "{used:?}");
        assert!(used[0].idle_ns >= used[0].periods * 3_000_000, "{used:?}");
        assert!(used[0].cpu_ns <= used[0].busy_ns + used[0].idle_ns, "{used:?}");
        assert!(hogs.stop().unwrap().is_empty());
    }

    #[test]
    fn a_sleeping_hog_stops_at_once() {
        let hogs = Hogs::default();
        // Joining would take an hour if the sleep were not interrupted.
        hogs.start(&hog(0.0, 3_600_000_000)).unwrap();
        assert_eq!(hogs.stop().unwrap()[0].periods, 0);
    }

    #[test]
    fn senseless_hogs_are_refused_by_field() {
        let hogs = Hogs::default();
        let refused = |hog: &Hog| hogs.start(hog).unwrap_err().to_string();
        assert!(refused(&hog(1.5, 1000)).starts_with("duty 1.5"));
        assert!(refused(&hog(f64::NAN, 1000)).starts_with("duty NaN"));
        assert!(refused(&hog(0.5, 1)).starts_with("period_us 1"));
        assert!(refused(&Hog { nice: 40, ..hog(0.5, 1000) }).starts_with("nice 40"));
        assert!(refused(&Hog { vcpus: vec![4000], ..hog(0.5, 1000) }).starts_with("vcpus 4000"));
    }
}
