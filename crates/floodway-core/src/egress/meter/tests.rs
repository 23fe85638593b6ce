//! What the meter promises, and what a VM gains that tries to cheat it.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

/// Destination `n`, by some connection.
fn flow(n: u32, port: u16, protocol: u8) -> FiveTuple {
    let to = Ipv4Addr::from_bits(0x0a01_0000 + n);
    FiveTuple::v4(Ipv4Addr::new(10, 0, 0, 1), to, protocol).with_ports(port, 80)
}

fn meter() -> Meter {
    Meter::new(Config::default(), 7)
}

fn only(meter: &Meter, now: Instant) -> PairSummary {
    let (mut pairs, next) = meter.pairs(0, 100, now);
    let pair = pairs.next().expect("a pair");
    assert!(pairs.next().is_none() && next.is_none());
    pair
}

#[test]
fn a_burst_is_high_and_what_follows_is_low() {
    let mut meter = meter();
    let classes: Vec<_> =
        (0..30).map(|_| meter.classify(&flow(1, 1, 6), 1500, Instant::ZERO)).collect();
    assert!(classes[..20].iter().all(|&class| class == Class::High), "30 KB");
    assert!(classes[20..].iter().all(|&class| class == Class::Low));
    let counters = Counters { high: 20, low: 10, demoted: 1, ..Counters::default() };
    assert_eq!(meter.counters(), counters);
}

#[test]
fn a_gso_packet_above_the_burst_is_low_from_its_first_byte() {
    let mut meter = meter();
    assert_eq!(meter.classify(&flow(1, 1, 6), 65_000, Instant::ZERO), Class::Low);
    assert_eq!(meter.classify(&flow(1, 1, 6), 60, Instant::ZERO), Class::Low);
}

/// Low until a whole period of 100 ms was within 10 Mbit/s, that is 125 000 bytes.
#[test]
fn a_pair_that_slows_down_is_high_again_at_the_next_check() {
    let mut meter = meter();
    let flow = flow(1, 1, 6);
    let mut send = |ms, bytes| meter.classify(&flow, bytes, Instant::from_millis(ms));
    assert_eq!(send(0, 60_000), Class::Low, "low since time zero");
    assert_eq!(send(50, 66_000), Class::Low);
    assert_eq!(send(99, 100), Class::Low);
    assert_eq!(send(100, 125_000), Class::Low, "126 100 bytes in the first period");
    assert_eq!(send(199, 60), Class::Low);
    assert_eq!(send(200, 60), Class::Low, "125 060 in the second");
    assert_eq!(send(299, 60), Class::Low);
    assert_eq!(send(300, 60), Class::High, "120 in the third");
    // A pause longer than a period is a period without bytes.
    assert_eq!(send(301, 60_000), Class::Low);
    assert_eq!(send(302, 600_000), Class::Low);
    assert_eq!(send(501, 1500), Class::High);
}

#[test]
fn a_steady_flow_above_the_rate_stays_low_and_one_below_stays_high() {
    for (every_us, expected) in [(1000, Class::Low), (1300, Class::High)] {
        // 1500 bytes a millisecond are 12 Mbit/s; every 1.3 ms 9.2 Mbit/s.
        let mut meter = meter();
        let classes: Vec<_> = (0..5000)
            .map(|i| meter.classify(&flow(1, 1, 6), 1500, Instant::from_micros(i * every_us)))
            .collect();
        assert!(classes[1000..].iter().all(|&class| class == expected), "{every_us}");
        let end = Instant::from_micros(5000 * every_us);
        let pair = only(&meter, end);
        assert_eq!(pair.class, expected);
        let rate = 1500 * 1_000_000 / every_us;
        assert!(pair.rate.abs_diff(rate) < rate / 50, "{} for {rate}", pair.rate);
    }
}

#[test]
fn idle_pairs_are_forgotten() {
    let mut meter = meter();
    for n in 0..100 {
        meter.classify(&flow(n, 1, 6), 60_000, Instant::ZERO);
    }
    meter.classify(&flow(7, 1, 6), 60, Instant::from_millis(9000));
    meter.forget(1000, Instant::from_millis(9999));
    assert_eq!(meter.len(), 100);
    meter.forget(1000, Instant::from_millis(11_100));
    let pair = only(&meter, Instant::from_millis(11_100));
    assert_eq!(pair.destination, Some(Ipv4Addr::from_bits(0x0a01_0007).into()));
    assert_eq!((pair.idle, pair.tokens), (Duration::from_millis(2100), 30_000));
}

#[test]
fn a_full_table_means_low() {
    let mut meter = Meter::new(Config { max_pairs: 4, ..Config::default() }, 7);
    for n in 0..4 {
        assert_eq!(meter.classify(&flow(n, 1, 6), 60, Instant::ZERO), Class::High);
    }
    for n in 4..10_000 {
        assert_eq!(meter.classify(&flow(n, 1, 6), 60, Instant::ZERO), Class::Low);
    }
    assert_eq!((meter.len(), meter.counters().refused), (4, 9996));
    assert_eq!(meter.classify(&flow(2, 1, 6), 60, Instant::ZERO), Class::High, "known");
    let later = Instant::from_millis(20_000);
    assert_eq!(meter.classify(&flow(99, 1, 6), 60, later), Class::High, "there is room again");
}

