use std::collections::BTreeMap;
use std::collections::VecDeque;

use floodway_process::message::Change;
use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits::of_port(2);

/// A message to the model device: what to do, with which setting.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Sets it, with so many descriptors; the front-end wants an acknowledgement.
    Set(u8, u8, u8),
    /// Returns it.
    Get(u8),
    /// Returns it, and clears its descriptors: the record keeps a message of the data plane's own making.
    Stop(u8),
    /// Clears all from the first to the last.
    Clear(u8, u8),
    /// Counts nothing and has no answer.
    Nothing,
}

impl Order {
    fn packet(self, serial: u32) -> Packet<u32> {
        let (bytes, descriptors) = match self {
            Self::Set(key, value, descriptors) => (vec![0, key, value], descriptors),
            Self::Get(key) => (vec![1, key], 0),
            Self::Stop(key) => (vec![2, key], 0),
            Self::Clear(first, last) => (vec![3, first, last], 0),
            Self::Nothing => (vec![4], 0),
        };
        let descriptors = (0..u32::from(descriptors)).map(|n| 10 * serial + n).collect();
        Packet { bytes, descriptors }
    }
}

/// The settings of a device: a value and descriptors each.
type State = BTreeMap<u8, (u8, Vec<u32>)>;

/// The device that a data plane holds. All of it goes with the data plane.
#[derive(Clone, Debug, Default)]
struct Plane {
    state: State,
}

impl Plane {
    /// Acts on a message; returns the report of that.
    fn act(&mut self, session: u32, number: u64, bytes: &[u8], descriptors: &[u32]) -> Handled {
        let mut handled = Handled { session, number, ..Handled::default() };
        match *bytes {
            [0, key, value] => {
                self.state.insert(key, (value, descriptors.to_vec()));
                handled.changes.push(Change::Keep { key: key.into() });
                handled.reply = vec![0];
            }
            [1, key] => handled.reply = vec![1, self.value(key)],
            [2, key] => {
                let value = self.value(key);
                self.state.insert(key, (value, Vec::new()));
                let bytes = vec![0, key, value];
                handled.changes.push(Change::KeepOwn { key: key.into(), bytes });
                handled.reply = vec![2, value];
            }
            [3, first, last] => {
                self.state.retain(|key, _| !(first..=last).contains(key));
                handled.changes.push(Change::Forget { first: first.into(), last: last.into() });
            }
            _ => {}
        }
        handled
    }

    fn value(&self, key: u8) -> u8 {
        self.state.get(&key).map_or(0, |(value, _)| *value)
    }
}

/// When a data plane dies, counted in what it is sent.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// Before it acts on it.
    Before,
    /// When it has acted, and has not reported that.
    Acted,
    /// When the report is in the channel.
    Said,
}

/// The broker's side of one session, a front-end, and data planes that die when the test wants it.
struct World {
    session: Session<u32>,
    plane: Option<Plane>,
    to_plane: VecDeque<Outgoing<u32>>,
    from_plane: VecDeque<FromPort>,
    replies: Vec<Vec<u8>>,
    /// Deaths still to come, each after so many messages.
    deaths: VecDeque<(u8, Death)>,
}

impl World {
    fn new(deaths: Vec<(u8, Death)>) -> Self {
        let mut world = Self {
            session: Session::new(1, LIMITS),
            plane: None,
            to_plane: VecDeque::new(),
            from_plane: VecDeque::new(),
            replies: Vec::new(),
            deaths: deaths.into(),
        };
        world.attach();
        world
    }

    fn attach(&mut self) {
        self.plane = Some(Plane::default());
        self.to_plane = self.session.attach().expect("nobody is suspect").into();
    }

