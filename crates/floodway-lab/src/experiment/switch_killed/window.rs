//! The congestion windows of a guest's connections, as its kernel tells in `/proc/net/tcp`.
//!
//! A file is read where `ss` would be started: a guest that floods has little time for new processes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use crate::agent::Agent;

/// Segments from which on a window is that of a flow that is online: far beyond any path of the experiment. The guest
/// module's is 32768.
const ONLINE_SEGMENTS: u64 = 1 << 14;
/// How far a window may lie back or ahead of the moment that it is held to, since windows are only known now and then.
const REACH: Duration = Duration::from_millis(100);
/// Columns of the file (Documentation/networking/proc_net_tcp.rst): address and port of this end, state, window.
const LOCAL: usize = 1;
const STATE: usize = 3;
const WINDOW: usize = 15;
const ESTABLISHED: &str = "01";

/// A connection's congestion window at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// By the host's clock, since 1970: when the guest had answered.
    pub at_ns: i64,
    pub segments: u64,
}

impl Window {
    pub fn is_online(&self) -> bool {
        self.segments >= ONLINE_SEGMENTS
    }
}

/// Windows of each connection, by its port in the guest, in the order of time.
pub type Windows = BTreeMap<u16, Vec<Window>>;

/// Asks again and again until told to stop.
///
/// # Errors
/// When the guest does not answer.
pub fn watch(
    agent: &Agent,
    period: Duration,
    stop: &AtomicBool,
    clock: impl Fn() -> Result<i64>,
) -> Result<Windows> {
    let mut windows = Windows::new();
    while !stop.load(Ordering::Relaxed) {
        let table = agent.get("/proc/net/tcp")?;
        let at_ns = clock()?;
        for line in String::from_utf8_lossy(&table).lines() {
            if let Some((port, segments)) = connection(line) {
                windows.entry(port).or_default().push(Window { at_ns, segments });
            }
        }
        std::thread::sleep(period);
    }
    Ok(windows)
}

/// Port and window of an established connection.
fn connection(line: &str) -> Option<(u16, u64)> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    if *columns.get(STATE)? != ESTABLISHED {
        return None;
    }
    let port = columns.get(LOCAL)?.split_once(':')?.1;
    Some((u16::from_str_radix(port, 16).ok()?, columns.get(WINDOW)?.parse().ok()?))
}

/// The largest shadow window that a connection may have had at a moment, in segments: of the windows known shortly before and
/// after it, or else the first that is known later. None when there is none.
pub fn shadow(windows: &[Window], at_ns: i64) -> Option<u64> {
    let reach = i64::try_from(REACH.as_nanos()).unwrap_or(i64::MAX);
    let shadows = || windows.iter().filter(|window| !window.is_online());
    let near = shadows().filter(|window| window.at_ns.abs_diff(at_ns) <= reach.unsigned_abs());
    let later = || shadows().find(|window| window.at_ns >= at_ns).map(|window| window.segments);
    near.map(|window| window.segments).max().or_else(later)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn window(at_ms: i64, segments: u64) -> Window {
        Window { at_ns: at_ms * MS, segments }
    }

    #[test]
    fn established_connections_are_read_from_the_table() {
        // The second line is one of a kernel 6.1, the third listens.
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            1: 0B0112C6:B26E 026412C6:A79D 01 00130000:00000000 01:0000001A 00000000     0        0 1234 4 0000000000000000 61 4 30 32768 81\n   \
            0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1235 1 0000000000000000 100 0 0 10 0\n";
        let read: Vec<_> = table.lines().filter_map(connection).collect();
        assert_eq!(read, [(0xb26e, 32768)]);
        assert!(Window { at_ns: 0, segments: 32768 }.is_online());
    }

    #[test]
    fn the_shadow_is_the_largest_near_a_moment_or_the_next_known() {
        let windows = [window(0, 32768), window(400, 20), window(450, 30), window(1000, 5)];
        assert_eq!(shadow(&windows, 10 * MS), Some(20), "next known");
        assert_eq!(shadow(&windows, 420 * MS), Some(30), "largest near");
        assert_eq!(shadow(&windows, 700 * MS), Some(5));
        assert_eq!(shadow(&windows, 1050 * MS), Some(5), "just before");
        assert_eq!(shadow(&windows, 1200 * MS), None);
        assert_eq!(shadow(&[], 0), None);
    }
}
