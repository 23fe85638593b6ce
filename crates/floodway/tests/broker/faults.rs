//! Each process of the switch ends at each step of the hand-over in turn, under traffic. The steps are those of the model in `floodway-model`.
//!
//! Two guests send each other numbered frames, and their front-ends ask, stop rings and start them again. What is checked: that frames arrive whole and in order, but for
//! one batch that comes again; that used indices never go back; that every message of a front-end is answered; that no connection ends but by the death of a
//! broker; and that in the end everything works.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;

use floodway_process::fault::{Point, Points, Process};
use floodway_switch::testing::frames::{number_of, numbered};
use floodway_switch::testing::message::GET_FEATURES;
use floodway_switch::testing::{Frontend, wait, wait_until};

use crate::scene::{EXCHANGED, Scene, Vm, exchange, signal};

/// Most frames that a data plane takes from a ring at a time.
const BATCH: u32 = 32;
/// Bytes of each frame's payload.
const PAYLOAD: usize = 300;
/// Frames that a guest sends in between two messages of its front-end.
const BURST: usize = 40;

/// What a guest and its front-end do while processes die.
struct Load<'a> {
    vm: &'a mut Vm,
    peer: u8,
    socket: PathBuf,
    /// The front-end hangs up now and then.
    comes_and_goes: bool,
    /// Number of the next frame.
    next: u32,
    /// Number of the frame that was received last.
    last: Option<u32>,
    /// Frames that went back behind one that had come already, since the last step back.
    again: u32,
    /// Steps back.
    steps_back: u32,
    /// Connections that the switch has closed.
    cut: u32,
    used: [u16; 2],
}

impl<'a> Load<'a> {
    fn new(vm: &'a mut Vm, scene: &Scene, comes_and_goes: bool) -> Self {
        let (peer, socket) = (3 - vm.n, scene.path(&format!("vm{}.sock", vm.n)));
        let used = vm.guest.pairs[0].used();
        let (next, last, again, steps_back, cut) = (0, None, 0, 0, 0);
        Self { vm, peer, socket, comes_and_goes, next, last, again, steps_back, cut, used }
    }

    /// Goes on until `over`.
    fn run(&mut self, over: &AtomicBool) {
        for round in 0_u32.. {
            if over.load(Relaxed) {
                return;
            }
            self.move_frames();
            if self.speak(round).is_err() {
                self.cut += 1;
                self.connect();
            }
        }
    }

    fn move_frames(&mut self) {
        for _ in 0..BURST {
            let frame = numbered(self.vm.n, self.peer, self.next, PAYLOAD);
            if !self.vm.guest.send(0, &Default::default(), &frame) {
                break;
            }
            self.next += 1;
        }
        while let Some((_, frame)) = self.vm.guest.recv(0) {
            self.take(&frame);
        }
        let used = self.vm.guest.pairs[0].used();
        for (before, now) in self.used.into_iter().zip(used) {
            assert!(now.wrapping_sub(before) < 1 << 15, "a used index went back: {before}, {now}");
        }
        self.used = used;
    }

    fn take(&mut self, frame: &[u8]) {
        let Some(number) = number_of(frame) else { return };
        if self.last.is_none() && frame == numbered(self.peer, self.vm.n, 0, EXCHANGED) {
            // The frame of `exchange` again: the data plane died between the used index and the end of the batch.
            return;
        }
        assert_eq!(frame, numbered(self.peer, self.vm.n, number, PAYLOAD), "frame {number}");
        if let Some(last) = self.last {
            if number <= last && self.again == 0 {
                self.steps_back += 1;
                assert!(last - number < BATCH, "{number} comes again after {last}");
                self.again = last + 1 - number;
            }
            // In order from there on.
            assert!(self.again > 0 || number > last, "{number} after {last}");
            self.again = self.again.saturating_sub(1);
        }
        self.last = Some(number);
    }

    /// The front-end says something; an error if the switch has closed the connection.
    fn speak(&mut self, round: u32) -> Result<(), floodway_switch::testing::RequestError> {
        let Vm { guest, frontend, .. } = &mut *self.vm;
        match round % 8 {
            2 => {
                let base = frontend.get_vring_base(1)?;
                assert_eq!(base, guest.pairs[0].tx.driver.used_idx(), "a ring that has stopped");
                frontend.start_vring(guest, 1)?;
                frontend.set_vring_enable(1, true)
            }
            5 if self.comes_and_goes => {
                self.connect();
                Ok(())
            }
            _ => frontend.get(GET_FEATURES).map(|_| ()),
        }
    }

    /// Connects, however often the switch closes the connection meanwhile.
    fn connect(&mut self) {
        // The port takes no other while it has this one.
        self.vm.frontend = Frontend::new(UnixStream::pair().unwrap().0);
        self.vm.frontend = wait("a connection", || {
            let mut frontend = Frontend::connect(&self.socket);
            frontend.set_up(&self.vm.guest).is_ok().then_some(frontend)
        });
    }
}

/// What has to happen so that a point is passed while there is traffic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// Traffic.
    None,
    /// Front-ends come and go.
    Connections,
    /// The data plane dies.
    DataPlane,
    /// The broker dies.
    Broker,
}

