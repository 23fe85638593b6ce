//! The thread of a connection of another host, from which a VM comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use floodway_process::message::shorten;

use super::inbox::Inbox;
use super::link::{Link, LinkError};
use super::protocol::{Answer, Request};
use super::{Event, Expected, MESSAGE, Order, SILENCE, Shared, TRANSFER};
use floodway_process::poll::wait_for;

/// How long the broker's loop may take to look for a port: it may wait for a data plane that does not read.
const LOOKING: Duration = Duration::from_secs(2);

/// Requests that another host may send in a row.
const IN_A_ROW: u64 = 16;

/// A connection of another host, which is who it should be.
pub(super) struct Destination {
    pub(super) shared: Arc<Shared>,
    pub(super) link: Link,
    /// Which host, for operators.
    pub(super) host: String,
}

/// A VM that a port waits for.
struct Waiting {
    id: u64,
    inbox: Arc<Inbox<Event>>,
    /// Bytes that the port takes.
    room: u64,
    /// All of its state is here.
    has_state: bool,
}

impl Destination {
    /// Serves the connection until it ends.
    ///
    /// # Errors
    /// It has ended otherwise than it should.
    pub(super) fn run(mut self) -> Result<(), LinkError> {
        let ended = self.serve();
        if ended.is_ok() {
            self.link.finish(MESSAGE);
        }
        ended
    }

    fn serve(&mut self) -> Result<(), LinkError> {
        let Request::Expect { vm, flows } = self.link.recv(MESSAGE)? else {
            return Err(LinkError::NoMessage);
        };
        let ours = self.shared.settings.flows;
        if flows != ours {
            let reason =
                format!("it takes version {ours} of the format of connections, and not {flows}");
            return self.answer(&Answer::Refused { reason });
        }
        let inbox = Arc::new(Inbox::new()?);
        let id = self.shared.next();
        let host = self.host.clone();
        let expected = Expected { id, vm, host, inbox: Arc::clone(&inbox) };
        self.shared.orders.put(Order::Expect(expected));
        wait_for(&[std::os::fd::AsFd::as_fd(&*inbox)], Some(LOOKING));
        let room = match inbox.take() {
            Some(Event::Expected { room }) => room,
            Some(Event::Refused(reason)) => {
                return self.answer(&Answer::Refused { reason: shorten(&reason) });
            }
            _ => {
                self.lose(id, "nobody looked for a port in time");
                return self.answer(&Answer::Refused { reason: "it is busy".to_owned() });
            }
        };
        let mut waiting = Waiting { id, inbox, room, has_state: false };
        let ended = self.answer(&Answer::Expected).and_then(|()| self.attend(&mut waiting));
        if let Err(error) = &ended {
            self.lose(id, &error.to_string());
        }
        ended
    }

    /// Nobody listens to what becomes of it any more.
    fn lose(&self, id: u64, reason: &str) {
        self.shared.orders.put(Order::Lost { id, reason: reason.to_owned() });
    }

    fn answer(&mut self, answer: &Answer) -> Result<(), LinkError> {
        self.link.send(answer, MESSAGE)
    }

    /// Takes the state of the VM's connections, and says what becomes of it.
    fn attend(&mut self, waiting: &mut Waiting) -> Result<(), LinkError> {
        let (began, mut heard) = (Instant::now(), Instant::now());
        let mut requests = 0;
        loop {
            self.link.wait(&waiting.inbox, SILENCE.saturating_sub(heard.elapsed()));
            if let Some(event) = waiting.inbox.take() {
                return self.answer(&outcome(event));
            }
            if self.link.is_ready() {
                let request = self.link.recv(MESSAGE)?;
                requests += 1;
                if requests > most_requests(began.elapsed()) {
                    return Err(LinkError::TooMuch);
                }
                if self.on_request(&request, waiting)? {
                    return Ok(());
                }
                // The state may have taken longer than silence may.
                heard = Instant::now();
            } else if heard.elapsed() >= SILENCE {
                return Err(LinkError::Late);
            }
        }
    }

    /// Returns `true` if nothing more comes.
    fn on_request(&mut self, request: &Request, waiting: &mut Waiting) -> Result<bool, LinkError> {
        match *request {
            Request::StillThere => self.answer(&Answer::StillThere)?,
            Request::State { online, bytes } if !waiting.has_state => {
                if bytes > waiting.room {
                    let room = waiting.room;
                    let reason = format!(
                        "{bytes} bytes of connections are more than the {room} that its port takes"
                    );
                    self.shared
                        .orders
                        .put(Order::TakeBack { id: waiting.id, reason: reason.clone() });
                    self.answer(&Answer::NotTaken { reason })?;
                    return Ok(true);
                }
                let file = self.link.recv_file(bytes, TRANSFER)?;
                waiting.has_state = true;
                self.shared.orders.put(Order::Import { id: waiting.id, file, bytes, online });
            }
            Request::Cancel => {
                let reason = "the VM stays where it was".to_owned();
                // The loop answers: it may have heard that the VM runs here.
                self.shared.orders.put(Order::TakeBack { id: waiting.id, reason });
            }
            Request::Expect { .. } | Request::State { .. } => return Err(LinkError::NoMessage),
        }
        Ok(false)
    }
}