/// Section 6 of the paper: a large flow split over many connections is one pair.
#[test]
fn many_connections_gain_nothing() {
    let high_bytes = |connections: u16| {
        let mut meter = meter();
        let mut high = 0;
        for i in 0..20_000 {
            // 120 Mbit/s for 2 s, over so many connections of two protocols.
            let protocol = if i % 3 == 0 { 17 } else { 6 };
            let flow = flow(1, (i % u64::from(connections)) as u16, protocol);
            let class = meter.classify(&flow, 1500, Instant::from_micros(100 * i));
            high += if class == Class::High { 1500 } else { 0 };
        }
        high
    };
    let one = high_bytes(1);
    assert!(one <= 30_000 + 20 * 1500, "a burst, and what the bucket gained meanwhile: {one}");
    assert_eq!(high_bytes(1000), one);
}

/// Two VMs behind one address of two families, and what is not IP, are pairs of their own.
#[test]
fn pairs_are_destinations() {
    let mut meter = meter();
    let v4 = flow(1, 1, 6);
    let v6 = FiveTuple { is_ipv6: true, ..v4 };
    for flow in [v4, v6, FiveTuple::NONE, flow(2, 1, 6)] {
        assert_eq!(meter.classify(&flow, 30_000, Instant::ZERO), Class::High);
        assert_eq!(meter.classify(&flow, 60, Instant::ZERO), Class::Low);
    }
    assert_eq!(meter.len(), 4);
    let destinations: Vec<_> =
        meter.pairs(0, 100, Instant::ZERO).0.map(|p| p.destination).collect();
    assert_eq!(destinations[2], None);
    assert!(meter.pairs(0, 2, Instant::ZERO).1 == Some(2));
}

#[test]
fn extremes_do_not_overflow() {
    let config =
        Config { rate: u64::MAX, burst: u64::MAX, recheck: Duration::MAX, ..Config::default() };
    let zero = Config {
        rate: 0,
        burst: 0,
        recheck: Duration::ZERO,
        idle: Duration::ZERO,
        max_pairs: 0,
        high_pairs: 0,
    };
    for config in [config, zero] {
        let mut meter = Meter::new(config, 0);
        for ns in [0, 1, u64::MAX, 5] {
            meter.classify(&flow(1, 1, 6), u32::MAX, Instant::from_nanos(ns));
            meter.pairs(0, u32::MAX, Instant::NEVER).0.for_each(|pair| {
                let _ = pair;
            });
        }
    }
}

proptest! {
    /// Whatever the pattern: no interval has more high bytes than the burst and the rate.
    #[test]
    fn high_bytes_conform(
        rate in 1_000_u64..10_000_000,
        steps in proptest::collection::vec((60_u32..9000, 0_u64..40_000, 0_u16..5), 1..300),
    ) {
        let config = Config { rate, ..Config::default() };
        let mut meter = Meter::new(config, 1);
        let (mut us, mut high) = (0, Vec::new());
        for (len, wait, port) in steps {
            us += wait;
            if meter.classify(&flow(1, port, 6), len, Instant::from_micros(us)) == Class::High {
                high.push((us, len));
            }
        }
        for first in 0..high.len() {
            let mut sum = 0_u64;
            for &(at, len) in &high[first..] {
                sum += u64::from(len);
                let allowed = config.burst + (rate * (at - high[first].0)).div_ceil(1_000_000);
                prop_assert!(sum <= allowed);
            }
        }
    }
}

/// A VM that sends a little to each of 1000 destinations has as much in the high class as 25 small pairs.
#[test]
fn many_destinations_bring_a_vm_no_more_than_its_share() {
    let config = Config::default();
    let mut meter = Meter::new(config, 7);
    let (mut high, mut now) = (0, Instant::ZERO);
    let pause = Duration::from_micros(10);
    for round in 0..20 {
        for n in 0..1000 {
            let class = meter.classify(&flow(n, 1, 6), 1500, now);
            high += u64::from(class == Class::High) * 1500;
            now += pause;
            let limit = u64::from(config.high_pairs)
                * (config.burst + config.rate * now.as_nanos() / 1_000_000_000);
            assert!(high <= limit + 1500, "{high} of {limit} in round {round}");
        }
    }
    assert!(meter.counters().capped > 0);
    assert_eq!(meter.classify(&flow(5000, 1, 6), 100, now + Duration::from_secs(1)), Class::High);
}

proptest! {
    /// What is foretold of a packet is what becomes of it, also when the table is full and when pairs are idle; asking changes nothing.
    #[test]
    fn a_question_is_answered_as_the_packet_is_classified(
        packets in proptest::collection::vec((0_u32..6, 1_u32..40_000, 0_u64..400), 1..200),
    ) {
        let config = Config { max_pairs: 3, high_pairs: 2, idle: Duration::from_secs(1), ..Config::default() };
        let (mut meter, mut ms) = (Meter::new(config, 7), 0);
        for (n, len, pause) in packets {
            // Now and then a pause after which pairs are forgotten.
            ms += if pause > 390 { 1500 } else { pause / 8 };
            let now = Instant::from_millis(ms);
            let expected = meter.would_classify(&flow(n, 1, 6), len, now);
            let (counters, known) = (meter.counters(), meter.len());
            prop_assert_eq!(meter.would_classify(&flow(n, 1, 6), len, now), expected);
            prop_assert_eq!((meter.counters(), meter.len()), (counters, known));
            prop_assert_eq!(meter.classify(&flow(n, 1, 6), len, now), expected);
        }
    }
}
