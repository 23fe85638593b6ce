//! Changes of a running switch: ports and uplinks come, change and go.
//!
//! # Theory of operation
//! **Goal**: the switch is as a configuration says, without a frame lost between ports that stay, and a change that cannot be made changes nothing.
//!
//! [`Plan`] says what differs. One change at a time is made, in this order:
//! 1. What may fail comes first: descriptors, accounts that sockets are to belong to, the devices of new uplinks (`uplinks`), and the sockets of new
//!    ports. If one of these fails, those that were made are closed, and the switch is as before.
//! 2. The next table of ports and uplinks is published, with the new ones and without those that go ([`crate::state::ports`]), and all workers are
//!    awaited. New ports work from here on.
//! 3. What nobody uses any more is taken down: connections of the guest are reset if they cannot go on, the front-end is disconnected, addresses
//!    and number are given up. Counters are added to those of all ports that have gone.
//! 4. Ports whose keys need another front-end's start come back as new ones. Their sockets are where the old ones were, which is why they
//!    could not be made before; should one fail now, the port comes back as it was, and the error says so.
//! 5. Settings that take effect at once: offload, storm and rate limits, weights, the division of the link.
//!
//! With a broker the ports' sockets are not the switch's. Then it is the broker that decides and this that follows (`follow`): the same steps with the
//! broker's channels for sockets, and without going back.
//!
//! **Invariant**: what [`configuration`](Manager::configuration) returns is what runs.

pub(super) mod drain;
mod follow;
mod parts;
mod uplinks;
mod vcpus;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use floodway_core::l2::{MacTable, MacTables, PortId, PortKind, StormLimit};

use super::{BrokerPort, BrokerUplink, StartError};
use crate::api::control::ControlError;
use crate::api::events::EventKind;
use crate::api::plan::Plan;
use crate::config::offload::NO_JOURNAL;
use crate::config::{Config, PortConfig, SocketMode};
use crate::events::{PortEvents, clip};
use crate::host::affinity::Cores;
use crate::host::descriptors;
use crate::host::socket_access::Access;
use crate::kept::counters::KeptCounters;
use crate::memory::budget::{Budget, Share};
use crate::pipeline::delivery::Delivery;
use crate::pipeline::tcp_offload::Session;
use crate::runtime::vcpu::SliceController;
use crate::state::port::Port;
use crate::state::ports::Ports;
use crate::state::shared::Shared;
use crate::state::tables::Tables;
use crate::state::uplink::Uplink;
use crate::sync::lock;
use crate::sync::waker::Waker;
use crate::vhost::connection::Connection;
use crate::vhost::relay;
use parts::Parts;
use vcpus::look_after_vcpus;

/// How long workers may take to see a change. They look between two batches.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// How often is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(1);

/// Changes the ports of one switch. See the module's theory of operation.
pub(super) struct Manager {
    shared: Arc<Shared>,
    wakers: Vec<Arc<Waker>>,
    tables: Arc<Tables>,
    memory: Arc<Budget>,
    /// Where threads of sockets may run.
    spare: Option<Cores>,
    state: Mutex<State>,
}

/// What changes.
struct State {
    config: Config,
    connections: BTreeMap<PortId, Connection>,
    vcpus: Option<SliceController>,
    /// Numbers of no port; the one that has been free for longest is first.
    free: VecDeque<usize>,
    /// Numbers of no uplink, in the same order.
    free_uplinks: VecDeque<usize>,
    broker: Option<Broker>,
}

/// What there is if a broker holds the ports' sockets.
pub(super) struct Broker {
    /// Where ports count.
    pub(super) counters: Option<KeptCounters>,
}

/// Where the front-ends of new ports come from.
enum Doors {
    /// Sockets of this process's; ports have numbers of its choice.
    Own,
    /// The broker's channels, by the names of ports.
    Broker(BTreeMap<String, BrokerPort>, BTreeMap<String, BrokerUplink>),
}

/// Why a change was not made.
enum NotMade {
    /// It was not begun.
    Refused(ControlError),
    /// Some of it was made.
    Half(String),
}

impl From<NotMade> for ControlError {
    fn from(error: NotMade) -> Self {
        match error {
            NotMade::Refused(error) => error,
            NotMade::Half(problem) => Self::Failed(problem),
        }
    }
}

