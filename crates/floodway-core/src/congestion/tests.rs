//! What the tests of all algorithms share, and tests of them together.

use super::*;
use crate::seq::Seq;
use crate::time::{Duration, Instant};
use proptest::prelude::*;

const MSS: u32 = 1000;

/// A window in segments of 1000 bytes; `u32::MAX` is no threshold.
pub(super) fn segments(cwnd: u32, ssthresh: u32) -> Window {
    Window { cwnd: cwnd * MSS, ssthresh: ssthresh.saturating_mul(MSS), mss: MSS }
}

/// An ACK of so many bytes of a full window.
pub(super) fn ack(bytes: u32, w: &Window) -> Ack {
    Ack {
        now: Instant::ZERO,
        bytes_acked: bytes,
        rtt: None,
        min_rtt: None,
        flight: w.cwnd,
        snd_una: Seq(bytes),
        snd_nxt: Seq(w.cwnd),
        ecn_bytes: 0,
        ece: false,
        cwnd_limited: true,
    }
}

/// Congestion with a full window in flight.
pub(super) fn congestion(w: &Window) -> Congestion {
    Congestion { snd_nxt: Seq(w.cwnd), ..at(Instant::ZERO, w.cwnd) }
}

/// Congestion of a sender that is not limited by `cwnd`, at the start of the sequence numbers.
fn at(now: Instant, flight: u32) -> Congestion {
    Congestion { now, flight, cwnd_limited: false, snd_una: Seq(0), snd_nxt: Seq(0) }
}

/// A path on which a window goes out at once and its ACKs are spread over a round trip.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub now: Instant,
    pub una: Seq,
    /// Segments per ACK.
    pub stretch: u32,
    pub limited: bool,
    /// Segments of each ten that are marked.
    pub marked_of_ten: u32,
    pub acks: u32,
}

impl Default for Path {
    fn default() -> Self {
        let una = Seq(u32::MAX - 212_345);
        Self { now: Instant::ZERO, una, stretch: 1, limited: true, marked_of_ten: 0, acks: 0 }
    }
}

impl Path {
    /// Sends a window and acknowledges it, all within `rtt_ms` milliseconds.
    pub(super) fn round(&mut self, cc: &mut dyn CongestionControl, w: &mut Window, rtt_ms: u64) {
        let rtt = Duration::from_millis(rtt_ms);
        let count = w.cwnd / (MSS * self.stretch);
        let end = self.una + w.cwnd / MSS * MSS;
        for n in 0..count {
            let bytes = if n + 1 == count { end.since(self.una) } else { MSS * self.stretch };
            let flight = w.cwnd;
            self.now += rtt / count;
            self.una += bytes;
            let marked = self.acks % 10 < self.marked_of_ten;
            self.acks += 1;
            let ack = Ack {
                now: self.now,
                bytes_acked: bytes,
                rtt: Some(rtt),
                min_rtt: Some(rtt),
                flight,
                snd_una: self.una,
                // What has been acknowledged is replaced at once.
                snd_nxt: self.una + w.cwnd,
                ecn_bytes: if marked { bytes } else { 0 },
                ece: false,
                cwnd_limited: self.limited,
            };
            cc.on_ack(&ack, w);
        }
    }
}

/// One flow over one bottleneck: a rate, a round trip without queue, and a queue.
struct Bottleneck {
    segments_per_ms: f64,
    base_ms: f64,
    queue_limit: f64,
    mark_above: f64,
    cc: Controller,
    w: Window,
    now: Instant,
    una: Seq,
    queue: f64,
    losses: u32,
    /// Segments that found no room, the first time.
    overshoot: f64,
}

impl Bottleneck {
    fn new(algorithm: Algorithm) -> Self {
        Self {
            segments_per_ms: 10.0,
            base_ms: 20.0,
            queue_limit: f64::INFINITY,
            mark_above: f64::INFINITY,
            cc: Controller::new(algorithm),
            w: segments(10, u32::MAX),
            now: Instant::ZERO,
            una: Seq(0),
            queue: 0.0,
            losses: 0,
            overshoot: 0.0,
        }
    }

