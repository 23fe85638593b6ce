//! A store on a thread, and the brokers that it has.

use std::fs::File;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use floodway_process::message::{FromDataPlane, Setting, ToDataPlane, VERSION};
use floodway_process::store::KeptLayout;
use floodway_process::upgrade::Programs;

use super::*;

/// Starts a store at `path`; what is returned says when it has ended. Its process is one that does nothing.
fn start(path: &Path, terminate: &Arc<AtomicBool>) -> (Store, Receiver<io::Result<()>>) {
    let (ended, end) = mpsc::channel();
    let store = Store::start(path, &|broker, listener| -> io::Result<Child> {
        let (ended, terminate) = (ended.clone(), Arc::clone(terminate));
        thread::spawn(move || ended.send(server::serve(broker, listener, &terminate)));
        Command::new("sleep").arg("60").spawn()
    });
    (store.unwrap(), end)
}

/// No store is to be started.
fn nobody(_: OwnedFd, _: OwnedFd) -> io::Result<Child> {
    panic!("this is no upgrade")
}

/// Takes what a broker has left that has gone. A child that was just started has its end of the channel until it executes its program.
fn take_over(path: &Path, start: &Start<'_>) -> (Store, Taken) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Store::find(path, start).unwrap() {
            Some(found) => return found,
            None => assert!(Instant::now() < deadline, "nothing was left"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("floodway-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

fn setting(key: &str, value: u8) -> Item {
    Item::Setting(Setting { key: key.to_owned(), value: vec![value] })
}

#[test]
fn the_next_broker_gets_what_was_kept_last_and_not_forgotten() {
    let directory = directory("kept");
    let path = directory.join("store");
    let (store, end) = start(&path, &Arc::default());
    let file = File::open("/dev/null").unwrap();
    for item in [setting("a", 1), setting("b", 1), setting("a", 2), setting("c", 1)] {
        store.keep(item, &[]);
    }
    store.forget(Key::Setting("c".to_owned()));
    for port in [1, 2] {
        store.keep(Item::Port { port, budget: 5 }, &[file.as_fd()]);
        store.keep(Item::Session { port, id: 7, number: 9, peer: None }, &[file.as_fd()]);
        for key in [3, 1, 2, 3] {
            store.keep(Item::Entry { port, key, bytes: vec![0; 12] }, &[file.as_fd()]);
        }
    }
    store.forget(Key::Port(2));
    store.forget_entries(1, 2, 2);
    let layout = KeptLayout {
        configuration: "x".to_owned(),
        numbers: 3,
        uplink_numbers: 2,
        ports: vec![(1, 0)],
        uplinks: vec![1],
    };
    let (sealed, bytes) = layout.seal().unwrap();
    store.keep(Item::Layout { bytes }, &[sealed.as_fd()]);
    assert!(Store::find(&path, &nobody).unwrap().is_none(), "this one lives");
    drop(store);

    let (next, taken) = take_over(&path, &nobody);
    assert_eq!(
        taken.settings,
        [("b", 1), ("a", 2)].map(|(key, value)| match setting(key, value) {
            Item::Setting(setting) => setting,
            _ => unreachable!(),
        })
    );
    assert_eq!((taken.layout, taken.ports.len()), (Some(layout), 1));
    let port = &taken.ports[&1];
    let front_end = port.front_end.as_ref().unwrap();
    let keys: Vec<_> = front_end.entries.iter().map(|(key, _)| *key).collect();
    assert_eq!((front_end.id, front_end.number, keys), (7, 9, vec![1, 3]));
    assert!(front_end.entries.iter().all(|(_, packet)| packet.descriptors.len() == 1));

    // One that is owed something is let go.
    next.keep(Item::Busy { port: 1 }, &[]);
    drop(next);
    let (last, taken) = take_over(&path, &nobody);
    assert!(taken.ports[&1].front_end.is_none() && taken.ports[&1].sessions == 7);
    last.send(&ToStore::Close, &[]);
    end.recv().unwrap().unwrap();
    last.close();
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_store_is_ended_by_a_signal_only_without_a_broker() {
    let directory = directory("signal");
    let path = directory.join("store");
    let terminate = Arc::new(AtomicBool::new(true));
    let (store, end) = start(&path, &terminate);
    // What it does not take note of, it has forgotten by now.
    while terminate.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    assert!(end.try_recv().is_err(), "it has a broker");
    let process = store.0.as_ref().unwrap().process.lock().unwrap().take().unwrap();
    drop(store);
    terminate.store(true, Ordering::Relaxed);
    end.recv().unwrap().unwrap();
    super::end(&process);
    assert!(Store::find(&path, &nobody).unwrap().is_none());
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn in_an_upgrade_the_store_is_replaced_and_has_everything() {
    let directory = directory("renewed");
    let path = directory.join("store");
    let terminate = Arc::new(AtomicBool::new(false));
    let (store, end) = start(&path, &terminate);
    store.keep(setting("a", 1), &[]);
    store.keep(Item::Programs { programs: Programs::default(), replacing: true }, &[]);
    drop(store);
    let (ended, next_end) = mpsc::channel();
    let start = |broker, listener| -> io::Result<Child> {
        let (ended, terminate) = (ended.clone(), Arc::clone(&terminate));
        thread::spawn(move || ended.send(server::serve(broker, listener, &terminate)));
        Command::new("sleep").arg("60").spawn()
    };
    let (next, taken) = take_over(&path, &start);
    end.recv().unwrap().unwrap();
    assert!(taken.replacing && taken.settings.len() == 1);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "one socket");
    // It is one like any other.
    next.keep(Item::Programs { programs: Programs::default(), replacing: false }, &[]);
    drop(next);
    let (last, taken) = take_over(&path, &nobody);
    assert!(!taken.replacing && taken.settings.len() == 1);
    last.send(&ToStore::Close, &[]);
    next_end.recv().unwrap().unwrap();
    last.close();
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_store_that_was_to_replace_another_one_ends_with_its_broker() {
    let directory = directory("half");
    let path = directory.join("store");
    let (ended, end) = mpsc::channel();
    let terminate = AtomicBool::new(false);
    thread::scope(|scope| {
        let (store, process) = Store::launch(&path, &|broker, listener| {
            let (ended, terminate) = (ended.clone(), &terminate);
            scope.spawn(move || ended.send(server::serve(broker, listener, terminate)));
            Command::new("sleep").arg("60").spawn()
        })
        .unwrap();
        store.keep(setting("a", 1), &[]);
        drop(store);
        end.recv().unwrap().unwrap();
        super::end(&process);
    });
    fs::remove_dir_all(directory).unwrap();
}

/// A process that can stand for a data plane, with its end of a channel.
fn data_plane() -> (Child, [OwnedFd; 2]) {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let (channel, _) = Channel::<ToDataPlane, FromDataPlane>::pair().unwrap();
    (child, [channel.into(), pidfd_open(pid, PidfdFlags::empty()).unwrap()])
}

#[test]
fn a_data_plane_that_does_not_have_all_ports_is_ended() {
    let directory = directory("ports");
    let path = directory.join("store");
    let (mut store, end) = start(&path, &Arc::default());
    let file = File::open("/dev/null").unwrap();
    let layout = KeptLayout {
        configuration: String::new(),
        numbers: 3,
        uplink_numbers: 0,
        uplinks: vec![],
        ports: vec![(7, 0)],
    };
    let (sealed, bytes) = layout.seal().unwrap();
    store.keep(Item::Layout { bytes }, &[sealed.as_fd()]);
    store.keep(Item::Port { port: 7, budget: 5 }, &[file.as_fd()]);
    // The first has never had the port's channel, the second one is not the one whose channel that is.
    // None has ended by itself: each has handed over to the next one.
    for (number, channel_of, is_usable) in
        [(0, None, false), (1, Some(0), false), (2, Some(2), true)]
    {
        let (mut child, files) = data_plane();
        let files = files.each_ref().map(AsFd::as_fd);
        let item = Item::DataPlane { version: VERSION, ready: true, restarts: 0, number };
        store.keep(item, &files);
        if let Some(data_plane) = channel_of {
            let (ours, _theirs) = crate::port::PortChannel::pair().unwrap();
            store.keep(Item::Channel { port: 7, data_plane }, &[ours.as_fd()]);
        }
        drop(store);
        let (next, taken) = take_over(&path, &nobody);
        assert_eq!(taken.data_plane.is_some(), is_usable, "data plane {number}");
        assert_eq!(taken.ports[&7].channel.is_some(), is_usable, "the channel");
        assert_eq!(!floodway_process::poll::is_readable(files[1]), is_usable, "its process");
        // Fails for one that has ended, which whoever ended it has waited for.
        let _ = (child.kill(), child.wait());
        store = next;
    }
    store.send(&ToStore::Close, &[]);
    end.recv().unwrap().unwrap();
    store.close();
    fs::remove_dir_all(directory).unwrap();
}