/// A port that works but is in no table yet.
struct Prepared {
    port: Arc<Port>,
    connection: Connection,
}

impl Manager {
    /// A manager of a switch whose ports have no connections yet.
    pub(super) fn new(
        shared: Arc<Shared>,
        wakers: Vec<Arc<Waker>>,
        tables: Arc<Tables>,
        memory: Arc<Budget>,
        config: &Config,
        broker: Option<Broker>,
    ) -> Self {
        let spare = Cores::spare(config.workers.iter().filter_map(|worker| worker.core));
        let state = State {
            config: config.clone(),
            connections: BTreeMap::new(),
            vcpus: None,
            free: (config.ports.len()..shared.capacity).collect(),
            free_uplinks: (config.uplinks.len()..shared.uplink_capacity).collect(),
            broker,
        };
        Self { shared, wakers, tables, memory, spare, state: Mutex::new(state) }
    }

    /// Opens the sockets of all ports; those whose index is in `channels` have their front-ends from a broker.
    pub(super) fn connect(&self, mut channels: BTreeMap<usize, OwnedFd>) -> Result<(), StartError> {
        let mut state = lock(&self.state);
        for (index, port) in self.shared.ports().iter().enumerate() {
            let connection = match channels.remove(&index) {
                Some(channel) => relay::start(Arc::clone(port), channel),
                None => Connection::start(Arc::clone(port)),
            };
            let connection = connection.map_err(|source| StartError::Socket {
                name: port.config.name.clone(),
                path: port.config.socket.clone(),
                source,
            })?;
            connection.keep_to(self.spare);
            state.connections.insert(port.id, connection);
        }
        // With a broker it is that which looks after vCPUs.
        if state.broker.is_none() {
            let keeper = look_after_vcpus(self.shared.ports().list(), &state.config);
            state.vcpus = keeper.map_err(|source| StartError::Vcpus { source })?;
        }
        Ok(())
    }

    /// Ends all connections. What is owed to guests' peers ends with the journals, so those connections are reset first.
    pub(super) fn stop(&self) {
        let mut state = lock(&self.state);
        self.reset_owing();
        Self::disconnect(&mut state);
    }

    fn disconnect(state: &mut State) {
        drop(state.vcpus.take());
        while let Some((_, connection)) = state.connections.pop_first() {
            connection.stop();
        }
    }

    /// Asks all connections' threads to end and to leave what front-ends have set up as it is.
    pub(super) fn begin_hand_over(&self) {
        lock(&self.state).connections.values().for_each(Connection::begin_hand_over);
    }

    /// Ends all connections' threads, which were [asked to](Self::begin_hand_over).
    pub(super) fn hand_over(&self) {
        Self::disconnect(&mut lock(&self.state));
    }

    fn reset_owing(&self) {
        let mut delivery = Delivery::new(Arc::clone(&self.shared));
        for port in self.shared.ports().list() {
            // Whether another host has what was set aside is not waited for, and one of the two has to know of it.
            let was_aside = port.offload.bring_back();
            let mut session = Session::open(port, &mut delivery);
            if was_aside {
                session.abort();
            } else {
                session.reset_owing();
            }
            drop(session);
            delivery.flush();
        }
    }

    /// The configuration that runs, with the settings that were changed since the start.
    pub(super) fn configuration(&self) -> Config {
        self.current(&lock(&self.state))
    }

    fn current(&self, state: &State) -> Config {
        let mut config = state.config.clone();
        let ports = self.shared.ports();
        let named: BTreeMap<_, _> = ports.iter().map(|port| (&port.config.name, port)).collect();
        for known in &mut config.ports {
            if let Some(port) = named.get(&known.name) {
                known.offload = port.offload.machine().engine.config().clone();
            }
        }
        config.inbound = self.shared.inbound.with(|state| state.core.config().clone());
        config
    }

