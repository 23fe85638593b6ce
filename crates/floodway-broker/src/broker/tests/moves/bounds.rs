//! What front-ends, hosts and operators can do to moves, and at which point.

use std::net::TcpListener;

use super::*;

/// Removes all ports of a host.
fn remove_ports(host: &Host) {
    let changes = Arc::clone(&host.scene.changes);
    let removed = thread::spawn(move || changes.make(layout("none", &[]), Vec::new()));
    let number = loop {
        match recv(&host.plane).0 {
            ToDataPlane::Change { number, .. } => break number,
            ToDataPlane::Moves(_) | ToDataPlane::Programs(_) => {}
            other => panic!("{other:?}"),
        }
    };
    host.plane.say(&FromDataPlane::Changed { number, refusal: None });
    assert!(removed.join().unwrap().is_ok());
}

/// The VM runs at the destination, whatever has become of its source.
fn arrive(destination: &Host) {
    destination.imported(true);
    let report = destination.report(|report| report.arriving == 0);
    assert_eq!((report.arrived, report.failed), (1, 0));
}

#[test]
fn what_was_exported_goes_on_without_its_port() {
    let Pair { source, destination, front_end } = Pair::import(b"state");
    remove_ports(&source);
    // Its thread has had the time to say anything.
    thread::sleep(Duration::from_millis(200));
    arrive(&destination);
    drop(front_end);
}

#[test]
fn what_was_exported_goes_on_without_its_switch() {
    for state in [vec![1; 5], vec![2; ROOM as usize]] {
        let Pair { source, destination, front_end } = Pair::import(&state);
        drop((source.plane, source.scene));
        arrive(&destination);
        drop(front_end);
    }
}

#[test]
fn a_port_asks_for_one_vm_at_a_time_whatever_its_front_end_does() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Host::start(settings(Trust::Plain, &[silent.local_addr().unwrap()]));
    let began = Instant::now();
    source.leave();
    let _first = silent.accept().unwrap();
    source.stay();
    silent.set_nonblocking(true).unwrap();
    let announced = 200;
    for _ in 0..announced {
        source.leave();
        source.stay();
    }
    let mut stay_behind = 0;
    while stay_behind < announced - 10 {
        assert!(began.elapsed() < PATIENCE);
        stay_behind += usize::from(source.hear().0 == STAYS);
    }
    let mut asked = 0;
    while silent.accept().is_ok() {
        asked += 1;
    }
    assert!(asked <= 10, "{asked}");
    // And so is what operators hear of it, but for the count.
    source.plane.say(&FromDataPlane::Leaving { port: PORT, leaving: true });
    let report = source.report(|report| report.failed > 100);
    let most = 40 + 2 * began.elapsed().as_secs() as u32;
    assert!(report.last.unwrap().number <= most);
}

