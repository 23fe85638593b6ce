//! Settings of a TCP stack.

use floodway_core::congestion::Algorithm;
use floodway_core::rtt::RtoLimits;
use std::sync::Arc;

use super::autotune::Buffer;
use crate::Duration;

/// What a stack does where the standards leave a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// MSS that is announced, in bytes; options count against it when a segment is cut (RFC 6691).
    pub mss: u16,
    /// Congestion control.
    pub algorithm: Algorithm,
    /// HyStart++ in slow start (Reno, NewReno, CUBIC).
    pub hystart: bool,
    /// Initial window in segments.
    pub initial_window: u32,
    /// Segments by which one ACK may widen the window in slow start (L of RFC 3465), however much it acknowledges; zero:
    /// as many as it acknowledges.
    pub slow_start_limit: u32,
    /// Offers and uses SACK.
    pub sack: bool,
    /// Finds lost retransmissions by what was sent after them and has arrived (RFC 8985, Linux since 4.4), not by the timer only, and
    /// sends nothing again in doubt. A loss in what recovery has sent begins the next recovery.
    pub rack: bool,
    /// Offers and uses timestamps.
    pub timestamps: bool,
    /// Offers and uses ECN.
    pub ecn: bool,
    /// Bounds of the retransmission timeout.
    pub rto: RtoLimits,
    /// First timeout of a SYN.
    pub syn_rto: Duration,
    /// Timeouts in a row after which the connection is given up.
    pub retries: u8,
    /// Longest delay of an ACK; zero acknowledges each segment.
    pub delayed_ack: Duration,
    /// Segments at the start of a connection that are acknowledged one by one (Linux's quick ACKs).
    pub quick_acks: u32,
    /// Receive window.
    pub receive: Buffer,
    /// Bytes that may be sent and unacknowledged or in the socket.
    pub send: Buffer,
    /// Largest GSO packet in bytes of payload; zero or one MSS: none.
    pub gso_max: u32,
    /// A GSO packet holds what is sent in about a millisecond, and at least two segments (Linux `tcp_tso_autosize`, without
    /// what it adds for round trips of some ms), and nothing waits to fill it; otherwise it holds as much as fits.
    pub gso_autosize: bool,
    /// Bytes that may wait in queues of the sender's host (Linux, `tcp_limit_output_bytes`); zero: any number, as
    /// before Linux 3.6.
    pub limit_output: u32,
    /// A timeout does not repeat what queues of the sender's host still hold (Linux since 3.15, `skb_still_in_host_queue`).
    pub skip_queued_rtx: bool,
    /// Falls back to the initial window after idle time (RFC 5681 section 4.1).
    pub idle_restart: bool,
    /// The window grows only while it is what keeps data back (RFC 7661, Linux `tcp_is_cwnd_limited`); otherwise with
    /// whatever is acknowledged.
    pub validate_window: bool,
}

impl TcpConfig {
    /// A Linux guest of today: CUBIC, ten segments, SACK, timestamps, 200 ms, quick ACKs, small queues.
    #[must_use]
    pub const fn linux() -> Self {
        Self {
            mss: 1460,
            algorithm: Algorithm::Cubic,
            hystart: true,
            initial_window: 10,
            slow_start_limit: 0,
            sack: true,
            rack: false,
            timestamps: true,
            ecn: false,
            rto: RtoLimits::LINUX,
            syn_rto: Duration::from_secs(1),
            retries: 15,
            delayed_ack: Duration::from_millis(40),
            quick_acks: 16,
            receive: Buffer { initial: 65_535, max: 6 << 20 },
            send: Buffer { initial: 87_380, max: 4 << 20 },
            gso_max: 0,
            gso_autosize: false,
            limit_output: 1 << 20,
            skip_queued_rtx: true,
            idle_restart: true,
            validate_window: true,
        }
    }

    /// The guests of the papers: Linux 2.6.18 with Reno, an initial window of three segments, one segment more for
    /// each ACK in slow start (`tcp_slow_start`), a first timeout of three seconds for a SYN (RFC 2988), and the buffers of 512 MB of memory.
    #[must_use]
    pub const fn linux_2_6() -> Self {
        Self {
            algorithm: Algorithm::Reno,
            hystart: false,
            initial_window: 3,
            slow_start_limit: 1,
            syn_rto: Duration::from_secs(3),
            receive: Buffer { initial: 65_535, max: 4 << 20 },
            send: Buffer { initial: 16_384, max: 4 << 20 },
            limit_output: 0,
            skip_queued_rtx: false,
            ..Self::linux()
        }
    }

    /// Nothing but the standards' basics, for comparing with theory: no timestamps, no HyStart++, no
    /// quick ACKs, buffers and queues that never bind.
    #[must_use]
    pub const fn plain(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            hystart: false,
            timestamps: false,
            quick_acks: 0,
            receive: Buffer { initial: 64 << 20, max: 64 << 20 },
            send: Buffer { initial: 64 << 20, max: 64 << 20 },
            limit_output: 0,
            skip_queued_rtx: false,
            ..Self::linux()
        }
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self::linux()
    }
}

/// The settings that a run's connections have, each once: there are a million connections and a few stacks.
#[derive(Debug, Default)]
pub(crate) struct Stacks(Vec<Arc<TcpConfig>>);

impl Stacks {
    /// Settings to share, equal to `config`.
    pub(crate) fn share(&mut self, config: &TcpConfig) -> Arc<TcpConfig> {
        if let Some(known) = self.0.iter().find(|known| ***known == *config) {
            return Arc::clone(known);
        }
        let new = Arc::new(*config);
        self.0.push(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_settings_are_kept_once() {
        let mut stacks = Stacks::default();
        let all = [TcpConfig::linux(), TcpConfig::linux_2_6(), TcpConfig::linux()];
        let [a, b, c] = all.map(|config| stacks.share(&config));
        assert!(Arc::ptr_eq(&a, &c) && !Arc::ptr_eq(&a, &b));
        assert_eq!((*a, *b, stacks.0.len()), (TcpConfig::linux(), TcpConfig::linux_2_6(), 2));
    }
}
