//! Scenes of a switch for the model and the view.

mod cost;
mod model;
mod view;

use std::collections::HashMap;
use std::time::Duration;

use floodway_switch::api::activity::{
    Activity, OffloadActivity, PortActivity, TrafficActivity, UplinkActivity, WorkerActivity,
};
use floodway_switch::api::status::{Drops, PortState, SwitchStatus, WorkStatus};

use super::sample::Sample;
use super::wait::ThreadTimes;

/// A switch that has been up for that long, with these ports.
fn sample(uptime_s: f64, ports: Vec<PortActivity>) -> Sample {
    let switch = SwitchStatus {
        version: "0.1.0".to_owned(),
        pid: 4242,
        uptime_s,
        ..SwitchStatus::default()
    };
    let activity = Activity { switch, ports, ..Activity::default() };
    Sample { activity, clock: Duration::from_secs_f64(uptime_s), ..Sample::default() }
}

/// Frames and bytes, none dropped.
fn traffic(packets: u64, bytes: u64) -> TrafficActivity {
    TrafficActivity { packets, bytes, drops: Drops::new() }
}

/// A running port that has received and sent so many bytes, in frames of 1000.
fn port(name: &str, rx: u64, tx: u64) -> PortActivity {
    PortActivity {
        name: name.to_owned(),
        state: PortState::Running,
        rx: traffic(rx / 1000, rx),
        tx: traffic(tx / 1000, tx),
        ..PortActivity::default()
    }
}

/// A switch with two workers and an uplink whose ports do all that there is a column for, `n` seconds after its start.
fn busy(n: u64) -> Sample {
    busy_at(n, n as f64)
}

/// One that has done what [`busy`] has done in `n` seconds.
fn busy_at(n: u64, uptime_s: f64) -> Sample {
    let mut web = port("web-frontend-1", n * 40_000_000, n * 110_000_000);
    web.worker = 1;
    web.front_end_pid = Some(1234);
    web.work = WorkStatus { seconds: 0.0, share: 0.62 };
    web.offload = OffloadActivity {
        transmit: true,
        flows: 120,
        online: 96,
        stored_bytes: 3 << 20,
        retransmitted: 12 * n,
        absorbed_dup_acks: 40 * n,
        merged_acks: 800 * n,
        ..OffloadActivity::default()
    };
    let mut db = port("db1", n * 1_250_000, n * 125_000);
    db.rx.drops = Drops::from([("queue_full".to_owned(), 250 * n), ("storm".to_owned(), 3)]);
    db.tx.drops = Drops::from([("spoofed_mac".to_owned(), n)]);
    db.pending_frames = 500;
    db.work.share = 0.043;
    let mut cut_off = port("db10", 0, 0);
    (cut_off.state, cut_off.quarantined) = (PortState::Down, true);
    let mut down = port("spare", 0, 0);
    down.state = PortState::Down;
    let mut sample = sample(uptime_s, vec![db, cut_off, down, web]);
    sample.activity.uplinks = vec![UplinkActivity {
        name: "up0".to_owned(),
        rx: traffic(n * 1000, n * 1_000_000),
        tx: traffic(n * 2000, n * 2_000_000),
        work: WorkStatus { seconds: 0.0, share: 0.1 },
        ..UplinkActivity::default()
    }];
    let worker = |index| WorkerActivity {
        index,
        core: Some(index),
        polls: 1000 * n,
        busy_polls: 250 * n,
        asleep_s: 0.4 * uptime_s,
    };
    sample.activity.workers = (0..2).map(worker).collect();
    let ns = |share: f64| (share * uptime_s * 1e9) as u64;
    sample.threads = HashMap::from([(1234, ThreadTimes::one(ns(0.5), ns(0.25)))]);
    sample
}