    /// Makes what runs what `edit` makes of it, or only says what that would change.
    pub(super) fn reconfigure(
        &self,
        edit: &dyn Fn(&Config) -> Result<Config, ControlError>,
        dry_run: bool,
    ) -> Result<Plan, ControlError> {
        let mut state = lock(&self.state);
        let running = self.current(&state);
        let wanted = edit(&running)?;
        let plan = Plan::between(&running, &wanted);
        plan.check_fixed()?;
        if dry_run || plan.is_empty() {
            return Ok(plan);
        }
        if state.broker.is_some() {
            return Err(ControlError::HasBroker);
        }
        if let Some(port) = wanted.port_that_may_owe() {
            return Err(ControlError::Invalid(format!("port \"{}\": {NO_JOURNAL}", port.name)));
        }
        let parts = Parts::of(&plan, &running, &wanted, &self.shared.ports());
        self.check(&state, &wanted, &parts)?;
        let made = self.make(&mut state, &running, wanted, &parts, &mut Doors::Own);
        let made = made.map_err(ControlError::from);
        self.tell(&plan, made.as_ref().err().map(ToString::to_string));
        made.map(|()| plan)
    }

    /// Tells that a change was made, or why it was not.
    fn tell(&self, plan: &Plan, failure: Option<String>) {
        // A line of the log has no others in it.
        let changes = clip(plan.to_string().replace('\n', "; "));
        self.shared.events.emit(match failure {
            None => EventKind::ConfigApplied { changes },
            Some(reason) => EventKind::ConfigFailed { changes, reason: clip(reason) },
        });
    }

    /// Does something while no change is under way.
    pub(super) fn between_changes<T>(&self, work: impl FnOnce() -> T) -> T {
        let _state = lock(&self.state);
        work()
    }

    /// Does what the parts say.
    fn make(
        &self,
        state: &mut State,
        running: &Config,
        mut wanted: Config,
        parts: &Parts,
        doors: &mut Doors,
    ) -> Result<(), NotMade> {
        let ports = self.shared.ports();
        let uplinks = self.prepare_uplinks(state, &parts.uplinks, &ports, &wanted, doors);
        let uplinks = uplinks.map_err(NotMade::Refused)?;
        let prepared = match self.prepare_all(state, &parts.early, doors) {
            Ok(prepared) => prepared,
            Err(refusal) => {
                self.give_uplinks_up(state, &uplinks);
                return Err(NotMade::Refused(refusal));
            }
        };
        self.drain(parts);
        let mut list = parts.stay.clone();
        list.extend(self.adopt(state, prepared));
        if !(parts.gone.is_empty() && parts.early.is_empty() && parts.uplinks.is_empty()) {
            self.show(&list, &parts.uplinks.next(&uplinks, &wanted));
            self.retire(state, &parts.gone);
            self.retire_uplinks(state, &parts.uplinks.gone);
            self.hand_receivers_over(uplinks, &list);
        }
        let problem = self.come_back(state, running, &mut wanted, &parts.late, &mut list, doors);
        self.settle(state, running, ports.list(), wanted, list);
        problem.map_or(Ok(()), |problem| Err(NotMade::Half(problem)))
    }

    /// Refuses what can be seen to fail before anything is done.
    fn check(&self, state: &State, wanted: &Config, parts: &Parts) -> Result<(), ControlError> {
        descriptors::reserve(wanted).map_err(|error| ControlError::Failed(error.to_string()))?;
        let new = || parts.early.iter().chain(&parts.late);
        for port in new().filter(|port| port.mode == SocketMode::Server) {
            Access::resolve(&port.permissions).map_err(|error| {
                ControlError::Failed(format!("port \"{}\".permissions: {error}", port.name))
            })?;
        }
        let free = state.free.len();
        if parts.early.len() > free || new().count() > free + parts.gone.len() {
            return Err(self.too_many());
        }
        Ok(())
    }

    fn too_many(&self) -> ControlError {
        let capacity = self.shared.capacity;
        let problem =
            format!("{capacity} ports are the most without a restart; restart the switch");
        ControlError::Failed(problem)
    }

    /// Opens the sockets of new ports. If one fails, none is left.
    fn prepare_all(
        &self,
        state: &mut State,
        ports: &[PortConfig],
        doors: &mut Doors,
    ) -> Result<Vec<Prepared>, ControlError> {
        let mut prepared = Vec::new();
        for config in ports {
            match self.prepare(state, config, doors) {
                Ok(port) => prepared.push(port),
                Err(problem) => {
                    for Prepared { port, connection } in prepared {
                        connection.stop();
                        self.give_up(state, &port);
                    }
                    return Err(ControlError::Failed(problem));
                }
            }
        }
        Ok(prepared)
    }

