//! Rates from counters.

use floodway_switch::api::diagnosis::{Diagnosis, UplinkReport};

use super::*;
use crate::top::history::SECONDS;
use crate::top::model::Model;
use crate::top::recent;

/// A model that has taken these samples.
fn model(samples: impl IntoIterator<Item = Sample>) -> Model {
    let mut model = Model::default();
    samples.into_iter().for_each(|sample| model.take(sample));
    model
}

#[test]
fn a_rate_is_what_a_counter_grew_by_in_the_switchs_own_time() {
    let model = model([
        sample(100.0, vec![port("vm1", 5000, 0)]),
        sample(102.0, vec![port("vm1", 25_000, 4000)]),
    ]);
    let row = &model.rows()[0];
    assert_eq!((row.rx_bps, row.tx_bps), (Some(80_000.0), Some(16_000.0)));
    assert_eq!((row.rx_pps, row.tx_pps, row.bps()), (Some(10.0), Some(2.0), Some(96_000.0)));
    assert_eq!((row.drops_per_s, row.delay_s), (Some(0.0), Some(0.0)));
    assert_eq!((model.total().rx_bps, model.restarts()), (Some(80_000.0), 0));
}

#[test]
fn without_a_second_look_there_is_no_rate() {
    let once = model([sample(5.0, vec![port("vm1", 1, 1)])]);
    assert_eq!(once.rows()[0].bps(), None);
    assert_eq!(once.total().rx_bps, None);
    let no_time_passed =
        model([sample(5.0, vec![port("a", 1, 1)]), sample(5.0, vec![port("a", 9, 9)])]);
    assert_eq!(no_time_passed.rows()[0].bps(), None);
}

#[test]
fn another_switch_makes_no_rates_with_the_one_before() {
    let before = || sample(50.0, vec![port("vm1", 1000, 0)]);
    let younger = sample(2.0, vec![port("vm1", 9000, 0)]);
    let mut other_process = sample(51.0, vec![port("vm1", 9000, 0)]);
    other_process.activity.switch.pid = 1;
    for after in [younger, other_process] {
        let mut model = model([before(), after.clone()]);
        assert_eq!((model.rows()[0].rx_bps, model.restarts()), (None, 1));
        let history = model.history("vm1").unwrap();
        assert_eq!(history.bps.cells(SECONDS).iter().flatten().count(), 0);
        let mut next = after;
        next.activity.switch.uptime_s += 1.0;
        next.activity.ports[0].rx.bytes += 1000;
        model.take(next);
        assert_eq!((model.rows()[0].rx_bps, model.restarts()), (Some(8000.0), 1));
    }
}

/// It was removed and added again, or its counters wrapped: no rate, and above all none of exabits.
#[test]
fn a_port_whose_counters_went_back_begins_anew() {
    let mut dropping = port("vm1", 1000, 1000);
    dropping.tx.drops.insert("storm".to_owned(), 5);
    for after in [port("vm1", 999, 2000), port("vm1", 2000, 0), port("vm1", 3000, 3000)] {
        let model = model([sample(1.0, vec![dropping.clone()]), sample(2.0, vec![after])]);
        let row = &model.rows()[0];
        assert_eq!((row.bps(), row.drops_per_s, row.repairs_per_s), (None, None, None));
    }
}

#[test]
fn ports_come_and_go() {
    let mut model = model([
        sample(1.0, vec![port("a", 0, 0), port("b", 0, 0)]),
        sample(2.0, vec![port("c", 10, 0), port("a", 1000, 0)]),
    ]);
    let rates: Vec<_> = model.rows().iter().map(|row| (&*row.name, row.rx_bps)).collect();
    assert_eq!(rates, [("c", None), ("a", Some(8000.0))]);
    assert!(model.history("b").is_none(), "what is gone is not remembered");
    model.take(sample(3.0, vec![port("b", 5, 0)]));
    assert_eq!(model.rows()[0].rx_bps, None, "it is another port of the same name");
    assert!(model.history("a").is_none());
}

#[test]
fn drops_are_told_by_direction_and_reason_the_most_first() {
    let model = model([busy(10), busy(12)]);
    let db = &model.rows()[0];
    assert_eq!(db.drops_per_s, Some(251.0));
    let drops: Vec<_> = db.drops.iter().map(|d| (d.direction, &*d.reason, d.per_s)).collect();
    assert_eq!(drops, [("rx", "queue_full", 250.0), ("tx", "spoofed_mac", 1.0)]);
}