fn occasion(point: Point) -> Option<Occasion> {
    use Point::*;
    Some(match point {
        // Of uplinks: `owed`.
        SegmentReceived | JournalStored | AckSent => return None,
        FrontEndAccepted => Occasion::Connections,
        ReplayActed | ResumedSent | PlaneEquipped | ReadySent | ChannelKept | ReplaySent
        | PlaneStarted | PlaneKept | PlaneAttached | PlaneSupplied | ReadyKept | PlaneGone => {
            Occasion::DataPlane
        }
        BrokerLost | ItemsGiven => Occasion::Broker,
        _ => Occasion::None,
    })
}

/// Lets a process die when it passes `point` for the `count`-th time under traffic.
fn die_at(point: Point, occasion: Occasion, count: u64) {
    println!("{point:?}, passing {count}");
    let (mut scene, points) = Scene::launch_with_points("");
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    let comes_and_goes = occasion == Occasion::Connections;
    let mut loads = [&mut a, &mut b].map(|vm| Load::new(vm, &scene, comes_and_goes));
    let over = AtomicBool::new(false);
    let brokers = AtomicU32::new(0);
    thread::scope(|scope| {
        let threads: Vec<_> =
            loads.iter_mut().map(|load| scope.spawn(|| load.run(&over))).collect();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cause(&mut scene, &points, point, (occasion, count), &brokers);
        }));
        over.store(true, Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let (twice, brokers) = (u32::from(occasion == Occasion::DataPlane), brokers.load(Relaxed));
    for Load { cut, steps_back, .. } in &loads {
        // A message that was outstanding at both deaths is suspected.
        assert!(*cut <= brokers + twice, "{cut} connections were cut");
        assert!(*steps_back <= 1 + brokers + twice, "{steps_back} steps back");
    }
    check(&mut scene, loads);
}

/// Has a process die, and sees that there is a switch again.
fn cause(
    scene: &mut Scene,
    points: &Points,
    point: Point,
    (occasion, count): (Occasion, u64),
    brokers: &AtomicU32,
) {
    points.arm(point, count);
    match occasion {
        Occasion::None | Occasion::Connections => {}
        Occasion::DataPlane => signal(scene.data_plane(), libc::SIGKILL),
        Occasion::Broker => scene.broker.kill().unwrap(),
    }
    let died = u32::from(point.process() == Process::Broker);
    wait_until("the death", || {
        scene.replace_broker(brokers);
        !points.is_armed(point) && brokers.load(Relaxed) >= died
    });
    wait_until("both ports to run", || {
        scene.replace_broker(brokers);
        scene
            .status()
            .is_some_and(|status| (0..2).all(|port| status["ports"][port]["state"] == "running"))
    });
}

impl Scene {
    /// Starts another broker if there is none.
    fn replace_broker(&mut self, brokers: &AtomicU32) {
        if self.broker.try_wait().unwrap().is_some() {
            brokers.fetch_add(1, Relaxed);
            self.start_broker();
        }
    }
}

/// Everything works, and no descriptor of the guests is lost.
fn check(scene: &mut Scene, loads: [Load<'_>; 2]) {
    let [a, b] = loads;
    let number = a.next.max(b.next);
    let (a, b) = (a.vm, b.vm);
    exchange(a, b, number);
    for vm in [a, b] {
        vm.frontend.get(GET_FEATURES).expect("an answer");
        wait_until("transmission", || vm.guest.transmitting(0) == 0);
        assert_eq!(vm.guest.pairs[0].tx.driver.free(), 256);
        assert_eq!(vm.guest.pairs[0].rx.driver.in_flight(), 256, "all receive buffers are posted");
    }
    scene.kill_data_plane();
}

#[test]
fn nothing_is_lost_at_any_step_of_the_data_plane() {
    die_at_each_of(Process::DataPlane);
}

#[test]
fn nothing_is_lost_at_any_step_of_the_broker() {
    die_at_each_of(Process::Broker);
}

#[test]
fn nothing_is_lost_at_any_step_of_the_store() {
    die_at_each_of(Process::Store);
}

fn die_at_each_of(process: Process) {
    for &point in Point::ALL.iter().filter(|point| point.process() == process) {
        let Some(occasion) = occasion(point) else { continue };
        let times = if occasion == Occasion::None { 1..=2 } else { 1..=1 };
        times.for_each(|count| die_at(point, occasion, count));
    }
}

#[test]
fn a_front_end_is_not_forgotten_when_a_broker_dies_before_a_data_plane_knows_of_it() {
    let (mut scene, points) = Scene::launch_with_points("");
    points.arm(Point::SessionKept, 1);
    let mut front_end = Frontend::connect(&scene.path("vm1.sock"));
    let brokers = AtomicU32::new(0);
    wait_until("the next broker", || {
        scene.replace_broker(&brokers);
        brokers.load(Relaxed) == 1
    });
    let answer = front_end.get(GET_FEATURES);
    assert!(answer.is_ok() || front_end.is_closed(), "no answer, and no end: {answer:?}");
}
