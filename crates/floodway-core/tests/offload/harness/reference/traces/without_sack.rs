//! Traces of connections without SACK, where duplicate ACKs are all that tells of what has arrived.

use super::*;

#[test]
fn without_sack_a_loss_halves_the_window_too() {
    for (sent, fits) in [(0, true), (1, false)] {
        let mut trace = Trace::grown(Algorithm::NewReno, false, 20);
        trace.wait(RTT);
        for _ in 0..3 {
            trace.ack(0);
        }
        trace.repeat(&[trace.acked]).unwrap();
        // Three duplicates came before, and three come now.
        (0..3).for_each(|_| trace.ack(0));
        assert_eq!(trace.send(1 + sent).is_ok(), fits);
    }
}

/// Segments of 900 bytes, where the SYNs allow 1000: a duplicate ACK takes no more than that off what the next one delivers.
#[test]
fn duplicates_before_a_recovery_are_as_long_as_the_segments() {
    let place = |segment: i64| place(0) + 900 * segment;
    let send = |trace: &mut Trace, range: std::ops::Range<i64>| {
        range.for_each(|n| trace.reference.sent(trace.now, place(n), place(n + 1)));
        trace.reference.settle(trace.now)
    };
    let ack = |trace: &mut Trace, segment: i64, pure| {
        let ack = Ack { ack: place(segment), pure, ..Ack::default() };
        trace.reference.ack(trace.now, &ack);
    };
    for (more, fits) in [(0, true), (1, false)] {
        let mut trace = Trace::with(Algorithm::NewReno, false);
        for (acked, sent) in [(0, 10), (10, 28), (28, 66)] {
            ack(&mut trace, acked, false);
            send(&mut trace, acked..sent).unwrap();
            trace.wait(RTT);
        }
        (0..3).for_each(|_| ack(&mut trace, 28, true));
        send(&mut trace, 28..29).unwrap();
        trace.wait(RTT);
        // Another loss behind five that arrived, two of which were counted before: 3700 bytes were delivered, and half of them may leave.
        ack(&mut trace, 34, false);
        assert_eq!(send(&mut trace, 34..35 + more).is_ok(), fits);
    }
}

/// Three duplicates, of which the first moves the window: it need not have been counted, and what it stands for is delivered by the next ACK.
#[test]
fn an_ack_that_moves_the_window_need_not_be_a_duplicate() {
    for (moves_window, fits) in [(true, true), (false, false)] {
        let mut trace = Trace::grown(Algorithm::NewReno, false, 20);
        let first = trace.acked;
        trace.wait(RTT);
        for n in 0..3 {
            trace.take_as(
                &Ack { pure: true, moves_window: moves_window && n == 0, ..Ack::default() },
                &[],
            );
        }
        trace.repeat(&[first]).unwrap();
        trace.ack(5);
        assert_eq!(trace.repeat(&[first + 5]).is_ok(), fits);
    }
}

/// The segment that is missing has 400 bytes, so that all the others have arrived with the ninth duplicate.
#[test]
fn duplicates_stand_for_all_but_the_missing_segment() {
    for (last, fits) in [(600, true), (601, false)] {
        let mut trace = Trace::with(Algorithm::NewReno, false);
        let mut next = place(0);
        let mut send = |trace: &mut Trace, lens: &[i64]| trace.send_lens(&mut next, lens);
        send(&mut trace, &[400]).unwrap();
        send(&mut trace, &[MSS; 9]).unwrap();
        trace.wait(RTT);
        (0..9).for_each(|_| trace.ack(0));
        send(&mut trace, &[MSS; 9]).unwrap();
        assert_eq!(send(&mut trace, &[last]).is_ok(), fits);
    }
}

/// The segment that is missing was sent with 900 bytes, and those after it have 500: the sender may have cut it, and knows of 500 bytes then that have
/// not arrived.
#[test]
fn a_segment_that_was_cut_is_missing_in_part() {
    for (last, fits) in [(500, true), (501, false)] {
        let mut trace = Trace::with(Algorithm::NewReno, false);
        let mut next = place(0);
        let mut send = |trace: &mut Trace, lens: &[i64]| trace.send_lens(&mut next, lens);
        send(&mut trace, &[900]).unwrap();
        trace.wait(MS(1));
        send(&mut trace, &[500; 18]).unwrap();
        trace.wait(RTT);
        (0..18).for_each(|_| trace.ack(0));
        send(&mut trace, &[500; 18]).unwrap();
        assert_eq!(send(&mut trace, &[last]).is_ok(), fits);
    }
}
