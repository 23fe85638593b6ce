//! When frames arrive at the host.
//!
//! The kernel's count of what the switch has put into the host's TAP device is read every half millisecond, by a thread that does nothing else. So gaps are known to a
//! millisecond on a machine that has a core for it; on a busy one they also have the time for which the thread waited, as what is measured beside shows.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::joined;
use crate::experiment::testbed::UPLINK;
use crate::net::Namespace;
use crate::transfer::inside;

/// Between two looks.
const LOOK: Duration = Duration::from_micros(500);
/// The devices of the namespace that the reading thread is in.
const DEVICES: &str = "/proc/thread-self/net/dev";

/// Lets `act` do its work, and returns when that is done and `window` is over, with what it returned and the longest time in between without a frame from the switch.
///
/// # Errors
/// When the count cannot be read, or what `act` says.
pub fn longest_gap<T>(
    host: &Namespace,
    window: Duration,
    act: impl FnOnce() -> Result<T>,
) -> Result<(Duration, T)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| watch(host, &over));
        let begun = Instant::now();
        let result = act();
        thread::sleep(window.saturating_sub(begun.elapsed()));
        over.store(true, Ordering::Relaxed);
        let longest = joined(watching)?;
        Ok((longest, result?))
    })
}

/// Returns how many frames have come to the host.
///
/// # Errors
/// When the count cannot be read.
pub fn count(host: &Namespace) -> Result<u64> {
    inside(host, count_here)?
}

/// The same for the namespace that the calling thread is in.
fn count_here() -> Result<u64> {
    let devices = fs::read_to_string(DEVICES).with_context(|| DEVICES.to_owned())?;
    received(&devices).with_context(|| format!("{DEVICES} has no count of {UPLINK}"))
}

fn watch(host: &Namespace, over: &AtomicBool) -> Result<Duration> {
    inside(host, || watch_here(over))?
}

/// Returns the longest time without a frame until `over` is set.
fn watch_here(over: &AtomicBool) -> Result<Duration> {
    let (mut last, mut seen, mut longest) = (Instant::now(), count_here()?, Duration::ZERO);
    while !over.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        let (now, count) = (Instant::now(), count_here()?);
        if count != seen {
            longest = longest.max(now - last);
            (last, seen) = (now, count);
        }
    }
    Ok(longest.max(last.elapsed()))
}

/// The number of packets that the uplink has received, which is the second behind its name.
fn received(devices: &str) -> Option<u64> {
    let named = |line: &str| Some(line.trim().strip_prefix(UPLINK)?.strip_prefix(':')?.to_owned());
    devices.lines().find_map(named)?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uplinks_packets_are_found() {
        let devices = "Inter-|   Receive                            |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes\n    \
            lo:     100       2    0    0    0     0          0         0      100\n   \
            fw0: 123456   789    0    0    0     0          0         0      100\n";
        assert_eq!(received(devices), Some(789));
        assert_eq!(received(&devices.replace("fw0", "fw01")), None);
    }
}
