//! What an ACK costs, in steps: records and words of indexes that are looked at. No clock decides.

#[path = "../../../benches/hostile/mod.rs"]
mod hostile;

use self::hostile::{Attack, LEN, Victim};
use crate::offload::store::cost;

/// Steps of an ACK that changes nothing: a search for each block, and the heads of the lists.
const BASE: u64 = 100;
/// Steps for each record that changes its state or is freed.
const PER_CHANGE: u64 = 8;

#[test]
fn the_work_for_an_ack_is_in_proportion_to_what_it_changes() {
    for attack in Attack::ALL {
        for records in [10, 1_000, 8_190] {
            let mut victim = Victim::new(records);
            assert_eq!(victim.in_flight(), records * LEN);
            let mut all = 0;
            for n in 0..attack.acks(records) {
                let (steps, changes) = cost::of(|| victim.acknowledge(attack, n));
                assert!(
                    steps <= BASE + PER_CHANGE * changes,
                    "{attack:?}, {records} records, ACK {n}: {steps} steps for {changes} changes"
                );
                all += changes;
            }
            // A record is lost, sent again, SACKed and freed once.
            assert!(all <= 4 * u64::from(records), "{attack:?}, {records} records: {all} changes");
        }
    }
}

#[test]
fn a_peer_that_takes_back_what_it_sacked_has_to_sack_it_first() {
    for records in [1_000, 8_190] {
        let mut victim = Victim::new(records);
        let acks = Attack::Reneging.acks(records);
        let (steps, changes) =
            cost::of(|| (0..acks).for_each(|n| victim.acknowledge(Attack::Reneging, n)));
        let acks = u64::from(acks);
        assert!(steps <= acks * BASE + PER_CHANGE * changes, "{steps} steps, {changes} changes");
        // Each ACK SACKs three segments, which are lost, sent again and SACKed again.
        assert!(changes <= 4 * (3 * acks + u64::from(records)), "{changes} changes, {acks} ACKs");
    }
}

#[test]
fn tiny_segments_wait_until_acks_have_freed_some() {
    let mut victim = Victim::new(10_000);
    assert_eq!(victim.in_flight(), 8192 * LEN);
    for n in 0..1000 {
        victim.acknowledge(Attack::Plain, n);
        assert_eq!(victim.in_flight(), 8192 * LEN, "one is freed, and the next takes its place");
    }
    victim.acknowledge(Attack::Plain, 9_191);
    victim.acknowledge(Attack::Plain, 9_998);
    assert_eq!(victim.in_flight(), LEN, "all have left");
}
