use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);
const LOOPBACK: &str = "127.0.0.1:0";

fn plan(address: SocketAddr) -> Plan {
    Plan {
        address,
        connections: 40,
        request_bytes: 64,
        response_bytes: 200_000,
        interval: Duration::from_millis(1),
        seed: 7,
        patience: PATIENCE,
    }
}

/// Runs a client until `enough` requests are answered and `act` has returned.
fn run(plan: Plan, enough: u64, act: impl FnOnce()) -> io::Result<Outcome> {
    let client = Client::new(plan);
    thread::scope(|scope| {
        let running = scope.spawn(|| client.run());
        let begun = Instant::now();
        while client.answered() < enough && !running.is_finished() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        act();
        client.stop();
        running.join().unwrap()
    })
}

#[test]
fn connections_without_faults_are_equal_at_both_ends() {
    let server = Server::listen(LOOPBACK.parse().unwrap()).unwrap();
    let outcome = run(plan(server.address()), 200, || ()).unwrap();
    assert!(outcome.answered >= 200 && outcome.longest_ns > 0, "{outcome:?}");
    let (answered, longest_ns) = (outcome.answered, outcome.longest_ns);
    assert_eq!(outcome, Outcome { connections: 40, answered, longest_ns, ..Outcome::default() });
}

#[test]
fn a_server_that_goes_loses_all_connections() {
    let server = Server::listen(LOOPBACK.parse().unwrap()).unwrap();
    let outcome = run(plan(server.address()), 80, || drop(server)).unwrap();
    assert_eq!((outcome.connections, outcome.lost), (40, 40), "{outcome:?}");
    assert!(outcome.first_failure.is_some());
}

/// Passes a connection on to `to`, both ways, and inverts a byte of what goes there.
fn relay(to: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(to).unwrap();
        let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let back = thread::spawn(move || io::copy(&mut back_from, &mut back_to).unwrap());
        // Behind the header.
        let mut first = [0; Header::BYTES + 1];
        near.read_exact(&mut first).unwrap();
        first[Header::BYTES] ^= 0xff;
        far.write_all(&first).unwrap();
        io::copy(&mut near, &mut far).unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        back.join().unwrap();
    });
    (address, thread)
}

#[test]
fn a_byte_that_is_changed_on_the_way_shows_in_one_digest() {
    let server = Server::listen(LOOPBACK.parse().unwrap()).unwrap();
    let (address, thread) = relay(server.address());
    let one = Plan { connections: 1, interval: Duration::ZERO, ..plan(address) };
    let outcome = run(one, 3, || ()).unwrap();
    thread.join().unwrap();
    assert_eq!((outcome.lost, outcome.failed, outcome.differing), (0, 0, 1), "{outcome:?}");
}

#[test]
fn senseless_plans_and_headers_are_refused() {
    let server = Server::listen(LOOPBACK.parse().unwrap()).unwrap();
    for bytes in [0, 12] {
        let plan = Plan { request_bytes: bytes, ..plan(server.address()) };
        let error = Client::new(plan).run().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    let header = Header { request_bytes: 8, response_bytes: 16, seed: 3 };
    assert_eq!(Header::decode(&header.encode()), Some(header));
    assert_eq!(Header::decode(&header.encode()[1..]), None);
    assert_eq!(Header::decode(&Header { response_bytes: 9, ..header }.encode()), None);
}