/// How many requests another host may have sent after this time: twice as many as it has to, and some more.
fn most_requests(elapsed: Duration) -> u64 {
    IN_A_ROW + 2 * elapsed.as_secs()
}

/// What the other host is told of `event`.
fn outcome(event: Event) -> Answer {
    match event {
        Event::Imported { taken: true, carried, online } => Answer::Taken { carried, online },
        Event::Imported { .. } => {
            Answer::NotTaken { reason: "its data plane could not take them in time".to_owned() }
        }
        Event::Gone(reason) | Event::Refused(reason) | Event::Stays(reason) => {
            Answer::NotTaken { reason: shorten(&reason) }
        }
        Event::Exported { .. } | Event::Expected { .. } | Event::Abandoned => {
            Answer::NotTaken { reason: "it has lost its way".to_owned() }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::AtomicU64;
    use std::thread::{self, JoinHandle};

    use super::super::testing::{PATIENCE, PeerLink};
    use super::super::{Keys, Settings, Trust, Vm};
    use super::*;

    /// A connection of another host, whose thread has this test as its broker's loop.
    struct Scene {
        shared: Arc<Shared>,
        peer: PeerLink,
        /// What the loop says.
        inbox: Arc<Inbox<Event>>,
        thread: JoinHandle<Result<(), LinkError>>,
    }

    impl Scene {
        /// A port waits for a VM.
        fn start() -> Self {
            let settings =
                Settings { listen: None, hosts: Vec::new(), trust: Trust::Plain, flows: 1 };
            let (keys, orders, last) = (Keys::Plain, Inbox::new().unwrap(), AtomicU64::new(0));
            let shared = Arc::new(Shared { settings, keys, orders, last, askers: Arc::default() });
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let until = Instant::now() + PATIENCE;
            let ours = Link::connect(&listener.local_addr().unwrap(), until).unwrap();
            let theirs = Link::of(listener.accept().unwrap().0, until).unwrap();
            let (link, host) = (Link::plain(theirs), "other".to_owned());
            let destination = Destination { shared: Arc::clone(&shared), link, host };
            let thread = thread::spawn(move || destination.run());
            let mut peer = PeerLink::of(Link::plain(ours));
            peer.ask(&Vm { network: String::new(), mac: [2; 6] }, 1);
            let Order::Expect(Expected { inbox, .. }) = order(&shared) else { panic!("no VM") };
            inbox.put(Event::Expected { room: 100 });
            assert_eq!(peer.hear(), Answer::Expected);
            Self { shared, peer, inbox, thread }
        }
    }

    /// The next order.
    fn order(shared: &Shared) -> Order {
        wait_for(&[std::os::fd::AsFd::as_fd(&shared.orders)], Some(PATIENCE));
        shared.orders.take().unwrap()
    }

    const RUNS: Event = Event::Imported { taken: true, carried: 2, online: 1 };
    const TAKEN: Answer = Answer::Taken { carried: 2, online: 1 };

    #[test]
    fn a_vm_that_runs_here_already_is_not_taken_back() {
        let mut scene = Scene::start();
        scene.peer.send_state(2, b"ab");
        assert!(matches!(order(&scene.shared), Order::Import { bytes: 2, .. }));
        scene.peer.say(&Request::Cancel);
        assert!(matches!(order(&scene.shared), Order::TakeBack { .. }));
        scene.inbox.put(RUNS);
        assert_eq!(scene.peer.hear(), TAKEN);
    }

    #[test]
    fn a_state_may_take_longer_than_silence() {
        let mut scene = Scene::start();
        scene.peer.send_state(2, b"a");
        thread::sleep(SILENCE + Duration::from_millis(200));
        scene.peer.write(b"b");
        assert!(matches!(order(&scene.shared), Order::Import { .. }));
        // It would have ended by now.
        thread::sleep(Duration::from_millis(200));
        scene.inbox.put(RUNS);
        assert_eq!(scene.peer.hear(), TAKEN);
    }

    #[test]
    fn what_comes_after_the_last_answer_does_no_harm_to_it() {
        let mut scene = Scene::start();
        scene.inbox.put(RUNS);
        assert_eq!(scene.peer.hear(), TAKEN);
        for _ in 0..2 {
            scene.peer.say(&Request::StillThere);
            thread::sleep(Duration::from_millis(100));
        }
        assert!(scene.peer.is_closed_after(true));
        assert!(scene.thread.join().unwrap().is_ok());
    }

    #[test]
    fn a_host_that_does_not_stop_talking_is_hung_up_on() {
        let mut scene = Scene::start();
        let mut answered = 0;
        // Fails once it has been hung up on.
        while scene.peer.try_say(&Request::StillThere) && scene.peer.is_answered() {
            answered += 1;
            assert!(answered < 1000);
        }
        assert!(matches!(scene.thread.join().unwrap(), Err(LinkError::TooMuch)));
        assert!(matches!(order(&scene.shared), Order::Lost { .. }));
    }
}
