//! The thread of a VM that leaves: finds out where it goes, and brings its connections there.

use std::fs::File;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use floodway_process::message::{ANSWER_MS, RELEASE_MS};

use super::asking::Asker;
use super::inbox::Inbox;
use super::link::{Link, LinkError};
use super::protocol::{Answer, Request};
use super::{Event, HEARTBEAT, MESSAGE, Order, SILENCE, Shared, Stayed, TRANSFER, Went};
use crate::vm::Vm;
use floodway_process::poll::wait_for;

/// How long hosts may take to say whether they expect a VM: the data plane waits for little longer.
pub(super) const ASKING: Duration = Duration::from_millis(ANSWER_MS - 100);
/// How long a VM may take to start on another host: the data plane waits for longer than that, the transfer and the last answer.
pub(super) const TAKING: Duration = Duration::from_millis(RELEASE_MS - 25_000);

/// Threads of VMs that leave: each has an end of it.
pub(super) struct Sources(Option<Sender<()>>, Receiver<()>);

impl Default for Sources {
    fn default() -> Self {
        let (theirs, ours) = mpsc::channel();
        Self(Some(theirs), ours)
    }
}

impl Sources {
    /// What one more thread has until it ends. `None` if no more may begin.
    pub(super) fn begin(&self) -> Option<Sender<()>> {
        self.0.clone()
    }

    /// Lets no more begin, and waits until the last one has ended, for at most so long.
    pub(super) fn join(&mut self, limit: Duration) {
        self.0 = None;
        // Nobody sends anything.
        let _ = self.1.recv_timeout(limit);
    }
}

/// A move of a VM that leaves.
pub(super) struct Source {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
    pub(super) vm: Vm,
    pub(super) inbox: Arc<Inbox<Event>>,
    /// How long the VM may take to start over there, once its connections are there.
    pub(super) taking: Duration,
    /// Whoever has the other end waits until this thread has ended.
    pub(super) _alive: Sender<()>,
}

/// What a host says, with its name. The connection, if it expects the VM.
type Answers = Inbox<(String, Result<Link, String>)>;
/// Hosts that expect a VM, by their connections and names.
type Willing = Vec<(Link, String)>;

/// What goes along.
struct Exported {
    file: File,
    bytes: u64,
    online: u32,
}

/// When something was last said, each way.
struct Pulse {
    said: Instant,
    heard: Instant,
}

impl Source {
    /// Follows the VM. Its outcome is left for the broker's loop.
    pub(super) fn run(self, askers: Vec<Asker>) {
        let outcome = self.follow(askers);
        self.shared.orders.put(Order::Left { id: self.id, outcome });
    }

    fn follow(&self, askers: Vec<Asker>) -> Result<Went, Stayed> {
        let (mut link, host) =
            self.ask(askers).map_err(|reason| Stayed { host: String::new(), reason })?;
        self.shared.orders.put(Order::Export { id: self.id });
        match self.go_along(&mut link) {
            Ok((carried, online)) => Ok(Went { host, carried, online }),
            Err(reason) => Err(Stayed { host, reason }),
        }
    }

    /// Asks all hosts, by the first of `askers` and one for each. Returns the connection to the only one that expects the VM: it takes all hosts to find that.
    fn ask(&self, mut askers: Vec<Asker>) -> Result<(Link, String), String> {
        let deadline = Instant::now() + ASKING;
        let answers = Arc::new(Inbox::new().map_err(|error| error.to_string())?);
        let Some(own) = askers.pop() else { return Err("no host is asked".to_owned()) };
        let hosts = &self.shared.settings.hosts;
        for ((name, port), asker) in hosts.iter().zip(askers) {
            self.ask_apart((name.clone(), *port), deadline, (asker, Arc::clone(&answers)));
        }
        let (yes, no) = self.hear(&answers, deadline);
        own.end();
        choose(yes?, no, hosts.len())
    }