#[test]
fn what_the_offload_did_is_a_rate_too() {
    let model = model([busy(10), busy(11)]);
    let web = model.rows().iter().find(|row| row.name == "web-frontend-1").unwrap();
    assert_eq!((web.repairs_per_s, web.saved_per_s), (Some(12.0), Some(852.0)));
    assert_eq!(web.stored_bytes, 3 << 20);
    assert_eq!((web.vcpu_run, web.vcpu_wait), (Some(0.5), Some(0.25)));
    assert_eq!(model.rows()[0].vcpu_wait, None, "nobody knows its process");
}

/// Little's law.
#[test]
fn delay_is_what_waits_by_what_leaves() {
    let waiting = |rx, pending_frames| PortActivity { pending_frames, ..port("vm1", rx, 0) };
    let look = |at, rx, pending| sample(at, vec![waiting(rx, pending)]);
    let mut model = model([look(0.0, 0, 0), look(2.0, 100_000, 10)]);
    assert_eq!(model.rows()[0].delay_s, Some(0.2), "10 wait, 50 a second leave");
    let mut delay = |at, rx, pending| {
        model.take(look(at, rx, pending));
        model.rows()[0].delay_s
    };
    assert_eq!(delay(3.0, 100_000, 10), Some(1.0), "none has left since");
    assert_eq!(delay(7.0, 100_000, 12), Some(5.0));
    assert_eq!(delay(8.0, 101_000, 4), Some(4.0), "one has");
    assert_eq!(delay(9.0, 101_000, 0), Some(0.0), "nothing waits");
    assert_eq!(delay(10.0, 101_000, 3), Some(1.0));
}

#[test]
fn workers_are_awake_for_what_they_did_not_sleep_and_busy_in_some_rounds() {
    let model = model([busy(10), busy(20)]);
    let worker = model.workers()[1];
    assert_eq!((worker.index, worker.core), (1, Some(1)));
    assert!((worker.awake.unwrap() - 0.6).abs() < 1e-9);
    assert_eq!(worker.busy, Some(0.25));
    assert_eq!(model.uplinks()[0].tx_bps, Some(16e6));
}

/// What was dropped long ago does not hide what is dropped now.
#[test]
fn a_diagnosis_is_told_what_the_last_seconds_have_shown() {
    let at = |n: u64| {
        let mut sample = busy(n);
        sample.activity.ports[0].rx.drops.insert("storm".to_owned(), 1_000_000);
        let drops = [("uplink_error".to_owned(), 500 * n), ("storm".to_owned(), 9000 * n)];
        sample.activity.uplinks[0].tx.drops = Drops::from(drops);
        sample
    };
    let model = model([at(10), at(12)]);
    let uplink = UplinkReport { name: "up0".to_owned(), ..UplinkReport::default() };
    let diagnose = |port: &str| {
        let uplinks = vec![uplink.clone()];
        let mut diagnosis = Diagnosis { port: port.to_owned(), uplinks, ..Diagnosis::default() };
        recent::fill(&mut diagnosis, &model, 2 * Duration::from_secs(1));
        diagnosis
    };
    let db = diagnose("db1");
    let top = db.recent.unwrap().top_drop.unwrap();
    // 1250 frames a second came, 250 did not.
    assert_eq!((&*top.direction, &*top.reason, top.frames), ("rx", "queue_full", 500));
    assert!((top.share - 250.0 / 1500.0).abs() < 1e-9, "{top:?}");
    let at_uplink = db.uplinks[0].recent_drop.as_ref().unwrap();
    assert_eq!((&*at_uplink.reason, at_uplink.frames), ("uplink_error", 1000));
    let web = diagnose("web-frontend-1");
    let recent = web.recent.unwrap();
    assert_eq!((recent.top_drop, recent.vcpu_wait), (None, Some(0.25)));
    let found: Vec<_> = web.findings.iter().map(|finding| &*finding.problem).collect();
    assert!(found.iter().any(|problem| problem.contains("wait for a CPU 33 %")), "{found:?}");
    assert_eq!(diagnose("gone").recent, None);
}

#[test]
fn history_has_a_minute_of_each_port() {
    let model = model((0..100).map(busy));
    let bps = &model.history("db1").unwrap().bps;
    assert_eq!(bps.cells(SECONDS).iter().flatten().count(), SECONDS);
    assert_eq!(bps.peak(), Some(11e6));
    assert_eq!(model.history("spare").unwrap().drops.peak(), Some(0.0));
}

#[test]
fn ports_in_another_order_are_still_the_same_ones() {
    let ports = |bytes| (0..5000).map(|n| port(&format!("vm{n}"), bytes, 0)).collect::<Vec<_>>();
    let mut backwards = ports(1000);
    backwards.reverse();
    let model = model([sample(1.0, ports(0)), sample(2.0, backwards)]);
    assert!(model.rows().iter().all(|row| row.rx_bps == Some(8000.0)));
    assert_eq!(model.rows()[0].name, "vm4999", "in the order of the configuration");
}
