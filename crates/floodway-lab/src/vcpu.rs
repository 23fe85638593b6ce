//! Threads on the host's CPUs: where they may run, how long they run at a time, and how long they ran.
//!
//! vCPU threads are ordinary host threads, so all of this works for any thread, such as a worker of
//! the switch. Times come from the kernel's accounting, not from clocks.

use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodway_switch::runtime::vcpu::sched::{Attributes, SLICES};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Length of a round-robin turn, in ms, for all SCHED_RR threads of the machine.
const RR_TIMESLICE: &str = "/proc/sys/kernel/sched_rr_timeslice_ms";

/// The kernel's account of one thread (`/proc/PID/task/TID/schedstat`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedStat {
    /// Time on a CPU.
    pub run: Duration,
    /// Time ready to run, waiting for a CPU.
    pub wait: Duration,
    /// Number of times on a CPU.
    pub slices: u64,
}

/// Threads of a process.
///
/// # Errors
/// When it does not exist.
pub fn threads(pid: u32) -> Result<Vec<i32>> {
    let dir = format!("/proc/{pid}/task");
    let mut threads = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("process {pid}"))? {
        threads.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    threads.sort_unstable();
    Ok(threads)
}

/// Lets a thread run on these host CPUs only.
///
/// # Errors
/// When there is no such thread, or none of the CPUs exists.
pub fn pin(thread: i32, cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        ensure!(cpu < CpuSet::MAX_CPU, "CPU {cpu}: must be below {}", CpuSet::MAX_CPU);
        set.set(cpu);
    }
    sched_setaffinity(Pid::from_raw(thread), &set)
        .with_context(|| format!("cannot pin thread {thread} to CPUs {cpus:?}"))
}

/// Makes a thread an ordinary one (SCHED_OTHER, nice 0) with this EEVDF slice: how long it runs before
/// others of its kind get their turn. Wake-ups of others may still preempt it.
///
/// # Errors
/// When `slice` is not between 0.1 and 100 ms, there is no such thread, or the kernel is older than 6.12.
pub fn set_slice(thread: i32, slice: Duration) -> Result<()> {
    ensure!(
        SLICES.contains(&slice),
        "slice {slice:?}: must be between {:?} and {:?}",
        SLICES.start(),
        SLICES.end()
    );
    let runtime = u64::try_from(slice.as_nanos())?;
    let mut attributes = Attributes::new(libc::SCHED_OTHER);
    attributes.runtime = runtime;
    attributes.apply(thread).with_context(|| format!("cannot set the slice of thread {thread}"))
}

/// Makes a thread an ordinary one (SCHED_OTHER, nice 0) with the kernel's default slice.
///
/// # Errors
/// When there is no such thread.
pub fn set_ordinary(thread: i32) -> Result<()> {
    Attributes::new(libc::SCHED_OTHER)
        .apply(thread)
        .with_context(|| format!("cannot make thread {thread} an ordinary one"))
}

/// The EEVDF slice of an ordinary thread.
///
/// # Errors
/// When there is no such thread.
pub fn slice(thread: i32) -> Result<Duration> {
    let attributes = Attributes::of(thread)
        .with_context(|| format!("cannot read the slice of thread {thread}"))?;
    Ok(attributes.slice())
}

/// Makes a thread a round-robin real-time one: never preempted by ordinary threads, nor by its equals before its turn is
/// over. The turn's length is [`set_round_robin_slice`]'s.
///
/// # Errors
/// When `priority` is not 1 to 99, there is no such thread, or the lab may not (not root).
pub fn set_round_robin(thread: i32, priority: u32) -> Result<()> {
    ensure!((1..=99).contains(&priority), "priority {priority}: must be between 1 and 99");
    let mut attributes = Attributes::new(libc::SCHED_RR);
    attributes.priority = priority;
    attributes.apply(thread).with_context(|| format!("cannot make thread {thread} round-robin"))
}

/// Makes a thread a first-in-first-out real-time one: it preempts ordinary threads and real-time ones
/// of less priority, and runs until it sleeps. Whom it preempts keeps the rest of its turn.
///
/// # Errors
/// As [`set_round_robin`].
pub fn set_fifo(thread: i32, priority: u32) -> Result<()> {
    ensure!((1..=99).contains(&priority), "priority {priority}: must be between 1 and 99");
    let mut attributes = Attributes::new(libc::SCHED_FIFO);
    attributes.priority = priority;
    attributes
        .apply(thread)
        .with_context(|| format!("cannot make thread {thread} first-in-first-out"))
}

/// Sets the turn of all round-robin threads of the machine, until the guard is dropped.
///
/// # Errors
/// When the kernel refuses.
pub fn set_round_robin_slice(turn: Duration) -> Result<crate::cleanup::Guard> {
    let before = fs::read_to_string(RR_TIMESLICE).context(RR_TIMESLICE)?;
    let guard = crate::cleanup::register("the length of round-robin turns", move || {
        Ok(fs::write(RR_TIMESLICE, before)?)
    })?;
    fs::write(RR_TIMESLICE, turn.as_millis().to_string()).context(RR_TIMESLICE)?;
    Ok(guard)
}