    /// Waits for the answers of all hosts. Returns those that expect the VM, and what others say.
    fn hear(&self, answers: &Answers, deadline: Instant) -> (Result<Willing, String>, Vec<String>) {
        let (mut yes, mut no) = (Vec::new(), Vec::new());
        while yes.len() + no.len() < self.shared.settings.hosts.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            wait_for(&[answers.as_fd(), self.inbox.as_fd()], Some(left));
            if let Some(Event::Stays(reason)) = self.inbox.take() {
                return (Err(reason), no);
            }
            match answers.take() {
                Some((host, Ok(link))) => yes.push((link, host)),
                Some((host, Err(reason))) => no.push(format!("{host}: {reason}")),
                None if left.is_zero() => break,
                None => {}
            }
        }
        (Ok(yes), no)
    }

    /// Asks one host, in a thread of its own: names take as long to look up as they take.
    fn ask_apart(
        &self,
        (name, port): (String, u16),
        deadline: Instant,
        (asker, answers): (Asker, Arc<Answers>),
    ) {
        let (shared, vm) = (Arc::clone(&self.shared), self.vm.clone());
        let ask = move || {
            let answer = ask_host(&shared, (&name, port), vm, (&asker, deadline));
            // First: who has heard all answers may ask again.
            drop(asker);
            answers.put((format!("{name}:{port}"), answer));
        };
        if let Err(error) = thread::Builder::new().name("move-ask".to_owned()).spawn(ask) {
            tracing::error!(%error, "a host is not asked whether it expects a VM");
        }
    }

    /// Brings the connections to the host that expects them. Returns how many go on, and how many are online, there.
    fn go_along(&self, link: &mut Link) -> Result<(u32, u32), String> {
        let Exported { file, bytes, online } = self.wait_for_export(link)?;
        let state = Request::State { online, bytes };
        let sent = link.send(&state, MESSAGE).and_then(|()| link.send_file(&file, bytes, TRANSFER));
        sent.map_err(|error| error.to_string())?;
        self.wait_until_taken(link)
    }

    /// Waits until the VM has stopped, for as long as the other host gives signs of life.
    fn wait_for_export(&self, link: &mut Link) -> Result<Exported, String> {
        let mut pulse = Pulse::new();
        loop {
            pulse.wait(link, &self.inbox);
            match self.inbox.take() {
                Some(Event::Exported { file, bytes, online }) => {
                    return Ok(Exported { file, bytes, online });
                }
                Some(Event::Stays(reason)) => {
                    // Fails when the other host has gone, which comes to the same.
                    let _ = link.send(&Request::Cancel, MESSAGE);
                    return Err(reason);
                }
                _ => {}
            }
            if let Some(answer) = pulse.beat(link)? {
                return Err(refusal(answer));
            }
        }
    }

    /// Waits for `Taken`: the VM runs on the other host. After [`taking`](Self::taking), or if the VM stays, sends `Cancel`; the answer is final.
    fn wait_until_taken(&self, link: &mut Link) -> Result<(u32, u32), String> {
        let mut deadline = Instant::now() + self.taking;
        let mut is_cancelled = false;
        let mut pulse = Pulse::new();
        loop {
            let is_late = Instant::now() >= deadline;
            if is_late && is_cancelled {
                return Err("the VM did not start there in time".to_owned());
            }
            if !is_late {
                pulse.wait(link, &self.inbox);
            }
            match self.inbox.take() {
                Some(Event::Stays(_)) if !is_cancelled => {
                    (is_cancelled, deadline) = (true, cancel(link)?);
                }
                None if is_late => (is_cancelled, deadline) = (true, cancel(link)?),
                Some(Event::Abandoned) => {
                    link.finish(MESSAGE);
                    return Err("nobody waits for the other host any more".to_owned());
                }
                _ => {}
            }
            match pulse.beat(link)? {
                Some(Answer::Taken { carried, online }) => return Ok((carried, online)),
                Some(answer) => return Err(refusal(answer)),
                None => {}
            }
        }
    }
}

/// Sends `Cancel`. Returns the deadline for the answer.
fn cancel(link: &mut Link) -> Result<Instant, String> {
    link.send(&Request::Cancel, MESSAGE).map_err(|error| error.to_string())?;
    Ok(Instant::now() + SILENCE)
}

impl Pulse {
    fn new() -> Self {
        let now = Instant::now();
        Self { said: now, heard: now }
    }

    /// Waits until there is news, or it is time to say something.
    fn wait(&self, link: &Link, inbox: &Inbox<Event>) {
        link.wait(inbox, HEARTBEAT.saturating_sub(self.said.elapsed()));
    }

    /// Gives a sign of life when it is time to, and hears what there is. Returns an answer that is more than that.
    fn beat(&mut self, link: &mut Link) -> Result<Option<Answer>, String> {
        let heard = self.exchange(link);
        heard.map_err(|error| error.to_string())
    }

    fn exchange(&mut self, link: &mut Link) -> Result<Option<Answer>, LinkError> {
        if link.is_ready() {
            self.heard = Instant::now();
            let answer = link.recv(MESSAGE)?;
            return Ok((answer != Answer::StillThere).then_some(answer));
        }
        if self.heard.elapsed() >= SILENCE {
            return Err(LinkError::Late);
        }
        if self.said.elapsed() >= HEARTBEAT {
            self.said = Instant::now();
            link.send(&Request::StillThere, MESSAGE)?;
        }
        Ok(None)
    }
}

