//! Who else ran on the two cores: the doubt that belongs to every figure.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Run time and waiting time of each thread of a switch, in nanoseconds, from `schedstat`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PollerTime(BTreeMap<u32, (u64, u64)>);

impl PollerTime {
    /// Reads the threads of these processes.
    ///
    /// # Errors
    /// When one has ended.
    pub fn read(pids: &[u32]) -> Result<Self> {
        let mut threads = BTreeMap::new();
        for pid in pids {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"))
                .with_context(|| format!("process {pid} of the switch has ended"))?;
            for task in tasks.flatten() {
                // A thread may end between the listing and the reading.
                let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
                let name = task.file_name();
                let id = name.to_str().and_then(|name| name.parse().ok());
                if let Some((id, times)) = id.zip(parse_schedstat(&text)) {
                    threads.insert(id, times);
                }
            }
        }
        Ok(Self(threads))
    }

    /// Time on a CPU of all threads since `earlier`.
    pub fn ran_since(&self, earlier: &Self) -> Duration {
        let before = |id| earlier.0.get(id).map_or(0, |times| times.0);
        let ran = self.0.iter().map(|(id, times)| times.0.saturating_sub(before(id)));
        Duration::from_nanos(ran.sum())
    }

    /// Of the time that the busiest thread, the one that polls, wanted to run since `earlier`: the
    /// part that it waited for its core, 0 to 1.
    pub fn waited_since(&self, earlier: &Self) -> f64 {
        let deltas = self.0.iter().map(|(id, &(ran, waited))| {
            let (ran_before, waited_before) = earlier.0.get(id).copied().unwrap_or_default();
            (ran.saturating_sub(ran_before), waited.saturating_sub(waited_before))
        });
        let Some((ran, waited)) = deltas.max() else { return 0.0 };
        let wanted = ran + waited;
        if wanted == 0 { 0.0 } else { waited as f64 / wanted as f64 }
    }
}

fn parse_schedstat(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Numbers of the CPUs that are online.
///
/// # Errors
/// When the kernel does not say.
pub fn cores_present() -> Result<Vec<usize>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").context("cannot list CPUs")?;
    parse_cpu_list(text.trim()).with_context(|| format!("unknown CPU list `{}`", text.trim()))
}

/// `0-3,6` (cpuset(7), list format).
fn parse_cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0-1"), Some(vec![0, 1]));
        assert_eq!(parse_cpu_list("0,2-3"), Some(vec![0, 2, 3]));
        assert_eq!(parse_cpu_list("x"), None);
    }

    #[test]
    fn the_busiest_thread_speaks_for_the_switch() {
        let earlier = PollerTime(BTreeMap::from([(1, (100, 0)), (2, (50, 10))]));
        let later = PollerTime(BTreeMap::from([(1, (110, 900)), (2, (350, 110)), (3, (1, 1))]));
        assert!((later.waited_since(&earlier) - 0.25).abs() < 1e-9);
        assert!(later.waited_since(&later).abs() < 1e-9);
        assert_eq!(later.ran_since(&earlier), Duration::from_nanos(10 + 300 + 1));
    }
}