    /// One round trip: what is more than the path holds stands in the queue.
    fn round(&mut self) {
        let cwnd = f64::from(self.w.cwnd) / f64::from(MSS);
        self.queue = (cwnd - self.segments_per_ms * self.base_ms).max(0.0);
        if self.queue > self.queue_limit {
            let snd_nxt = self.una + self.w.cwnd;
            let event = Congestion { snd_una: self.una, snd_nxt, ..at(self.now, self.w.cwnd) };
            self.cc.on_loss(&event, &mut self.w);
            self.w.leave_recovery();
            self.una = snd_nxt;
            if self.losses == 0 {
                self.overshoot = self.queue - self.queue_limit;
            }
            self.losses += 1;
            return;
        }
        let rtt_us = (self.base_ms + self.queue / self.segments_per_ms) * 1000.0;
        let rtt = Duration::from_micros(rtt_us as u64);
        let count = self.w.cwnd / MSS;
        for _ in 0..count {
            self.now += rtt / count;
            self.una += MSS;
            self.ack(rtt);
        }
    }

    fn ack(&mut self, rtt: Duration) {
        let ece = self.queue > self.mark_above;
        let snd_nxt = self.una + self.w.cwnd;
        let ack = Ack {
            now: self.now,
            bytes_acked: MSS,
            rtt: Some(rtt),
            min_rtt: Some(Duration::from_millis(20)),
            flight: self.w.cwnd,
            snd_una: self.una,
            snd_nxt,
            ecn_bytes: if ece { MSS } else { 0 },
            ece,
            cwnd_limited: true,
        };
        self.cc.on_ack(&ack, &mut self.w);
        if ece {
            let (snd_una, flight) = (self.una, self.w.cwnd);
            let event = Congestion { snd_una, snd_nxt, ..at(self.now, flight) };
            self.cc.on_ecn(&event, &mut self.w);
        }
    }
}

/// Mathis et al., "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm", 1997: with one loss
/// in each `1/p` segments and an ACK for each segment, the window averages `sqrt(3 / (2 p))`.
#[test]
fn reno_under_periodic_loss_is_the_mathis_sawtooth() {
    for period in [400_u32, 3_000, 20_000] {
        let (mut cc, mut w) = (Controller::new(Algorithm::Reno), segments(20, 20));
        let (mut una, mut rounds, mut left) = (Seq(0), 0_u32, period);
        let (mut total, mut cycles) = (0_u64, 0_u32);
        while cycles < 60 {
            // Ten cycles to forget the start.
            let measured = cycles >= 10;
            let mut in_round = w.cwnd / MSS;
            rounds += u32::from(measured);
            while in_round > 0 {
                in_round -= 1;
                left -= 1;
                total += u64::from(measured);
                una += MSS;
                let snd_nxt = una + w.cwnd;
                let ack = Ack { snd_una: una, snd_nxt, ..ack(MSS, &w) };
                cc.on_ack(&ack, &mut w);
                if left == 0 {
                    left = period;
                    cycles += 1;
                    let event = Congestion { snd_una: una, snd_nxt, ..congestion(&w) };
                    cc.on_loss(&event, &mut w);
                    w.leave_recovery();
                    in_round = in_round.min(w.cwnd / MSS);
                }
            }
        }
        let average = total as f64 / f64::from(rounds);
        let expected = (1.5 * f64::from(period)).sqrt();
        let apart = (average / expected - 1.0).abs();
        assert!(apart < 0.05, "1 in {period}: {average:.1} segments, {expected:.1} expected");
    }
}

#[test]
fn vegas_settles_with_two_to_four_segments_in_the_queue_and_loses_none() {
    let mut path = Bottleneck { queue_limit: 150.0, ..Bottleneck::new(Algorithm::Vegas) };
    (0..400).for_each(|_| path.round());
    for _ in 0..100 {
        path.round();
        assert!((1.0..=5.0).contains(&path.queue), "{}", path.queue);
    }
    assert_eq!(path.losses, 0);
}