#[test]
fn a_vm_that_two_hosts_expect_goes_to_neither() {
    let authority = Authority::new();
    let trust = authority.trust("127.0.0.1");
    let hosts = [0, 1].map(|_| Host::start(settings(trust.clone(), &[])));
    let _front_ends = [hosts[0].connect(), hosts[1].connect()];
    let source = Host::start(settings(trust, &[hosts[0].address(), hosts[1].address()]));
    source.leave();
    let (mut stays, mut problem) = (false, None);
    while !stays || problem.is_none() {
        match recv(&source.plane).0 {
            STAYS => stays = true,
            ToDataPlane::Moves(Report { last: Some(last), .. }) => problem = last.problem,
            ToDataPlane::Moves(_) | ToDataPlane::Programs(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let problem = problem.unwrap();
    assert!(problem.starts_with("2 hosts say that they expect it: "), "{problem}");
    for host in &hosts {
        assert_eq!((host.hear().0, host.hear().0), (ARRIVES, ARRIVES_NOT));
    }
}

#[test]
fn a_data_plane_that_does_not_export_when_the_front_end_has_gone_is_not_waited_for() {
    let authority = Authority::new();
    let destination = Host::start(settings(authority.trust("127.0.0.1"), &[]));
    let source = Host::start(settings(authority.trust("s.example"), &[destination.address()]));
    let _arrives = destination.connect();
    let leaves = source.connect();
    source.leave();
    assert_eq!(destination.hear().0, ARRIVES);
    assert!(matches!(source.hear().0, ToDataPlane::Export { .. }));
    drop(leaves);
    assert_eq!(source.hear().0, STAYS);
    assert_eq!(destination.hear().0, ARRIVES_NOT);
}

#[test]
fn moves_that_their_data_plane_or_port_ends_are_counted() {
    let Pair { source, destination, front_end } = Pair::leave();
    assert!(matches!(source.hear().0, ToDataPlane::Export { .. }));
    drop(source.plane);
    let (plane, ..) = source.scene.next();
    let report = loop {
        match recv(&plane).0 {
            ToDataPlane::Moves(report) if report.failed > 0 => break report,
            _ => {}
        }
    };
    let problem = report.last.and_then(|last| last.problem);
    assert_eq!((report.failed, problem.as_deref()), (1, Some("its data plane ended")));
    drop((destination, front_end));
    let Pair { source, destination, front_end } = Pair::leave();
    assert!(matches!(source.hear().0, ToDataPlane::Export { .. }));
    remove_ports(&source);
    let report = source.report(|report| report.failed > 0);
    let problem = report.last.and_then(|last| last.problem);
    assert_eq!((report.failed, problem.as_deref()), (1, Some("its port has gone")));
    drop((destination, front_end));
}

#[test]
fn each_move_that_is_over_is_told() {
    let source = Host::start(settings(Trust::Plain, &[]));
    for _ in 0..10 {
        source.leave();
    }
    let mut numbers = Vec::new();
    while numbers.last() != Some(&10) {
        if let (ToDataPlane::Moves(Report { last: Some(last), .. }), _) = recv(&source.plane) {
            numbers.push(last.number);
        }
    }
    numbers.dedup();
    assert_eq!(numbers, (1..=10).collect::<Vec<_>>());
}

#[test]
fn a_data_plane_that_finds_a_vm_on_its_way_hears_what_becomes_of_it() {
    let Pair { mut source, destination, front_end } = Pair::import(b"state");
    drop(source.plane);
    (source.plane, ..) = source.scene.next();
    live(&source.plane);
    // The front-end's messages are replayed: writes are noted.
    source.leave();
    assert_eq!(source.hear().0, STAYS);
    arrive(&destination);
    assert_eq!(source.hear().0, RELEASED);
    drop(front_end);
}

#[test]
fn an_upgrade_waits_for_connections_that_are_between_hosts() {
    for leaves in [true, false] {
        let Pair { source, destination, front_end } = Pair::import(b"state");
        let upgraded = if leaves { &source } else { &destination };
        let next = prepare(upgraded);
        thread::sleep(Duration::from_millis(200));
        assert!(!is_to_hand_over(&upgraded.plane));
        arrive(&destination);
        if leaves {
            assert_eq!(source.hear().0, RELEASED);
        }
        assert_eq!(upgraded.hear().0, ToDataPlane::HandOver);
        upgraded.plane.say(&FromDataPlane::HandedOver { online: 0 });
        next.take_all();
        next.serve();
        let Host { plane, mut scene, .. } = if leaves { source } else { destination };
        scene.broker.take().unwrap().join().unwrap();
        drop((plane, front_end));
    }
}

/// Returns `true` if `HandOver` has been sent to `plane`.
fn is_to_hand_over(plane: &Plane) -> bool {
    loop {
        match plane.channel.try_recv().unwrap() {
            Received::Message(ToDataPlane::HandOver, _) => break true,
            Received::Message(..) => {}
            _ => break false,
        }
    }
}

/// Upgrades `host` as far as its data plane has to go for that while it moves frames; returns the next one.
fn prepare(host: &Host) -> Plane {
    host.scene.upgrade("next");
    let next = host.scene.planes.recv_timeout(PATIENCE).unwrap();
    next.stand_by();
    while !matches!(hear(&host.plane).0, ToDataPlane::PrepareHandOver { .. }) {}
    host.plane.say(&FromDataPlane::HandOverPrepared);
    next
}

#[test]
fn a_vm_that_has_left_during_an_upgrade_is_released_by_the_next_data_plane() {
    let Pair { source, destination, front_end } = Pair::import(b"state");
    let next = prepare(&source);
    // It does not wait for ever.
    while hear(&source.plane).0 != ToDataPlane::HandOver {}
    arrive(&destination);
    // The answer has come, and no message is due.
    thread::sleep(Duration::from_millis(200));
    source.plane.say(&FromDataPlane::HandedOver { online: 0 });
    next.take_all();
    assert_eq!(hear(&next).0, RELEASED);
    next.serve();
    let mut source = source;
    source.scene.broker.take().unwrap().join().unwrap();
    drop(front_end);
}