    /// Lets the data plane take its next message. It may die of it.
    fn step_plane(&mut self) {
        let Some(outgoing) = self.to_plane.pop_front() else { return };
        let death = match self.deaths.front_mut() {
            Some((0, death)) => Some(*death),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        let plane = self.plane.as_mut().expect("a data plane");
        let report = (!matches!(death, Some(Death::Before)))
            .then(|| report(plane, &outgoing))
            .flatten()
            .filter(|_| !matches!(death, Some(Death::Acted)));
        self.from_plane.extend(report);
        if death.is_some() {
            self.deaths.pop_front();
            self.plane = None;
            self.to_plane.clear();
        }
    }

    /// Receives what was reported; notices that the data plane is gone after that.
    fn step_broker(&mut self) {
        while let Some(report) = self.from_plane.pop_front() {
            let outcome = self.session.receive(report).expect("a correct data plane");
            if !outcome.reply.is_empty() {
                self.replies.push(outcome.reply);
            }
            assert_eq!(outcome.hang_up, None);
            match outcome.deliver {
                Some(_) if self.plane.is_none() => self.session.on_undelivered(),
                deliver => self.to_plane.extend(deliver),
            }
        }
        if self.plane.is_none() {
            self.session.detach();
            self.attach();
        }
    }

    fn settle(&mut self) {
        while !self.session.is_ready() || !self.to_plane.is_empty() || self.plane.is_none() {
            self.step_plane();
            self.step_broker();
        }
    }

    fn run(&mut self, orders: &[Order]) {
        for (serial, order) in (0..).zip(orders) {
            self.settle();
            let delivered = self.session.take(order.packet(serial)).expect("it is ready");
            self.to_plane.push_back(delivered);
        }
        self.settle();
    }
}

fn report(plane: &mut Plane, outgoing: &Outgoing<u32>) -> Option<FromPort> {
    match &outgoing.message {
        ToPort::Message { session, number, replayed, bytes } => {
            let handled = plane.act(*session, *number, bytes, &outgoing.descriptors);
            (!replayed).then_some(FromPort::Handled(handled))
        }
        ToPort::Replayed { session } => Some(FromPort::Resumed { session: *session }),
        ToPort::Connected { .. }
        | ToPort::Disconnected { .. }
        | ToPort::Attempts { .. }
        | ToPort::Quarantined { .. } => None,
    }
}

fn order() -> impl Strategy<Value = Order> {
    let key = 0..6_u8;
    prop_oneof![
        4 => (key.clone(), any::<u8>(), 0..4_u8).prop_map(|(k, v, d)| Order::Set(k, v, d)),
        2 => key.clone().prop_map(Order::Get),
        2 => key.clone().prop_map(Order::Stop),
        1 => (key.clone(), key).prop_map(|(a, b)| Order::Clear(a.min(b), a.max(b))),
        1 => Just(Order::Nothing),
    ]
}

/// A death, and perhaps another one in the replay that follows it. None is held to be a message's fault: that has tests of its own.
fn deaths() -> impl Strategy<Value = Vec<(u8, Death)>> {
    let moment = || prop_oneof![Just(Death::Before), Just(Death::Acted), Just(Death::Said)];
    (12..40_u8, moment(), proptest::option::of((0..2_u8, moment()))).prop_map(
        |(after, death, again)| [Some((after, death)), again].into_iter().flatten().collect(),
    )
}

proptest! {
    #[test]
    fn deaths_lose_nothing_and_repeat_nothing(
        orders in proptest::collection::vec(order(), 1..40),
        deaths in proptest::collection::vec(deaths(), 0..6),
    ) {
        let mut calm = World::new(Vec::new());
        calm.run(&orders);
        let mut deadly = World::new(deaths.concat());
        deadly.run(&orders);
        prop_assert_eq!(&deadly.replies, &calm.replies);
        let state = |world: &World| world.plane.as_ref().unwrap().state.clone();
        prop_assert_eq!(state(&deadly), state(&calm));
        // And once more: what is replayed to a successor is all of it.
        deadly.deaths.clear();
        deadly.plane = None;
        deadly.step_broker();
        deadly.settle();
        prop_assert_eq!(state(&deadly), state(&calm));
    }
}

fn serving() -> Session<u32> {
    let mut session = Session::new(7, LIMITS);
    session.attach().unwrap();
    session.receive(FromPort::Resumed { session: 7 }).unwrap();
    session
}

fn packet() -> Packet<u32> {
    Packet { bytes: vec![0; 12], descriptors: vec![3] }
}

fn handled(number: u64, changes: Vec<Change>) -> FromPort {
    FromPort::Handled(Handled { session: 7, number, changes, reply: vec![9], hang_up: false })
}

#[test]
fn a_message_that_two_data_planes_died_of_ends_its_session() {
    let mut session = serving();
    session.take(packet()).unwrap();
    session.detach();
    session.attach().unwrap();
    let outcome = session.receive(FromPort::Resumed { session: 7 }).unwrap();
    assert_eq!(outcome.deliver.unwrap().descriptors, [3], "delivered once more");
    session.detach();
    assert_eq!(session.attach(), Err(Suspect::Message));
}

#[test]
fn a_record_that_two_data_planes_died_of_ends_its_session() {
    let mut session = serving();
    session.detach();
    session.attach().unwrap();
    session.detach();
    session.attach().unwrap();
    session.detach();
    assert_eq!(session.attach(), Err(Suspect::Record));
}

#[test]
fn deaths_at_other_times_are_not_held_against_a_session() {
    let mut session = serving();
    for number in 0..10 {
        session.take(packet()).unwrap();
        session.detach();
        session.attach().unwrap();
        session.receive(FromPort::Resumed { session: 7 }).unwrap();
        session.receive(handled(number, Vec::new())).unwrap();
    }
    // A message that waits while a data plane dies in the replay has not killed it.
    session.take(packet()).unwrap();
    session.detach();
    session.attach().unwrap();
    session.detach();
    session.attach().unwrap();
    let outcome = session.receive(FromPort::Resumed { session: 7 }).unwrap();
    assert!(outcome.deliver.is_some());
}

#[test]
fn a_message_that_could_not_be_sent_has_killed_nobody() {
    let mut session = serving();
    session.take(packet()).unwrap();
    for _ in 0..3 {
        session.on_undelivered();
        session.detach();
        session.attach().unwrap();
        let outcome = session.receive(FromPort::Resumed { session: 7 }).unwrap();
        assert!(outcome.deliver.is_some());
    }
}

#[test]
fn what_a_data_plane_was_not_given_it_cannot_answer() {
    let mut session = serving();
    assert_eq!(session.receive(handled(0, Vec::new())), Err(Fault::UnknownMessage(0)));
    session.take(packet()).unwrap();
    assert_eq!(session.receive(handled(1, Vec::new())), Err(Fault::UnknownMessage(1)));
    let outcome = session.receive(handled(0, vec![Change::Keep { key: 1 }])).unwrap();
    assert_eq!(outcome.reply, [9]);
    assert_eq!(session.receive(handled(0, Vec::new())), Err(Fault::UnknownMessage(0)), "twice");
    assert_eq!(session.receive(FromPort::Resumed { session: 7 }), Err(Fault::NotReplaying));
    let later = FromPort::HangUp { session: 8, reason: String::new() };
    assert_eq!(session.receive(later), Err(Fault::UnknownSession(8)));
    let earlier = FromPort::HangUp { session: 6, reason: String::new() };
    assert_eq!(session.receive(earlier).unwrap().hang_up, None);
    assert_eq!(session.record().packets().len(), 1);
}

#[test]
fn a_message_that_waits_for_the_replay_cannot_be_answered_before_it_is_delivered() {
    let mut session = serving();
    session.take(packet()).unwrap();
    session.detach();
    session.attach().unwrap();
    assert_eq!(session.receive(handled(0, Vec::new())), Err(Fault::UnknownMessage(0)));
}

#[test]
fn an_answer_that_breaks_the_limits_changes_nothing() {
    let mut session = Session::new(7, Limits { entries: 1, bytes: 12, descriptors: 1 });
    session.attach().unwrap();
    session.receive(FromPort::Resumed { session: 7 }).unwrap();
    session.take(packet()).unwrap();
    let changes = vec![Change::Keep { key: 1 }, Change::Keep { key: 2 }];
    assert!(matches!(session.receive(handled(0, changes)), Err(Fault::Record(_))));
    assert_eq!(session.record().packets().len(), 0);
    // The message is still outstanding, for the successor.
    session.detach();
    session.attach().unwrap();
    let outcome = session.receive(FromPort::Resumed { session: 7 }).unwrap();
    assert!(outcome.deliver.is_some());
}