#[test]
fn dctcp_stays_around_its_marking_threshold() {
    let mut path = Bottleneck { mark_above: 30.0, ..Bottleneck::new(Algorithm::Dctcp) };
    (0..400).for_each(|_| path.round());
    let mut least = f64::INFINITY;
    for _ in 0..200 {
        path.round();
        least = least.min(path.queue);
        assert!(path.queue < 34.0, "{}", path.queue);
    }
    // The link never starves, where a halved window of 230 segments would leave it at 58 %.
    assert!(least > 0.0, "{least}");
    assert!(path.cc.marked_part().unwrap() < 1 << 18);
}

/// A path that holds 200 segments without a queue, so that a window of 320 is the first to queue.
#[test]
fn hystart_overshoots_less() {
    let overshoot = |algorithm, hystart, queue_limit| {
        let mut path = Bottleneck { queue_limit, ..Bottleneck::new(algorithm) };
        path.cc = Controller::with_hystart(algorithm, hystart);
        (0..15).for_each(|_| path.round());
        assert!(!path.w.in_slow_start() && path.w.cwnd >= 200 * MSS, "{algorithm}: {:?}", path.w);
        path.overshoot
    };
    for algorithm in [Algorithm::Reno, Algorithm::NewReno, Algorithm::Cubic] {
        // 320, 640: 210 too many. Conservative, 320, 405, 506: 76 too many.
        assert_eq!(overshoot(algorithm, false, 230.0) as u32, 210, "{algorithm}");
        assert_eq!(overshoot(algorithm, true, 230.0) as u32, 76, "{algorithm}");
        // Into a queue of four windows, it ends without loss, plain slow start at 1280.
        assert_eq!(overshoot(algorithm, false, 800.0) as u32, 280, "{algorithm}");
        assert_eq!(overshoot(algorithm, true, 800.0) as u32, 0, "{algorithm}");
    }
}

#[test]
fn cubic_comes_back_to_a_fast_paths_rate_sooner_than_reno() {
    let rounds = |algorithm| {
        let fast =
            Bottleneck { segments_per_ms: 100.0, base_ms: 100.0, ..Bottleneck::new(algorithm) };
        let mut path = Bottleneck { w: segments(10_000, 10_000), ..fast };
        path.queue_limit = -1.0;
        path.round();
        path.queue_limit = f64::INFINITY;
        (1..).find(|_| {
            path.round();
            path.w.cwnd >= 9_900_000
        })
    };
    // Reno needs 4900 rounds of 100 ms; CUBIC K = cbrt(3000 / 0.4) = 19.6 s, less 6.3 s for the last 100.
    assert_eq!(rounds(Algorithm::Reno), Some(4900));
    let cubic = rounds(Algorithm::Cubic).unwrap();
    assert!((125..=145).contains(&cubic), "{cubic}");
}

#[derive(Clone, Debug)]
enum Step {
    Ack { bytes: u32, rtt_us: u64, flight: u32, ece: bool, limited: bool },
    Loss { flight: u32 },
    LeaveRecovery,
    Timeout { flight: u32, resent: bool },
    Ecn { flight: u32 },
    Idle { ms: u64, initial_window: u32 },
    Spurious,
}

/// Mostly small numbers, sometimes any.
fn size() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0_u32..200_000, 1 => any::<u32>()]
}

fn step() -> impl Strategy<Value = Step> {
    let ack = (size(), prop_oneof![0_u64..100_000, any::<u64>()], size(), any::<(bool, bool)>());
    prop_oneof![
        20 => ack.prop_map(|(bytes, rtt_us, flight, (ece, limited))| {
            Step::Ack { bytes, rtt_us, flight, ece, limited }
        }),
        1 => size().prop_map(|flight| Step::Loss { flight }),
        1 => Just(Step::LeaveRecovery),
        1 => (size(), any::<bool>()).prop_map(|(flight, resent)| Step::Timeout { flight, resent }),
        2 => size().prop_map(|flight| Step::Ecn { flight }),
        1 => (0_u64..1000, size()).prop_map(|(ms, initial_window)| Step::Idle { ms, initial_window }),
        1 => Just(Step::Spurious),
    ]
}

fn window() -> impl Strategy<Value = Window> {
    let mss = prop_oneof![4 => 500_u32..9000, 1 => 1_u32..70_000];
    (mss, size()).prop_map(|(mss, cwnd)| Window::new(mss, cwnd))
}

