//! The congestion windows of a guest's connections, from its kernel's own trace.
//!
//! The tracepoint `tcp:tcp_probe` fires for each packet that a connection receives, and tells the window *before* the packet is
//! looked at. The window in force after a packet is thus that of the next event. Its clock is `tai`, which is the guest's
//! real-time clock (nobody has told the guest of leap seconds), as in a capture.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::agent::Agent;

const START: &str = "mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
    cd /sys/kernel/tracing && echo 0 >tracing_on && echo tai >trace_clock && echo 16384 >buffer_size_kb && echo >trace &&
    echo 1 >events/tcp/tcp_probe/enable && echo 1 >tracing_on";
const END: &str =
    "cd /sys/kernel/tracing && echo 0 >tracing_on && echo 0 >events/tcp/tcp_probe/enable";
const TRACE: &str = "/sys/kernel/tracing/trace";
const EVENT: &str = ": tcp_probe: ";
/// Segments from which on a window is that of a flow that is online: far beyond any path of the experiment. The guest
/// module's is 32768.
const ONLINE_SEGMENTS: u64 = 1 << 14;

/// A connection's congestion window at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// By the guest's clock, since 1970.
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

/// Starts a trace.
///
/// # Errors
/// When the guest's kernel has none.
pub fn start_trace(agent: &Agent) -> Result<()> {
    agent.exec(&["sh", "-c", START]).map(drop).context("the guest's trace")
}

/// Ends the trace, which must be complete.
///
/// # Errors
/// When it is not.
pub fn end_trace(agent: &Agent) -> Result<Windows> {
    agent.exec(&["sh", "-c", END])?;
    parse(&String::from_utf8_lossy(&agent.get(TRACE)?)).context("the guest's trace")
}

fn parse(trace: &str) -> Result<Windows> {
    let mut windows = Windows::new();
    for line in trace.lines() {
        if let Some(counts) =
            line.trim_start_matches(['#', ' ']).strip_prefix("entries-in-buffer/entries-written: ")
        {
            let (kept, written) = counts
                .split_whitespace()
                .next()
                .and_then(|it| it.split_once('/'))
                .unwrap_or_default();
            ensure!(kept == written, "it has gaps: {line}");
        }
        if let Some((port, window)) = event(line) {
            windows.entry(port).or_default().push(window);
        }
    }
    Ok(windows)
}

/// A line such as `cat-86 [000] ..s2. 1795272577.998972: tcp_probe: src=10.0.0.1:5000 dest=... snd_cwnd=10 ...`.
fn event(line: &str) -> Option<(u16, Window)> {
    let (before, after) = line.split_once(EVENT)?;
    let (seconds, fraction) = before.rsplit(' ').next()?.split_once('.')?;
    let microseconds: i64 = fraction.parse().ok()?;
    let at_ns = seconds.parse::<i64>().ok()? * 1_000_000_000 + microseconds * 1000;
    let field = |name: &str| {
        after.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let port = field("src")?.rsplit_once(':')?.1.parse().ok()?;
    Some((port, Window { at_ns, segments: field("snd_cwnd")?.parse().ok()? }))
}

/// The shadow window that a connection had at a moment, in segments: the larger of those before and after the latest
/// packet. If it was out of force then, the first that came into force later. None when that is not known.
pub fn shadow(windows: &[Window], at_ns: i64) -> Option<u64> {
    let next = windows.partition_point(|window| window.at_ns <= at_ns);
    let later = &windows[next..];
    let in_force = |window: &&Window| !window.is_online();
    match later.first() {
        Some(after) if !after.is_online() => {
            let before = windows[..next].last().filter(in_force);
            Some(after.segments.max(before.map_or(0, |window| window.segments)))
        }
        _ => later.iter().find(in_force).map(|window| window.segments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn window(at_ms: i64, segments: u64) -> Window {
        Window { at_ns: at_ms * MS, segments }
    }

    #[test]
    fn a_trace_of_either_kernel_is_read() {
        let trace = "# tracer: nop\n#\n# entries-in-buffer/entries-written: 3/3   #P:1\n#\n\
            <idle>-0       [000] ..s2.  1795272577.998972: tcp_probe: src=198.18.1.11:45678 dest=198.18.100.2:5000 \
            mark=0x0 data_len=0 snd_nxt=0x1 snd_una=0x1 snd_cwnd=32768 ssthresh=20 snd_wnd=64256 srtt=3 rcv_wnd=9 sock_cookie=7\n\
            a b-86      [000] b.s2.  1795272578.000001: tcp_probe: family=AF_INET src=198.18.1.11:45678 dest=198.18.100.2:5000 \
            mark=0x0 data_len=0 snd_nxt=0x1 snd_una=0x1 snd_cwnd=10 ssthresh=20 snd_wnd=64256 srtt=3 rcv_wnd=9 sock_cookie=7\n\
            a-86 [000] ..... 1.000001: tcp_retransmit_skb: skbaddr=0\n";
        let expected = [
            Window { at_ns: 1_795_272_577_998_972_000, segments: 32768 },
            Window { at_ns: 1_795_272_578_000_001_000, segments: 10 },
        ];
        assert_eq!(parse(trace).unwrap(), [(45678, expected.to_vec())].into());
        assert!(expected[0].is_online() && !expected[1].is_online());
        assert!(parse(&trace.replace("3/3", "3/4")).unwrap_err().to_string().contains("gaps"));
    }

    #[test]
    fn the_shadow_is_that_around_the_latest_packet_or_the_next_in_force() {
        let windows = [window(0, 32768), window(400, 20), window(450, 30), window(1000, 5)];
        assert_eq!(shadow(&windows, -MS), Some(20), "out of force");
        assert_eq!(shadow(&windows, 10 * MS), Some(20), "came into force with this packet");
        assert_eq!(shadow(&windows, 420 * MS), Some(30), "has grown");
        assert_eq!(shadow(&windows, 700 * MS), Some(30), "was cut since");
        assert_eq!(shadow(&windows, 1000 * MS), None);
        assert_eq!(shadow(&[], 0), None);
    }
}
