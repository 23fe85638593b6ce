//! Rate limits of ports, in both directions.

use floodway_core::l2::Rate;
use floodway_switch::api::edit;
use floodway_switch::config::{LimitConfig, PortConfig};
use floodway_switch::testing::frames::{numbered, partial, pattern, tcp};
use floodway_switch::testing::{GuestConfig, wait_until};

use crate::net::{Net, Vm, port};

/// One packet a second, after a burst of 1366.
const SLOW: Rate = Rate { bytes: None, burst: None, packets: Some(1) };
const BURST: u64 = 1366;
/// More than the burst, so many that no test takes as many seconds as there are left over.
const MANY: u32 = 3000;

fn limited(n: u8, limit: LimitConfig) -> PortConfig {
    PortConfig { limit, queue_bytes: 64 << 20, ..port(n) }
}

fn flood(from: &mut Vm, to: u8) {
    for number in 0..MANY {
        from.send(&numbered(from.n, to, number, 64));
    }
    from.wait_sent();
}

#[test]
fn what_a_guest_sends_beyond_its_rate_is_dropped_and_counted() {
    let limit = LimitConfig { tx: SLOW, ..LimitConfig::default() };
    let net = Net::start(vec![limited(1, limit), limited(2, LimitConfig::default()), port(3)]);
    let [mut a, mut b, _c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    flood(&mut a, 2);
    let dropped = || net.tx_drops(1, "rate_limit");
    wait_until("all frames", || net.port(1).tx().packets + dropped() >= u64::from(MANY));
    let passed = u64::from(MANY) - dropped();
    assert!(passed >= BURST && passed < u64::from(MANY) - 100, "{passed}");
    // Nobody else is slower, and what the guest receives is not limited.
    flood(&mut b, 3);
    wait_until("all frames", || net.port(2).tx().packets == u64::from(MANY));
    assert_eq!((net.port(2).tx().dropped(), net.port(1).rx().dropped()), (0, 0));
}

#[test]
fn what_a_guest_receives_beyond_its_rate_is_dropped_and_counted() {
    let limit = LimitConfig { rx: SLOW, ..LimitConfig::default() };
    let net = Net::start(vec![port(1), limited(2, limit), limited(3, LimitConfig::default())]);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    flood(&mut a, 2);
    wait_until("all frames", || {
        let port = net.port(2);
        port.rx().packets + port.pending().0 + port.rx().dropped() >= u64::from(MANY)
    });
    let dropped = net.rx_drops(2, "rate_limit");
    assert!((100..=u64::from(MANY) - BURST).contains(&dropped), "{dropped}");
    let other = numbered(1, 3, 0, 64);
    a.send(&other);
    c.expect(&other);
    let back = numbered(2, 3, 1, 64);
    b.send(&back);
    c.expect(&back);
}

#[test]
fn bytes_are_those_on_the_wire() {
    // One GSO packet of 60 000 bytes is 42 frames; the burst in bytes is 256 KiB.
    let tx = Rate { bytes: Some(125), burst: None, packets: None };
    let limit = LimitConfig { tx, ..LimitConfig::default() };
    let net = Net::start(vec![limited(1, limit), port(2)]);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let frame = tcp(1, 2, false).build_partial(&pattern(1, 60_000));
    for _ in 0..5 {
        a.send_with(&partial(&frame, 1448), &frame);
    }
    wait_until("a drop", || net.tx_drops(1, "rate_limit") == 1);
    for _ in 0..4 {
        assert_eq!(b.recv().1, frame);
    }
}

#[test]
fn limits_are_set_while_the_switch_runs() {
    let net =
        Net::start(vec![limited(1, LimitConfig::default()), limited(2, LimitConfig::default())]);
    let [mut a, _b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    flood(&mut a, 2);
    assert_eq!(net.port(1).tx().dropped(), 0);
    let operator = net.switch.as_ref().unwrap().operator();
    let set = |keys: serde_json::Value| {
        let keys = keys.as_object().unwrap().clone();
        let plan = operator
            .reconfigure(&|config| edit::patch(config, edit::Kind::Port, "vm1", &keys), false);
        plan.unwrap().to_string()
    };
    let plan = set(serde_json::json!({ "limit": { "tx_pps": 1 } }));
    assert_eq!(plan, "~ port vm1: limit.tx_pps = default -> 1");
    flood(&mut a, 2);
    wait_until("drops", || net.tx_drops(1, "rate_limit") > 100);
    set(serde_json::json!({ "limit": null }));
    let before = net.tx_drops(1, "rate_limit");
    flood(&mut a, 2);
    assert_eq!(net.tx_drops(1, "rate_limit"), before);
}
