//! How long the vCPUs of a VMM have run and have waited for a CPU, as the kernel accounts it.
//!
//! # Theory of operation
//! `/proc/PID/task/TID/schedstat` has three numbers: nanoseconds that the thread ran, nanoseconds that it was runnable and did not run, and how often
//! it was put on a CPU. Everybody may read it. QEMU calls its vCPU threads "CPU 0/KVM" and so on if it was started with `debug-threads=on`, as
//! libvirt does; where no thread is called so, all of the process count, which are more than its vCPUs.
//!
//! Names are read once in [`LOOKS`] looks, and when a thread has gone: hundreds of VMMs have thousands of threads.
//!
//! Threads come and go, so each is compared with itself only: one that has come since counts from zero, as it ran in that time only, and what
//! one has done that is gone is lost.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Looks after which threads are looked for again.
const LOOKS: u32 = 10;

/// Nanoseconds of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    ran: u64,
    waited: u64,
}

/// What the threads of a process have done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes(HashMap<u32, Times>);

/// What the threads of a process did in some time: 1 is one thread all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// They ran.
    pub ran: f64,
    /// They were runnable and did not run.
    pub waited: f64,
}

/// Looks at the threads of processes.
#[derive(Debug)]
pub struct Threads {
    proc: PathBuf,
    known: HashMap<i32, Found>,
}

/// Threads that count, and in how many looks they are looked for again.
#[derive(Debug, Default)]
struct Found {
    threads: Vec<u32>,
    looks: u32,
}

impl Threads {
    /// Looks below `proc`, which is `/proc`.
    #[must_use]
    pub fn new(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into(), known: HashMap::new() }
    }

    /// What the threads of these processes have done so far. Processes that are not there, or whose threads are hidden, are left out.
    pub fn look(&mut self, pids: impl Iterator<Item = i32>) -> HashMap<i32, ThreadTimes> {
        let mut before = std::mem::take(&mut self.known);
        let mut times = HashMap::new();
        for pid in pids {
            let found = before.remove(&pid).filter(|found| found.looks > 0);
            if let Some((found, of_pid)) = self.look_at(pid, found) {
                self.known.insert(pid, found);
                times.insert(pid, of_pid);
            }
        }
        times
    }

    fn look_at(&self, pid: i32, found: Option<Found>) -> Option<(Found, ThreadTimes)> {
        let again = found.and_then(|Found { threads, looks }| {
            let times = self.times(pid, &threads);
            (times.len() == threads.len()).then(|| (Found { threads, looks: looks - 1 }, times))
        });
        let (found, times) = match again {
            Some(known) => known,
            None => {
                let threads = self.find(pid)?;
                let times = self.times(pid, &threads);
                (Found { threads, looks: LOOKS }, times)
            }
        };
        (!times.is_empty()).then_some((found, ThreadTimes(times)))
    }

    /// The vCPU threads of a process, or all if none is called so.
    fn find(&self, pid: i32) -> Option<Vec<u32>> {
        let task = self.proc.join(pid.to_string()).join("task");
        let ids = fs::read_dir(&task).ok()?.flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let name = |id: u32| fs::read_to_string(task.join(id.to_string()).join("comm"));
        let is_vcpu = |&id: &u32| name(id).is_ok_and(|name| is_vcpu(name.trim_end()));
        let all: Vec<u32> = ids.collect();
        let vcpus: Vec<u32> = all.iter().copied().filter(is_vcpu).collect();
        Some(if vcpus.is_empty() { all } else { vcpus })
    }

    fn times(&self, pid: i32, threads: &[u32]) -> HashMap<u32, Times> {
        let of = |&id: &u32| {
            let path = self.proc.join(format!("{pid}/task/{id}/schedstat"));
            Some((id, parse(&fs::read_to_string(path).ok()?)?))
        };
        threads.iter().filter_map(of).collect()
    }
}

impl ThreadTimes {
    /// One thread that ran and waited for so many nanoseconds.
    #[cfg(test)]
    pub fn one(ran: u64, waited: u64) -> Self {
        Self(HashMap::from([(1, Times { ran, waited })]))
    }