proptest! {
    #[test]
    fn invariants_hold_for_any_sequence_of_events(
        algorithm in proptest::sample::select(&Algorithm::ALL[..]), hystart: bool, mut w in window(),
        steps in proptest::collection::vec((step(), any::<u32>(), 0_u64..10_000_000_000), 1..300),
    ) {
        let mut cc = Controller::with_hystart(algorithm, hystart);
        let (mut now, mut una) = (Instant::ZERO, Seq(u32::MAX - 100_000));
        for (step, ahead, later) in steps {
            now += Duration::from_nanos(later);
            let before = w;
            let snd_nxt = una + ahead % (1 << 30);
            let event = |flight| Congestion { snd_una: una, snd_nxt, ..at(now, flight) };
            match step {
                Step::Ack { bytes, rtt_us, flight, ece, limited } => {
                    una += bytes % (1 << 30);
                    let rtt = Some(Duration::from_micros(rtt_us));
                    let ack = Ack {
                        now, bytes_acked: bytes, rtt, min_rtt: rtt, flight, snd_una: una, snd_nxt,
                        ecn_bytes: bytes, ece, cwnd_limited: limited,
                    };
                    cc.on_ack(&ack, &mut w);
                    let most = before.cwnd.saturating_mul(2).saturating_add(2 * w.mss);
                    prop_assert!(w.cwnd <= most);
                    prop_assert!(w.cwnd <= before.cwnd.max(MAX_CWND));
                    prop_assert!(limited && !ece || w.cwnd <= before.cwnd);
                    prop_assert!(w.cwnd >= before.cwnd || algorithm == Algorithm::Vegas);
                    prop_assert!(w.ssthresh <= before.ssthresh || before.ssthresh < 2 * w.mss);
                }
                Step::Loss { flight } => {
                    cc.on_loss(&event(flight), &mut w);
                    prop_assert!(w.cwnd == before.cwnd && w.ssthresh >= 2 * w.mss);
                }
                Step::LeaveRecovery => w.leave_recovery(),
                Step::Timeout { flight, resent } => {
                    cc.on_timeout(&event(flight), resent, &mut w);
                    prop_assert_eq!(w.cwnd, w.mss);
                    prop_assert!(!resent || w.ssthresh == before.ssthresh);
                }
                Step::Ecn { flight } => {
                    let reduced = cc.on_ecn(&event(flight), &mut w);
                    prop_assert!(reduced || w == before);
                    prop_assert!(w.cwnd <= before.cwnd);
                }
                Step::Idle { ms, initial_window } => {
                    let idle = Duration::from_millis(ms);
                    cc.on_idle(idle, Duration::from_millis(200), initial_window, &mut w);
                    prop_assert!(w.cwnd <= before.cwnd && w.ssthresh >= before.ssthresh);
                }
                Step::Spurious => {
                    cc.on_spurious(&mut w);
                    prop_assert!(w.cwnd >= before.cwnd && w.ssthresh >= before.ssthresh);
                }
            }
            prop_assert!(w.cwnd >= w.mss && w.ssthresh >= 2 * w.mss && w.mss == before.mss);
        }
    }

    /// A window that nobody checked first does not panic.
    #[test]
    fn any_window_is_survived(
        algorithm in proptest::sample::select(&Algorithm::ALL[..]),
        windows in proptest::collection::vec(any::<(u32, u32, u32, u32)>(), 1..40),
    ) {
        let mut cc = Controller::new(algorithm);
        for (cwnd, ssthresh, mss, bytes) in windows {
            let mut w = Window { cwnd, ssthresh, mss };
            cc.on_ack(&Ack { bytes_acked: bytes, ..ack(0, &w) }, &mut w);
            cc.on_loss(&congestion(&w), &mut w);
            cc.on_spurious(&mut w);
            cc.on_ack(&Ack { bytes_acked: bytes, ..ack(0, &w) }, &mut w);
            cc.on_timeout(&congestion(&w), false, &mut w);
            w.leave_recovery();
        }
    }
}