    /// A port with a socket or channel, at a number of its own.
    fn prepare(
        &self,
        state: &mut State,
        config: &PortConfig,
        doors: &mut Doors,
    ) -> Result<Prepared, String> {
        let (number, instance, channel, journal) = match doors {
            Doors::Own => {
                let number = state.free.pop_front().ok_or_else(|| self.too_many().to_string())?;
                (number, 0, None, None)
            }
            Doors::Broker(doors, _) => {
                let BrokerPort { number, instance, channel, journal } = doors
                    .remove(&config.name)
                    .ok_or_else(|| format!("port \"{}\": no channel", config.name))?;
                (number, instance, Some(channel), journal)
            }
        };
        let port = self.new_port(state, config, number, instance);
        port.take_up(journal, None, self.shared.now());
        add_to_table(&mut self.shared.tables_mut(), &port);
        let connection = match channel {
            Some(channel) => relay::start(Arc::clone(&port), channel),
            None => Connection::start(Arc::clone(&port)),
        };
        match connection {
            Ok(connection) => {
                connection.keep_to(self.spare);
                Ok(Prepared { port, connection })
            }
            Err(error) => {
                self.give_up(state, &port);
                let PortConfig { name, socket, .. } = config;
                Err(format!("port \"{name}\": socket = \"{}\": {error}", socket.display()))
            }
        }
    }

    fn new_port(
        &self,
        state: &State,
        config: &PortConfig,
        number: usize,
        instance: u64,
    ) -> Arc<Port> {
        let waker = Arc::clone(&self.wakers[config.worker]);
        let events = PortEvents::new(Arc::clone(&self.shared.events));
        let (id, tables) = (Ports::id(number), Arc::clone(&self.tables));
        let mut port = Port::new(id, config.clone(), waker, tables, events);
        port.instance = instance;
        port.memory = Share::of(Arc::clone(&self.memory));
        let counters = state.broker.as_ref().and_then(|broker| broker.counters.as_ref());
        if let Some(counters) = counters.and_then(|all| all.port(number, instance)) {
            port.count_in(&counters);
        }
        if let Some(outbox) = self.shared.outbox.get() {
            port.offload.moving.connect(Arc::clone(outbox));
        }
        self.shared.traffic.begin(port.id, instance);
        self.shared.ledger.forget(port.id);
        Arc::new(port)
    }

    /// Forgets a port's addresses, and lets its number be used again.
    fn give_up(&self, state: &mut State, port: &Port) {
        for network in port.carried.networks() {
            self.shared.tables_mut().of_mut(network).remove_port(port.id);
        }
        match &state.broker {
            Some(Broker { counters }) => {
                if let Some(counters) = counters {
                    counters.release(port.id.index());
                }
            }
            None => state.free.push_back(port.id.index()),
        }
    }

    fn adopt(&self, state: &mut State, prepared: Vec<Prepared>) -> Vec<Arc<Port>> {
        let adopt = |Prepared { port, connection }: Prepared| {
            state.connections.insert(port.id, connection);
            port
        };
        prepared.into_iter().map(adopt).collect()
    }

    /// Lets all workers see these ports and uplinks.
    fn show(&self, list: &[Arc<Port>], uplinks: &Arc<[Arc<Uplink>]>) {
        let generation = self.shared.publish(list.to_vec(), Arc::clone(uplinks));
        let deadline = Instant::now() + SEEN_WITHIN;
        for (index, waker) in self.wakers.iter().enumerate() {
            waker.wake();
            let stats = &self.shared.workers[index].stats;
            while stats.generation() < generation && Instant::now() < deadline {
                thread::sleep(LOOK);
            }
            if stats.generation() < generation {
                tracing::error!(
                    worker = index,
                    "the worker stands still and has not seen that ports have changed"
                );
            }
        }
    }

