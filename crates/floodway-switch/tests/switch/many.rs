//! Many ports, few of them connected.

use std::time::{Duration, Instant};

use floodway_switch::config::PortConfig;
use floodway_switch::control::{ControlClient, ControlListener, ControlServer};
use floodway_switch::testing::frames::{mac, numbered};
use floodway_switch::testing::{GuestConfig, wait_until};
use rustix::process::{Resource, getrlimit};

use crate::net::Net;

const CONNECTED: u8 = 100;

/// 500, or as many as the process may have descriptors for, which are 48 for each.
fn how_many() -> u16 {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let most = u16::try_from((limit.saturating_sub(200)) / 48).unwrap_or(u16::MAX);
    assert!(most >= 300, "a hard limit of {limit} descriptors is too low for this test");
    most.min(500)
}

fn ports(count: u16) -> Vec<PortConfig> {
    let port = |n: u16| {
        let mac = u8::try_from(n).ok().filter(|n| *n <= CONNECTED).map(mac);
        PortConfig { mac, storm_pps: 0, ..PortConfig::new(format!("vm{n}"), "") }
    };
    (1..=count).map(port).collect()
}

/// How long something takes, and what comes of it.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begin = Instant::now();
    let outcome = work();
    (begin.elapsed(), outcome)
}

#[test]
fn hundreds_of_ports_are_changed_and_shown_and_those_that_stay_are_not_touched() {
    let count = how_many();
    let net = Net::start(ports(count));
    let mut guests: Vec<_> = (1..=CONNECTED)
        .map(|n| net.boot(n, GuestConfig { ring_size: 32, ..GuestConfig::default() }))
        .collect();
    wait_until("all to run", || {
        net.status().ports.iter().filter(|port| port.queue_pairs_enabled > 0).count()
            == usize::from(CONNECTED)
    });
    let send = |guests: &mut [crate::net::Vm], number| {
        for at in (0..guests.len()).step_by(2) {
            let (from, to) = (guests[at].n, guests[at + 1].n);
            let frame = numbered(from, to, number, 300);
            guests[at].send(&frame);
            guests[at + 1].expect(&frame);
        }
    };
    send(&mut guests, 1);
    let listener = ControlListener::bind(&net.config.control).unwrap();
    let operator = net.switch.as_ref().expect("the switch runs").operator();
    let _server = ControlServer::start(listener, operator).unwrap();
    // A status of so many ports is held against its schema here, on a core that may be busy.
    let client =
        ControlClient::new(&net.config.control).unwrap().with_timeout(Duration::from_secs(60));

    // The last ten go, ten others come, and a hundred others change what takes effect at once.
    let mut wanted = net.config.clone();
    for port in &mut wanted.ports[usize::from(count) - 10..] {
        port.name += "b";
        port.socket = port.socket.with_extension("b");
    }
    for port in &mut wanted.ports[200..300] {
        port.storm_pps = 7;
    }
    let text = toml::to_string(&wanted).unwrap();
    let (apply, plan) = timed(|| client.apply(&text, false).unwrap());
    assert_eq!(plan.changes.len(), 120);
    let (status, shown) = timed(|| client.status().unwrap());
    // That one was held against its schema, too, which takes longer than all else.
    let (collected, _) = timed(|| net.status());
    println!(
        "{count} ports, {CONNECTED} connected: apply {apply:?}, status {collected:?}, checked {status:?}"
    );

    assert_eq!((shown.ports.len(), shown.removed.ports), (usize::from(count), 10));
    send(&mut guests, 2);
    let status = net.status();
    let frames: Vec<_> = status.ports[..CONNECTED.into()]
        .iter()
        .map(|port| port.queues[0].rx.traffic.packets + port.queues[0].tx.traffic.packets)
        .collect();
    assert_eq!(frames, vec![2; CONNECTED.into()], "one way for each, before and after");
    assert!(guests.iter_mut().all(|vm| !vm.frontend().is_closed()));
    // What nobody has sent for has cost no worker anything.
    assert!(status.ports[CONNECTED.into()..].iter().all(|port| port.work.seconds == 0.0));
}