/// The kernel's account of a thread. While the thread runs, it lags by up to a scheduler tick.
///
/// # Errors
/// When there is no such thread.
pub fn schedstat(thread: i32) -> Result<SchedStat> {
    let path = format!("/proc/{thread}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| format!("thread {thread}: {path}"))?;
    parse_schedstat(&text).with_context(|| format!("{path}: `{}`", text.trim()))
}

fn parse_schedstat(text: &str) -> Option<SchedStat> {
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    let mut next = || fields.next()?.ok();
    let (run, wait, slices) = (next()?, next()?, next()?);
    Some(SchedStat { run: Duration::from_nanos(run), wait: Duration::from_nanos(wait), slices })
}

/// CPU time of a process so far, user and system, of all its threads including those that have ended.
///
/// # Errors
/// When there is no such process.
pub fn process_cpu_time(pid: u32) -> Result<Duration> {
    let mut clock = 0;
    // SAFETY: the pointer is to a clockid_t that lives through the call.
    let error = unsafe { libc::clock_getcpuclockid(i32::try_from(pid)?, &raw mut clock) };
    ensure!(error == 0, "process {pid}: {}", io::Error::from_raw_os_error(error));
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    ensure!(result == 0, "process {pid}: {}", io::Error::last_os_error());
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

/// Time that a CPU has not been idle since boot, to a tick (usually 10 ms).
///
/// # Errors
/// When there is no such CPU.
pub fn cpu_busy(cpu: usize) -> Result<Duration> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    // SAFETY: sysconf takes no pointers.
    let ticks = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) })?;
    parse_busy(&text, cpu, ticks).with_context(|| format!("CPU {cpu}: not in /proc/stat"))
}

/// user, nice, system, idle, iowait, irq, softirq, steal: all but idle and iowait.
fn parse_busy(text: &str, cpu: usize, ticks_per_second: u64) -> Option<Duration> {
    let name = format!("cpu{cpu} ");
    let fields = text.lines().find_map(|line| line.strip_prefix(&name))?;
    let fields: Vec<u64> =
        fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let busy: u64 = fields.get(..3)?.iter().chain(fields.get(5..8)?).sum();
    Some(Duration::from_millis(busy * 1000 / ticks_per_second.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this_thread() -> i32 {
        // SAFETY: gettid takes no arguments and cannot fail.
        unsafe { libc::gettid() }
    }

    #[test]
    fn schedstat_is_read() {
        let stat = parse_schedstat("5000000 7 42\n").unwrap();
        let expected =
            SchedStat { run: Duration::from_millis(5), wait: Duration::from_nanos(7), slices: 42 };
        assert_eq!(stat, expected);
        assert_eq!(parse_schedstat("1 2"), None);
        // A running thread's account is brought up to date when it leaves the CPU.
        std::thread::sleep(Duration::from_millis(1));
        assert!(schedstat(this_thread()).unwrap().run > Duration::ZERO);
        assert!(process_cpu_time(std::process::id()).unwrap() > Duration::ZERO);
        assert!(threads(std::process::id()).unwrap().contains(&this_thread()));
    }

    #[test]
    fn a_thread_can_be_pinned_and_sliced() {
        std::thread::spawn(|| {
            pin(this_thread(), &[0]).unwrap();
            let allowed = fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = allowed.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
            assert_eq!(line.split_whitespace().last(), Some("0"));
            set_slice(this_thread(), Duration::from_millis(30)).unwrap();
            assert_eq!(slice(this_thread()).unwrap(), Duration::from_millis(30));
            set_ordinary(this_thread()).unwrap();
            assert_ne!(slice(this_thread()).unwrap(), Duration::from_millis(30));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_cpu_is_busy_unless_it_is_idle_or_waits_for_a_disk() {
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu1 10 20 30 1000 2000 1 2 3 0 0\n";
        assert_eq!(parse_busy(text, 1, 100), Some(Duration::from_millis(660)));
        assert_eq!(parse_busy(text, 2, 100), None);
        assert!(cpu_busy(0).unwrap() > Duration::ZERO);
    }

    #[test]
    fn senseless_values_are_refused_by_name() {
        let text = |result: Result<()>| result.unwrap_err().to_string();
        assert!(text(set_slice(this_thread(), Duration::from_secs(1))).starts_with("slice 1s"));
        assert!(text(set_round_robin(this_thread(), 100)).starts_with("priority 100"));
        assert!(text(pin(this_thread(), &[5000])).starts_with("CPU 5000"));
        assert!(text(pin(i32::MAX, &[0])).contains("thread 2147483647"));
    }
}