    /// Takes down ports that no worker knows any more.
    fn retire(&self, state: &mut State, gone: &[Arc<Port>]) {
        let mut delivery = Delivery::new(Arc::clone(&self.shared));
        for port in gone {
            // Whoever waits for what only the switch has must not wait for ever.
            port.offload.bring_back();
            Session::open(port, &mut delivery).abort();
            delivery.flush();
            if let Some(connection) = state.connections.remove(&port.id) {
                connection.stop();
            }
            port.pairs.iter().for_each(|pair| pair.rx().forget());
            self.shared.count_removed(port);
            self.give_up(state, port);
        }
    }

    /// Makes ports whose sockets are free only now, as wanted or else as they were. Returns what went wrong.
    fn come_back(
        &self,
        state: &mut State,
        running: &Config,
        wanted: &mut Config,
        late: &[PortConfig],
        list: &mut Vec<Arc<Port>>,
        doors: &mut Doors,
    ) -> Option<String> {
        let mut problems = Vec::new();
        for PortConfig { name, .. } in late {
            let Some(at) = wanted.ports.iter().position(|port| port.name == *name) else {
                continue;
            };
            let before = running.ports.iter().find(|port| port.name == *name);
            let prepared = self.prepare(state, &wanted.ports[at], doors).or_else(|problem| {
                problems.push(problem.clone());
                before.map_or(Err(problem), |before| self.prepare(state, before, doors))
            });
            match prepared {
                Ok(prepared) => {
                    wanted.ports[at] = prepared.port.config.clone();
                    list.extend(self.adopt(state, vec![prepared]));
                }
                Err(_) => drop(wanted.ports.remove(at)),
            }
        }
        if !late.is_empty() {
            self.show(list, &self.shared.uplinks());
        }
        let what = "some ports are as they were or gone";
        (!problems.is_empty()).then(|| format!("{}; {what}", problems.join("; ")))
    }

    /// Puts settings into effect that end no connection, and takes note of what runs.
    fn settle(
        &self,
        state: &mut State,
        running: &Config,
        before: &[Arc<Port>],
        wanted: Config,
        list: Vec<Arc<Port>>,
    ) {
        let known = by_name(&wanted);
        let was = by_name(running);
        let mut delivery = Delivery::new(Arc::clone(&self.shared));
        let mut weights = Vec::new();
        for port in &list {
            let Some(&config) = known.get(&*port.config.name) else { continue };
            weights.push((Arc::clone(port), config.inbound_weight));
            let was = was.get(&*config.name);
            if was.is_some_and(|before| before.offload != config.offload) {
                Session::open(port, &mut delivery).configure(config.offload.clone());
            }
            if was.is_some_and(|before| before.limit != config.limit) {
                port.limits.configure(config.limit, self.shared.now());
            }
            if was.is_some_and(|before| before.storm_pps != config.storm_pps) {
                for of in port.carried.values() {
                    *lock(&of.storm) = StormLimit::new(config.storm_pps.into(), self.shared.now());
                }
            }
        }
        delivery.flush();
        self.shared.inbound.rearrange(weights, self.shared.now());
        list.iter().for_each(|port| self.shared.configure_inbound_of(port));
        if running.inbound != wanted.inbound {
            self.shared.configure_inbound(&wanted.inbound);
        }
        // In the order of the configuration, for those who look.
        let mut list = list;
        let places: BTreeMap<_, _> = wanted.ports.iter().map(|port| &port.name).zip(0..).collect();
        list.sort_by_key(|port| places.get(&port.config.name).copied());
        self.settle_uplinks(running, &wanted);
        self.shared.publish(list, self.uplinks_in_order(&wanted));
        self.look_after_vcpus(state, before, &wanted);
        state.config = wanted;
    }
}

/// The ports of a configuration.
fn by_name(config: &Config) -> BTreeMap<&str, &PortConfig> {
    config.ports.iter().map(|port| (&*port.name, port)).collect()
}

/// Brings a port and its configured address into the forwarding tables of its networks.
pub(super) fn add_to_table(tables: &mut MacTables, port: &Port) {
    for network in port.carried.networks() {
        let table = tables.of_mut(network);
        table.add_port(port.id, PortKind::Local, MacTable::DEFAULT_LOCAL_LIMIT);
        table.allow_takeover(port.id, port.config.allow_mac_takeover);
        if let Some(mac) = port.config.mac {
            table.reserve(mac, port.id);
        }
    }
}
