//! A congestion control of one's own: Scalable TCP (Kelly 2003) beside Reno on a link that drops what its buffer does not hold.
//!
//! To offer it to operators, put the type into `src/congestion/` and its name into the list of `algorithm.rs`.
//! `cargo run -p floodway-core --example congestion_control`

use floodway_core::congestion::{Ack, Congestion, CongestionControl, Reno, Window};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};

const MSS: u32 = 1000;
const RTT: Duration = Duration::from_millis(100);
/// Bytes that the link and its buffer hold: 1000 and 100 segments.
const PIPE: u32 = 1_000 * MSS;
const BUFFER: u32 = 100 * MSS;

/// The window grows by 1 % of what is acknowledged, and a loss takes an eighth of it.
struct Scalable;

impl CongestionControl for Scalable {
    fn start(_hystart: bool) -> Self {
        Self
    }

    fn on_ack(&mut self, ack: &Ack, w: &mut Window) {
        if !ack.cwnd_limited || ack.ece {
            return;
        }
        w.cwnd += if w.in_slow_start() {
            ack.bytes_acked.min(w.ssthresh - w.cwnd)
        } else {
            ack.bytes_acked / 100
        };
    }

    fn on_loss(&mut self, _event: &Congestion, w: &mut Window) {
        w.ssthresh = (w.cwnd - w.cwnd / 8).max(2 * w.mss);
    }
}

/// Returns which part of the link a flow uses in 2000 round trips, 0 to 1. A window is acknowledged at once, or loses a segment.
fn utilisation(mut algorithm: impl CongestionControl) -> f64 {
    let mut w = Window::new(MSS, 10 * MSS);
    let (mut now, mut una, mut used) = (Instant::ZERO, Seq(0), 0.0);
    for _ in 0..2000 {
        let flight = w.cwnd;
        let (snd_una, snd_nxt) = (una, una + flight);
        used += f64::from(flight.min(PIPE)) / f64::from(PIPE);
        now += RTT;
        if flight > PIPE + BUFFER {
            let event = Congestion { now, flight, cwnd_limited: true, snd_una, snd_nxt };
            algorithm.on_loss(&event, &mut w);
            w.leave_recovery();
        } else {
            let ack = Ack {
                now,
                bytes_acked: flight,
                rtt: Some(RTT),
                min_rtt: Some(RTT),
                flight,
                snd_una: snd_nxt,
                snd_nxt,
                ecn_bytes: 0,
                ece: false,
                cwnd_limited: true,
            };
            algorithm.on_ack(&ack, &mut w);
        }
        una = snd_nxt;
    }
    used / 2000.0
}

fn main() {
    println!("reno      {:.2} of the link", utilisation(Reno::start(false)));
    println!("scalable  {:.2} of the link", utilisation(Scalable::start(false)));
}
