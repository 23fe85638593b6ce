//! Hosts that are not who they should be, or do not do what they should.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use super::*;

#[test]
fn hosts_that_are_not_who_they_should_be_hear_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    let destination = Host::start(settings(authority.trust("127.0.0.1"), &[]));
    let _front_end = destination.connect();
    let hosts = [destination.address()];
    // The source's certificate is of another authority, and so is what it believes in; it has none; the destination's is for another name.
    let stranger = Host::start(settings(other.trust("127.0.0.1"), &hosts));
    let found = problem(&stranger);
    assert!(found.contains("UnknownIssuer"), "{found}");
    let plain = Host::start(settings(Trust::Plain, &hosts));
    let found = problem(&plain);
    assert!(found.contains("it is not a Floodway") || found.contains("it hung up"), "{found}");
    let named = Host::start(settings(authority.trust("elsewhere.example"), &[]));
    let source = Host::start(settings(authority.trust("127.0.0.1"), &[named.address()]));
    let found = problem(&source);
    assert!(found.contains("not valid for name \"127.0.0.1\""), "{found}");
    // One that believes in this authority, and has no certificate of it.
    let Trust::Certificates(mut files) = other.trust("127.0.0.1") else { panic!("plain") };
    files.authorities = authority.dir.path().join("ca.pem");
    let half = Host::start(settings(Trust::Certificates(files), &hosts));
    let found = problem(&half);
    assert!(found.contains("fatal alert") || found.contains("it hung up"), "{found}");
    // No order of any of them has come through to the data plane before this one.
    let source = Host::start(settings(authority.trust("source.example"), &hosts));
    source.leave();
    assert_eq!(destination.hear().0, ARRIVES);
    source.stay();
    assert_eq!(destination.hear().0, ARRIVES_NOT);
}

#[test]
fn a_host_whose_messages_are_none_takes_its_own_moves_with_it() {
    let authority = Authority::new();
    let trust = authority.trust("127.0.0.1");
    let destination = Host::start(settings(trust.clone(), &[]));
    let _front_end = destination.connect();
    let connect = || Peer::connect(&trust, destination.address());
    // Before anything is expected.
    for bytes in [&[0xff; 4][..], &[0, 0, 0, 1, 9], &[0, 0, 2, 1], &[0, 0]] {
        let mut link = connect();
        link.write(bytes);
        assert!(link.is_closed_after(bytes.len() < 3));
    }
    let wrong: [&dyn Fn(&mut crate::migration::testing::PeerLink); 5] = [
        &|link| link.write(&[0xff; 4]),
        &|link| link.ask(&vm(), FORMAT),
        &|link| link.send_state(ROOM + 1, &[]),
        &|link| link.send_state(9, &[1; 8]),
        &|link| link.send_state(u64::MAX, &[1; 8]),
    ];
    for say in wrong {
        let mut link = connect();
        link.ask(&vm(), FORMAT);
        assert_eq!(destination.hear().0, ARRIVES);
        say(&mut link);
        drop(link);
        assert_eq!(destination.hear().0, ARRIVES_NOT);
    }
    // And then a good one.
    let source = Host::start(settings(trust.clone(), &[destination.address()]));
    source.leave();
    assert_eq!(destination.hear().0, ARRIVES);
    // A second one for the same port is refused, and does no harm to the first.
    let mut link = connect();
    link.ask(&vm(), FORMAT);
    assert!(link.is_refused());
    source.export(b"state");
    assert!(matches!(destination.hear().0, ToDataPlane::Import { .. }));
}

