//! Tail loss probes (RFC 8985 section 7).

use floodway_core::congestion::Algorithm;

use super::{MS, RTT, Trace, violates};

#[test]
fn a_probe_of_the_tail_needs_no_reduction() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.wait(MS(100));
    assert_eq!(trace.repeat(&[trace.sent - 1]), Ok(()));
    trace.wait(RTT);
    trace.ack(40);
    assert_eq!(trace.send(40), Ok(()), "the original had arrived");
}

#[test]
fn a_second_probe_without_progress_is_a_timeout() {
    let probes = |segments: i64| {
        let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
        trace.wait(RTT);
        trace.ack(39);
        for wait in [100, 500] {
            trace.wait(MS(wait));
            trace.repeat(&[trace.acked]).unwrap();
        }
        trace.wait(RTT);
        trace.ack(1);
        trace.send(segments)
    };
    assert_eq!(probes(2), Ok(()));
    violates(probes(40));
}

/// RFC 8985 section 7.3: also when a mark has made the window smaller than what is in flight.
#[test]
fn a_probe_is_sent_whatever_the_window_is() {
    let marked = || {
        let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
        trace.wait(RTT);
        trace.take(5, &[], true);
        trace.reference.settle(trace.now).unwrap();
        trace.wait(MS(100));
        trace
    };
    let mut trace = marked();
    assert_eq!(trace.repeat(&[trace.sent - 1]), Ok(()));
    let mut trace = marked();
    violates(trace.repeat(&[trace.sent - 2, trace.sent - 1]));
    let mut trace = marked();
    violates(trace.send(1));
}

#[test]
fn a_probe_after_a_recovery_is_none_of_its_repairs() {
    for repair in [true, false] {
        let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
        let first = trace.acked;
        trace.recover(20);
        trace.wait(MS(100));
        let probe = trace.sent - 1;
        trace.repeat(&[probe]).unwrap();
        let twice = if repair { first } else { probe };
        trace.take(0, &[(twice, twice + 1), (trace.acked, trace.sent)], false);
        assert_eq!(trace.send(40).is_ok(), repair);
    }
}

#[test]
fn two_segments_are_no_probe() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.wait(MS(100));
    violates(trace.repeat(&[trace.sent - 2, trace.sent - 1]));
}