    /// What they did since `before`, `elapsed` ago. None if no time has passed.
    #[must_use]
    pub fn since(&self, before: &Self, elapsed: Duration) -> Option<Load> {
        let elapsed = elapsed.as_nanos() as f64;
        let difference = |id: &u32, now: &Times| {
            let then = before.0.get(id).copied().unwrap_or_default();
            // A number that went back is another thread's.
            let then = if then.ran > now.ran { Times::default() } else { then };
            (now.ran - then.ran, now.waited.saturating_sub(then.waited))
        };
        let add = |(ran, waited), (id, now)| {
            let (more_ran, more_waited) = difference(id, now);
            (ran + more_ran, waited + more_waited)
        };
        let (ran, waited) = self.0.iter().fold((0, 0), add);
        let share = |ns: u64| ns as f64 / elapsed;
        (elapsed > 0.0).then(|| Load { ran: share(ran), waited: share(waited) })
    }
}

fn parse(text: &str) -> Option<Times> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    Some(Times { ran: numbers.next()??, waited: numbers.next()?? })
}

/// QEMU calls a thread so that is a vCPU.
fn is_vcpu(name: &str) -> bool {
    let number = name.strip_prefix("CPU ").and_then(|rest| rest.split_once('/'));
    number.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A /proc with one process whose threads are called and have run and waited so.
    fn proc(threads: &[(u32, &str, &str)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for (id, name, schedstat) in threads {
            let task = proc.path().join("7/task").join(id.to_string());
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), format!("{name}\n")).unwrap();
            fs::write(task.join("schedstat"), format!("{schedstat}\n")).unwrap();
        }
        proc
    }

    fn read(threads: &[(u32, &str, &str)]) -> Option<ThreadTimes> {
        Threads::new(proc(threads).path()).look([7].into_iter()).remove(&7)
    }

    #[test]
    fn only_vcpus_count_where_threads_are_named() {
        let before = read(&[(7, "qemu", "900 900 1"), (8, "CPU 0/KVM", "100 10 1")]).unwrap();
        let now = read(&[(7, "qemu", "999 999 1"), (8, "CPU 0/KVM", "160 40 2")]).unwrap();
        let load = now.since(&before, Duration::from_nanos(100)).unwrap();
        assert_eq!(load, Load { ran: 0.6, waited: 0.3 });
    }

    #[test]
    fn all_threads_count_where_none_is_named() {
        let before = read(&[(7, "qemu", "0 0 1"), (8, "qemu", "0 0 1")]).unwrap();
        let now = read(&[(7, "qemu", "50 5 1"), (8, "qemu", "50 20 2")]).unwrap();
        let load = now.since(&before, Duration::from_nanos(100)).unwrap();
        assert_eq!(load, Load { ran: 1.0, waited: 0.25 });
    }

    #[test]
    fn threads_that_come_go_or_have_a_used_number_are_compared_with_themselves_only() {
        let before = read(&[(7, "q", "80 80 1"), (8, "q", "500 500 9")]).unwrap();
        let now = read(&[(7, "q", "90 85 1"), (8, "q", "5 5 1"), (9, "q", "5 10 1")]).unwrap();
        let load = now.since(&before, Duration::from_nanos(100)).unwrap();
        assert_eq!(load, Load { ran: 0.2, waited: 0.2 });
        assert_eq!(now.since(&before, Duration::ZERO), None);
    }

    #[test]
    fn what_cannot_be_read_is_not_zero() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[(8, "q", "what is this")]), None);
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(Threads::new("/proc").look([me].into_iter()).contains_key(&me));
    }

    #[test]
    fn a_thread_that_goes_has_the_others_looked_for_again() {
        let proc = proc(&[(7, "q", "1 1 1"), (8, "CPU 0/KVM", "10 1 1")]);
        let mut threads = Threads::new(proc.path());
        let mut ids = || {
            let mut times = threads.look([7, 7000].into_iter());
            assert_eq!(times.len(), 1);
            let mut ids: Vec<u32> = times.remove(&7).unwrap().0.into_keys().collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(ids(), [8]);
        fs::rename(proc.path().join("7/task/8"), proc.path().join("7/task/9")).unwrap();
        assert_eq!(ids(), [9]);
        fs::write(proc.path().join("7/task/7/comm"), "CPU 1/KVM").unwrap();
        assert_eq!(ids(), [9], "names are not read each time");
        (0..=LOOKS).for_each(|_| drop(ids()));
        assert_eq!(ids(), [7, 9]);
    }
}