#[test]
fn one_host_has_no_more_connections_than_it_may() {
    let authority = Authority::new();
    let trust = authority.trust("127.0.0.1");
    let destination = Host::start(settings(trust.clone(), &[]));
    let mut links: Vec<_> = (0..32).map(|_| Peer::connect(&trust, destination.address())).collect();
    // Its greeting has come, so each counts by now or is about to.
    let mut next = Peer::connect(&trust, destination.address());
    assert!(next.is_closed_after(false));
    // Another host is heard.
    let mut other = Peer::connect(&authority.trust("127.0.0.2"), destination.address());
    other.ask(&vm(), FORMAT);
    assert!(other.is_refused(), "the port has no front-end");
    // And so is the first, when it has let go.
    links.clear();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut link = Peer::connect(&trust, destination.address());
        link.ask(&vm(), FORMAT);
        if link.is_refused() {
            break;
        }
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn who_shows_nothing_is_hung_up_on() {
    let authority = Authority::new();
    let destination = Host::start(settings(authority.trust("127.0.0.1"), &[]));
    let mut mute: Vec<_> =
        (0..20).map(|_| TcpStream::connect(destination.address()).unwrap()).collect();
    for stream in &mut mute {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // All of them are closed in the end, without a message.
        assert!(matches!(stream.read(&mut [0; 100]), Ok(0) | Err(_)));
    }
}

#[test]
fn files_that_cannot_be_used_are_named_with_their_fix() {
    let authority = Authority::new();
    let Trust::Certificates(files) = authority.trust("127.0.0.1") else { panic!("plain") };
    let Trust::Certificates(other) = authority.trust("other") else { panic!("plain") };
    let garbage = authority.dir.path().join("garbage");
    fs::write(&garbage, "no PEM").unwrap();
    let start = |files: Files| {
        let error = Moves::start(settings(Trust::Certificates(files), &[])).err();
        error.expect("it cannot be used").to_string()
    };
    let missing = Path::new("/nowhere/x.pem").to_owned();
    let of = |field: &str, path: &Path| {
        let mut wrong = files.clone();
        match field {
            "certificate" => wrong.certificate = path.to_owned(),
            "key" => wrong.key = path.to_owned(),
            _ => wrong.authorities = path.to_owned(),
        }
        let found = start(wrong);
        let named = format!("migration.{field} = \"{}\": ", path.display());
        assert!(found.starts_with(&named) && found.contains("; name a PEM file"), "{found}");
    };
    for field in ["certificate", "key", "authorities"] {
        of(field, &missing);
        of(field, &garbage);
    }
    let mixed = Files { key: other.key, ..files.clone() };
    let found = start(mixed);
    assert!(found.contains("is not the key of") && found.ends_with("; make a new pair"), "{found}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let held = TcpListener::bind(taken).unwrap();
    let busy = MoveSettings { listen: Some(taken), ..settings(Trust::Plain, &[]) };
    let found = Moves::start(busy).err().unwrap().to_string();
    assert!(found.starts_with(&format!("migration.listen = \"{taken}\": ")), "{found}");
    drop(held);
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let (authority, next) = (Authority::new(), Authority::new());
    let Trust::Certificates(files) = authority.trust("127.0.0.1") else { panic!("plain") };
    let destination = Host::start(settings(Trust::Certificates(files.clone()), &[]));
    let source = Host::start(settings(next.trust("127.0.0.1"), &[destination.address()]));
    let _front_end = destination.connect();
    let found = problem(&source);
    assert!(found.contains("UnknownIssuer"), "{found}");
    let Trust::Certificates(renewed) = next.trust("127.0.0.1") else { panic!("plain") };
    // By a tool that keeps times.
    let (from, to) = (renewed, files);
    let pairs = [(from.certificate, to.certificate), (from.key, to.key)];
    for (from, to) in pairs.into_iter().chain([(from.authorities, to.authorities)]) {
        let modified = fs::metadata(&to).unwrap().modified().unwrap();
        fs::copy(from, &to).unwrap();
        fs::File::options().append(true).open(to).unwrap().set_modified(modified).unwrap();
    }
    source.leave();
    loop {
        match source.hear().0 {
            STAYS => source.leave(),
            message => break assert!(matches!(message, ToDataPlane::Export { .. })),
        }
    }
}

#[test]
fn an_address_that_is_not_there_yet_is_waited_for() {
    for address in ["192.0.2.1:0", "[2001:db8::1]:0"] {
        let settings =
            MoveSettings { listen: Some(address.parse().unwrap()), ..settings(Trust::Plain, &[]) };
        Moves::start(settings).unwrap();
    }
}

#[test]
fn a_switch_that_goes_on_without_moves_says_why() {
    let Trust::Certificates(files) = Authority::new().trust("127.0.0.1") else { panic!("plain") };
    // The directory has gone by now.
    let error = Moves::start(settings(Trust::Certificates(files), &[])).err().unwrap();
    let scene = Scene::with(layout("old", &[1]), Moves::failed(&error));
    let plane = scene.planes.recv_timeout(PATIENCE).unwrap();
    let problem = loop {
        if let ToDataPlane::Moves(Report { last: Some(last), .. }) = recv(&plane).0 {
            break last.problem.unwrap();
        }
    };
    assert!(problem.starts_with("migration.certificate = "), "{problem}");
    plane.serve();
    plane.say(&FromDataPlane::Leaving { port: PORT, leaving: true });
    loop {
        match recv(&plane).0 {
            STAYS => break,
            ToDataPlane::Moves(report) => assert!(report.last.unwrap().problem.is_some()),
            _ => {}
        }
    }
}
