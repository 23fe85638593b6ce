use std::io::Read;
use std::sync::mpsc::{Receiver, channel};

use floodway_process::message::{Change, Handled};
use floodway_process::store::{FromStore, Item, Key, ToStore};

use super::*;
use crate::store::Store;

/// Only a failed test waits this long.
const PATIENCE: Duration = Duration::from_secs(20);

type PlaneEnd = Channel<FromPort, ToPort>;

struct Scene {
    _directory: Directory,
    path: PathBuf,
    port: PortThread,
    faults: Receiver<PortFault>,
}

/// A folder of its own, removed at the end.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Scene {
    fn new(name: &str) -> Self {
        Self::with_past(name, Past::none())
    }

    fn with_past(name: &str, past: Past) -> Self {
        let directory =
            std::env::temp_dir().join(format!("floodway-port-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("vm.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (sender, faults) = channel();
        let limits = Limits::of_port(2);
        let port = PortThread::start(name, Source::Listen(listener), limits, sender, past).unwrap();
        Self { _directory: Directory(directory), path, port, faults }
    }

    /// A new data plane.
    fn data_plane(&self) -> PlaneEnd {
        let (broker, plane) = PortChannel::pair().unwrap();
        plane.set_time_limit(Some(PATIENCE)).unwrap();
        self.port.attach(broker, 0);
        plane
    }

    fn front_end(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

fn recv(plane: &PlaneEnd) -> (ToPort, Vec<OwnedFd>) {
    match plane.recv().unwrap() {
        Received::Message(message, descriptors) => (message, descriptors),
        other => panic!("{other:?}"),
    }
}

/// Hears the start of a session; returns its number, and the requests that were replayed.
fn resume(plane: &PlaneEnd) -> (u32, Vec<u8>) {
    let ToPort::Connected { session, .. } = recv(plane).0 else { panic!("no front-end") };
    let mut replayed = Vec::new();
    while let (ToPort::Message { bytes, replayed: true, .. }, _) = recv_until_end(plane) {
        replayed.push(bytes[0]);
    }
    plane.send(&FromPort::Resumed { session }, &[]).unwrap();
    (session, replayed)
}

fn recv_until_end(plane: &PlaneEnd) -> (ToPort, Vec<OwnedFd>) {
    recv(plane)
}

fn request(code: u8, payload: &[u8]) -> Vec<u8> {
    let header = [u32::from(code), 1, payload.len() as u32].map(u32::to_ne_bytes).concat();
    [&header[..], payload].concat()
}

/// Hears a message with the request `code`, and returns its number.
fn expect(plane: &PlaneEnd, code: u8) -> u64 {
    match recv(plane).0 {
        ToPort::Message { number, bytes, replayed: false, .. } if bytes[0] == code => number,
        other => panic!("not request {code}: {other:?}"),
    }
}

fn answer(plane: &PlaneEnd, session: u32, number: u64, keep: Option<u64>, reply: &[u8]) {
    let changes = keep.map(|key| Change::Keep { key }).into_iter().collect();
    let handled = Handled { session, number, changes, reply: reply.to_vec(), hang_up: false };
    plane.send(&FromPort::Handled(handled), &[]).unwrap();
}

fn read(stream: &mut UnixStream, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_connection_outlives_data_planes() {
    let scene = Scene::new("outlives");
    let mut front_end = scene.front_end();
    let first = scene.data_plane();
    let (session, _) = resume(&first);
    front_end.write_all(&request(2, &[1; 8])).unwrap();
    let number = expect(&first, 2);
    answer(&first, session, number, Some(2), b"ok");
    assert_eq!(read(&mut front_end, 2), b"ok");
    // It dies with a message that it has not answered.
    front_end.write_all(&request(11, &[0; 8])).unwrap();
    expect(&first, 11);
    drop(first);

    let second = scene.data_plane();
    let (again, replayed) = resume(&second);
    assert_eq!((again, replayed), (session, vec![2]));
    let number = expect(&second, 11);
    answer(&second, session, number, None, b"base");
    assert_eq!(read(&mut front_end, 4), b"base");
    // And goes on.
    front_end.write_all(&request(1, &[])).unwrap();
    let number = expect(&second, 1);
    answer(&second, session, number, None, b"x");
    assert_eq!(read(&mut front_end, 1), b"x");
}

#[test]
fn what_a_dead_data_plane_has_answered_is_not_done_again() {
    let scene = Scene::new("answered");
    let mut front_end = scene.front_end();
    let first = scene.data_plane();
    let (session, _) = resume(&first);
    front_end.write_all(&request(3, &[])).unwrap();
    let number = expect(&first, 3);
    answer(&first, session, number, Some(3), b"ok");
    drop(first);
    let second = scene.data_plane();
    let (_, replayed) = resume(&second);
    assert_eq!(replayed, [3]);
    front_end.write_all(&request(1, &[])).unwrap();
    assert_eq!(expect(&second, 1), number + 1, "nothing comes before it");
    assert_eq!(read(&mut front_end, 2), b"ok");
}

#[test]
fn a_front_end_that_goes_is_told_and_the_next_one_begins_anew() {
    let scene = Scene::new("goes");
    let mut front_end = scene.front_end();
    let plane = scene.data_plane();
    let (session, _) = resume(&plane);
    front_end.write_all(&request(3, &[])).unwrap();
    let number = expect(&plane, 3);
    answer(&plane, session, number, Some(3), b"");
    drop(front_end);
    assert_eq!(recv(&plane).0, ToPort::Disconnected { session });
    let _next = scene.front_end();
    let (next, replayed) = resume(&plane);
    assert_eq!((next, replayed.len()), (session + 1, 0));
}

#[test]
fn a_data_plane_that_breaks_the_protocol_is_reported_and_its_front_end_stays() {
    let scene = Scene::new("breaks");
    let mut front_end = scene.front_end();
    let plane = scene.data_plane();
    let (session, _) = resume(&plane);
    answer(&plane, session, 9, None, b"for nothing");
    let fault = scene.faults.recv_timeout(PATIENCE).unwrap();
    assert_eq!(fault.fault, "it has handled message 9, which is not outstanding");
    let plane = scene.data_plane();
    resume(&plane);
    front_end.write_all(&request(1, &[])).unwrap();
    let number = expect(&plane, 1);
    answer(&plane, session, number, None, b"x");
    assert_eq!(read(&mut front_end, 1), b"x", "and nothing that was for nothing");
}

#[test]
fn a_message_that_kills_twice_ends_its_connection() {
    let scene = Scene::new("kills");
    let mut front_end = scene.front_end();
    front_end.write_all(&request(5, &[])).unwrap();
    for _ in 0..2 {
        let plane = scene.data_plane();
        resume(&plane);
        expect(&plane, 5);
    }
    let _plane = scene.data_plane();
    assert_eq!(front_end.read(&mut [0]).unwrap(), 0, "hung up");
}

/// Hears why the last front-end was cut off.
fn quarantined(plane: &PlaneEnd) -> String {
    let (message, _) = recv(plane);
    let ToPort::Quarantined { reason } = message else { panic!("{message:?}") };
    reason
}

#[test]
fn a_front_end_that_is_cut_off_again_is_kept_away() {
    let scene = Scene::new("cut-off");
    let mut front_end = scene.front_end();
    resume(&scene.data_plane());
    scene.port.cut_off("it kills".to_owned());
    assert_eq!(front_end.read(&mut [0]).unwrap(), 0, "closed");
    let plane = scene.data_plane();
    assert_eq!(quarantined(&plane), "it kills");
    // Let in at once; its quarantine is over.
    let mut front_end = scene.front_end();
    resume(&plane);
    drop(plane);
    let plane = scene.data_plane();
    resume(&plane);
    scene.port.cut_off("it kills".to_owned());
    assert_eq!(front_end.read(&mut [0]).unwrap(), 0, "closed");
    assert_eq!(quarantined(&plane), "it kills; no other is let in for 10 s");
    let _waiting = scene.front_end();
    // This one is not kept back with it.
    let next = scene.data_plane();
    assert_eq!(quarantined(&next), "it kills; no other is let in for 10 s");
    next.set_time_limit(Some(Duration::from_millis(300))).unwrap();
    assert!(matches!(next.recv(), Ok(Received::Nothing) | Err(_)), "nobody comes");
}

/// What the store is told, up to the first that `is_last`.
fn told(store: &Channel<FromStore, ToStore>, is_last: impl Fn(&Item) -> bool) -> Vec<Item> {
    let mut items = Vec::new();
    loop {
        match store.recv().unwrap() {
            Received::Message(ToStore::Keep(item), _) => items.push(item),
            Received::Message(..) => continue,
            other => panic!("{other:?} after {items:?}"),
        }
        if items.last().is_some_and(&is_last) {
            return items;
        }
    }
}

#[test]
fn the_mark_comes_before_what_the_next_broker_would_rely_on() {
    let (ours, store) = Channel::pair().unwrap();
    store.set_time_limit(Some(PATIENCE)).unwrap();
    let scene = Scene::with_past("mark", Past::new(Store::of_test(ours), 7, None));
    let plane = scene.data_plane();
    told(&store, |item| matches!(item, Item::Channel { .. }));
    let _front_end = UnixStream::connect(&scene.path).unwrap();
    let items = told(&store, |item| matches!(item, Item::Session { .. }));
    assert!(items.contains(&Item::Busy { port: 7 }), "a new connection: {items:?}");
    while !matches!(plane.recv().unwrap(), Received::Message(ToPort::Replayed { .. }, _)) {}
    plane.send(&FromPort::Resumed { session: 1 }, &[]).unwrap();
    let is_settled = |message: &ToStore| matches!(message, ToStore::Forget(Key::Busy(7)));
    while !matches!(store.recv().unwrap(), Received::Message(message, _) if is_settled(&message)) {}
    drop(plane);
    let _next = scene.data_plane();
    let items = told(&store, |item| matches!(item, Item::Channel { .. }));
    assert!(items.contains(&Item::Busy { port: 7 }), "a new data plane: {items:?}");
}