/// Why a host takes nothing, as it says.
fn refusal(answer: Answer) -> String {
    match answer {
        Answer::Refused { reason } | Answer::NotTaken { reason } => reason,
        other => format!("it says {other:?}, which is no answer"),
    }
}

/// Chooses among the hosts that say `yes`: the state of connections is for one that is alone in that.
fn choose(mut yes: Willing, mut no: Vec<String>, asked: usize) -> Result<(Link, String), String> {
    if yes.len() > 1 {
        let hosts: Vec<_> = yes.into_iter().map(|(_, host)| host).collect();
        return Err(format!("{} hosts say that they expect it: {}", hosts.len(), hosts.join(", ")));
    }
    if let Some(only) = yes.pop() {
        return Ok(only);
    }
    if no.len() < asked {
        no.push(format!("{} of {asked} hosts did not answer in time", asked - no.len()));
    }
    Err(no.join("; "))
}

/// Asks a host whether it expects `vm`. Returns the connection on which it says yes.
fn ask_host(
    shared: &Shared,
    (name, port): (&str, u16),
    vm: Vm,
    (asker, deadline): (&Asker, Instant),
) -> Result<Link, String> {
    let failed = |error: LinkError| error.to_string();
    let addresses: Vec<_> =
        (name, port).to_socket_addrs().map_err(|error| failed(error.into()))?.collect();
    if asker.is_over() {
        return Err("the VM stays".to_owned());
    }
    let mut link = connect(shared, name, &addresses, deadline).map_err(failed)?;
    let expect = Request::Expect { vm, flows: shared.settings.flows };
    let left = || deadline.saturating_duration_since(Instant::now());
    let answer = link.send(&expect, left()).and_then(|()| link.recv(left()));
    match answer.map_err(failed)? {
        Answer::Expected => Ok(link),
        other => Err(refusal(other)),
    }
}

/// Connects to the first of a host's `addresses` at which it is, each of which has its part of the time.
fn connect(
    shared: &Shared,
    name: &str,
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<Link, LinkError> {
    let mut last = LinkError::Closed;
    for (others, address) in (0..addresses.len()).rev().zip(addresses) {
        let left = deadline.saturating_duration_since(Instant::now());
        let until = Instant::now() + left / u32::try_from(others + 1).unwrap_or(u32::MAX);
        let connected = Link::connect(address, until)
            .and_then(|socket| shared.keys.connect(name, socket))
            .and_then(|mut link| link.greet().map(|()| link));
        match connected {
            Ok(link) => return Ok(link),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::AtomicU64;

    use super::super::testing::Peer;
    use super::super::{Keys, Settings, Trust};
    use super::*;

    fn shared() -> Shared {
        let settings = Settings { listen: None, hosts: Vec::new(), trust: Trust::Plain, flows: 1 };
        let (keys, orders, last) = (Keys::Plain, Inbox::new().unwrap(), AtomicU64::new(0));
        Shared { settings, keys, orders, last, askers: Arc::default() }
    }

    #[test]
    fn a_vm_that_does_not_start_in_time_is_called_back() {
        let (shared, inbox) = (Arc::new(shared()), Arc::new(Inbox::new().unwrap()));
        let vm = Vm { network: String::new(), mac: [2; 6] };
        let taking = Duration::from_millis(100);
        let alive = Sources::default().begin().unwrap();
        let source = Source { shared, id: 1, vm, inbox, taking, _alive: alive };
        // It runs there when that is heard, or it does not.
        for (answer, taken) in [
            (Answer::Taken { carried: 2, online: 1 }, Ok((2, 1))),
            (Answer::NotTaken { reason: "no".to_owned() }, Err("no".to_owned())),
        ] {
            let peer = Peer::listen(&Trust::Plain);
            let until = Instant::now() + Duration::from_secs(30);
            let mut link = Link::plain(Link::connect(&peer.address(), until).unwrap());
            let accepts = thread::spawn(move || {
                let mut there = peer.accept();
                there.hear_cancel();
                there.answer(&answer);
                there
            });
            link.greet().unwrap();
            assert_eq!(source.wait_until_taken(&mut link), taken);
            accepts.join().unwrap();
        }
    }

    #[test]
    fn a_host_is_asked_at_its_next_address_if_one_says_nothing() {
        let shared = shared();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = Peer::listen(&Trust::Plain);
        let addresses = [silent.local_addr().unwrap(), peer.address()];
        let accepts = thread::spawn(move || peer.accept());
        let deadline = Instant::now() + Duration::from_secs(3);
        connect(&shared, "a name", &addresses, deadline).unwrap();
        accepts.join().unwrap();
    }
}
