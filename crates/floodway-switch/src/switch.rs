//! The switch as a whole: built from a configuration, running until it is stopped.

mod brokered;
mod hand_over;
mod manager;
mod moves;
mod operated;
#[cfg(any(test, feature = "testing"))]
mod without_threads;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use floodway_core::l2::{MacTable, MacTables, NetworkId, PortKind};
use floodway_core::offload::Resumption;
use floodway_core::time::Instant;
use floodway_wire::MacAddr;

use crate::api::events::EventKind;
use crate::api::status::{PredecessorsStatus, Sandbox, VcpuStatus};
use crate::capture::Captures;
use crate::config::{Config, MAX_PORTS, PortConfig, WorkerConfig};
use crate::events::{Events, PortEvents};
use crate::host::affinity::Cores;
use crate::host::descriptors::{self, TooFewDescriptors};
use crate::host::socket_file::SocketError;
use crate::kept::addresses::{KeptAddress, KeptAddresses};
use crate::kept::counters::KeptCounters;
use crate::kept::flows::Arrived;
use crate::kept::journal::KeptJournal;
use crate::kept::turns::{KeptTurns, Turn};
use crate::memory::budget::{Budget, Share};
use crate::operator::episodes::EpisodeThread;
use crate::operator::runtime_settings::{self, SettingError};
use crate::operator::{ControlApi, StatusSource};
use crate::queues::call;
use crate::runtime::polling::Polling;
use crate::runtime::vcpu::Slices;
use crate::runtime::watchdog::{WatchdogThread, Watched, spawn_critical};
use crate::runtime::worker::Worker;
use crate::state::port::Port;
use crate::state::ports::{Capacity, Ports};
use crate::state::shared::{SettingsKeeper, Shared};
use crate::state::supply::DeviceSupply;
use crate::state::tables::Tables;
use crate::state::uplink::{DeviceSource, EgressDefaults, Uplink, UplinkError, UplinkReceiver};
use crate::state::workers::WorkerInfo;
use crate::stats::Removed;
use crate::stats::traffic_matrix::TrafficMatrix;
use crate::sync::lock;
use crate::sync::waker::Waker;
pub use brokered::{BrokerPort, BrokerUplink, Brokered};
pub use hand_over::programs_status;
pub use manager::drain::Drain;
use manager::{Broker, Manager};
pub use moves::MoveStep;
use operated::Operated;

/// Ports that every switch can have.
const MIN_CAPACITY: usize = 64;
/// Uplinks that every switch can have.
const MIN_UPLINK_CAPACITY: usize = 16;

/// Why the switch did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Guests cannot be interrupted.
    #[error(transparent)]
    Interrupts(#[from] call::AioError),
    /// Front-ends could use up the process's descriptors.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// A port's socket cannot be had.
    #[error("port \"{name}\": socket = \"{}\": {source}", path.display())]
    Socket {
        /// The port.
        name: String,
        /// Its socket.
        path: PathBuf,
        /// Why not.
        source: SocketError,
    },
    /// An uplink's device cannot be opened.
    #[error("uplink \"{name}\": {source}")]
    Uplink {
        /// The uplink.
        name: String,
        /// What is wrong, and the fix.
        source: UplinkError,
    },
    /// A worker cannot be pinned to its core.
    #[error(
        "worker[{index}].core = {core}: cannot run there: {source}; this host has cores 0 to {last}"
    )]
    Core {
        /// The worker.
        index: usize,
        /// The core.
        core: usize,
        /// The host's last core.
        last: usize,
        /// What the system said.
        source: io::Error,
    },
    /// Threads have run out.
    #[error("cannot start the thread that looks after vCPUs: {source}")]
    Vcpus {
        /// What the system said.
        source: io::Error,
    },
    /// Threads have run out.
    #[error("cannot start the thread that watches the workers: {source}")]
    Watchdog {
        /// What the system said.
        source: io::Error,
    },
    /// Threads have run out.
    #[error("cannot start the thread that counts drops: {source}")]
    Drops {
        /// What the system said.
        source: io::Error,
    },
    /// Threads or descriptors have run out.
    #[error("cannot start worker[{index}]: {source}")]
    Worker {
        /// The worker.
        index: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// A running switch.
pub struct Switch {
    shared: Arc<Shared>,
    workers: Vec<RunningWorker>,
    /// Has the ports' connections, and changes ports.
    manager: Arc<Manager>,
    /// Looks at the workers.
    watchdog: Option<WatchdogThread>,
    /// Tells when drops begin and end.
    episodes: Option<EpisodeThread>,
    slices: Slices,
    stop: Arc<AtomicBool>,
    /// What has become of connections that another data plane has handed over.
    handed_over: Resumption,
}

struct RunningWorker {
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Switch {
    /// Opens every socket and device and starts every worker.
    ///
    /// # Errors
    /// The first thing that cannot be opened or started; nothing is left running then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        prepare(config)?;
        Self::start_all(config, None)
    }

    /// As [`Switch::start`], behind a broker: it opens nothing itself. [`prepare`] comes before.
    ///
    /// # Errors
    /// As there.
    pub fn start_behind_broker(config: &Config, brokered: Brokered) -> Result<Self, StartError> {
        Self::start_all(config, Some(brokered))
    }

    fn start_all(config: &Config, brokered: Option<Brokered>) -> Result<Self, StartError> {
        let has_broker = brokered.is_some();
        let (channels, mut held, addresses) = take_apart(brokered);
        let failed = |index| move |source| StartError::Worker { index, source };
        let wakers = (0..config.workers.len())
            .map(|index| Waker::new().map(Arc::new).map_err(failed(index)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut receivers: Vec<Vec<UplinkReceiver>> = wakers.iter().map(|_| Vec::new()).collect();
        let arrived = std::mem::take(&mut held.arrived);
        let Opened { mut shared, tables, memory } = open(config, &wakers, &mut receivers, &held)?;
        let handed_over = hand_over::take_up(&shared, &held.journals, arrived);
        if let Some(pairs) = held.pairs.take() {
            shared.traffic = pairs;
        }
        restore(&shared, &addresses);
        if held.awaits_guests {
            shared.ports().iter().for_each(|port| port.await_guest());
        }
        let (all, shared) = (wakers.clone(), Arc::new(shared));
        shared.configure_inbound(&config.inbound);
        let broker = has_broker.then(|| Broker { counters: held.counters.take() });
        let manager = Manager::new(Arc::clone(&shared), all, tables, memory, config, broker);

        let mut switch = Self {
            shared,
            workers: Vec::new(),
            manager: Arc::new(manager),
            watchdog: None,
            episodes: None,
            slices: config.vcpu,
            stop: Arc::new(AtomicBool::new(false)),
            handed_over,
        };
        for ((index, waker), uplinks) in wakers.into_iter().enumerate().zip(receivers) {
            let turn = held.turns.as_ref().map_or(Turn::default(), |turns| turns.of_worker(index));
            let config = &config.workers[index];
            let worker = switch.start_worker(config, index, waker, uplinks, turn)?;
            switch.workers.push(worker);
        }
        switch.manager.connect(channels)?;
        switch.watchdog = switch.watch(config)?;
        let episodes = EpisodeThread::start(Arc::clone(&switch.shared));
        switch.episodes = Some(episodes.map_err(|source| StartError::Drops { source })?);
        switch.shared.events.emit(EventKind::SwitchStarted {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ports: config.ports.len(),
            uplinks: config.uplinks.len(),
        });
        Ok(switch)
    }

    fn watch(&self, config: &Config) -> Result<Option<WatchdogThread>, StartError> {
        let workers = self.workers.iter().zip(&self.shared.workers);
        let watched = |(worker, info): (&RunningWorker, &WorkerInfo)| Watched {
            waker: Arc::clone(&worker.waker),
            stats: Arc::clone(&info.stats),
        };
        let (workers, events) = (workers.map(watched).collect(), Arc::clone(&self.shared.events));
        WatchdogThread::start(config.watchdog, workers, events)
            .map_err(|source| StartError::Watchdog { source })
    }

    fn start_worker(
        &self,
        config: &WorkerConfig,
        index: usize,
        waker: Arc<Waker>,
        uplinks: Vec<UplinkReceiver>,
        turn: Turn,
    ) -> Result<RunningWorker, StartError> {
        let failed = |source| StartError::Worker { index, source };
        for uplink in &uplinks {
            waker.watch_uplink(uplink).map_err(failed)?;
        }
        let polling = Polling::new(config.poll);
        let mut worker = Worker::new(Arc::clone(&self.shared), index, Arc::clone(&waker), polling)
            .with_uplinks(uplinks);
        (worker.stop, worker.turn) = (Arc::clone(&self.stop), turn);
        let thread =
            spawn_critical(format!("worker-{index}"), move || worker.run()).map_err(failed)?;
        if let Some(core) = config.core {
            let pinned = Cores::one(core).and_then(|cores| cores.pin(&thread));
            pinned.map_err(|source| StartError::Core {
                index,
                core,
                last: thread::available_parallelism().map_or(0, |n| n.get() - 1),
                source,
            })?;
        }
        Ok(RunningWorker { waker, thread: Some(thread) })
    }

    /// Notes the process id of the broker, how many of its data planes have ended before this one, and why the last one did. With `is_new`, that was just before
    /// this one.
    pub fn note_predecessors(
        &self,
        broker: u32,
        count: u32,
        last_end: Option<String>,
        is_new: bool,
    ) {
        if count > 0 && is_new {
            let (restarts, reason) = (count, last_end.clone());
            self.shared.events.emit(EventKind::DataPlaneRestarted { restarts, reason });
        }
        *lock(&self.shared.predecessors) = Some(PredecessorsStatus { broker, count, last_end });
    }

    /// Notes which process the broker is by now; zero if it has gone.
    pub fn note_broker(&self, pid: u32) {
        if let Some(predecessors) = &mut *lock(&self.shared.predecessors) {
            predecessors.broker = pid;
        }
    }

    /// Saves learned addresses for a later data plane, if any have come or gone.
    pub fn save_addresses(&self, kept: &mut KeptAddresses) {
        let ports = self.shared.ports();
        let instances = ports.iter().map(|port| (port.id.index(), port.instance));
        kept.save(&self.shared.tables(), instances);
    }

    /// Returns `true` if there is an uplink with this number among uplinks.
    #[must_use]
    pub fn has_uplink(&self, number: usize) -> bool {
        self.shared.uplink(Ports::id(self.shared.capacity + number)).is_some()
    }

    /// Makes the switch what its broker has decided: `ports` and `uplinks` are those that are new, by index. `answer` hears of it before an operator can make another
    /// setting: that nothing was changed and why, or that it is done.
    ///
    /// # Errors
    /// Something was changed, and not all. The process has to end, and the next one starts as the broker has decided.
    pub fn follow(
        &self,
        wanted: Config,
        ports: BTreeMap<usize, BrokerPort>,
        uplinks: BTreeMap<usize, BrokerUplink>,
        answer: impl FnOnce(Result<(), String>),
    ) -> Result<(), String> {
        self.manager.follow(wanted, ports, uplinks, answer)
    }

    /// Notes what the process has given up.
    pub fn note_sandbox(&self, sandbox: Sandbox) {
        // Said once.
        let _ = self.shared.sandbox.set(sandbox);
    }

    /// Makes a setting that an earlier process has handed to its keeper; see [`Switch::keep_settings`].
    ///
    /// # Errors
    /// It is none; nothing is changed.
    pub fn apply_setting(&self, key: &str, value: &[u8]) -> Result<(), SettingError> {
        runtime_settings::apply(&self.shared, key, value)
    }

    /// From here on every setting that an operator makes is handed to `keeper`, before the operator is answered.
    pub fn keep_settings(&self, keeper: SettingsKeeper) {
        // Said once.
        let _ = self.shared.settings_keeper.set(keeper);
    }

    /// Notes how a broker fares with the vCPU threads of port number `port`: how many have the policy's slice, and why others do not.
    pub fn note_vcpus(&self, port: usize, threads: u32, problem: Option<String>) {
        let ports = self.shared.ports();
        let Some(port) = ports.get(port) else { return };
        let Some(config) = &port.config.vcpu else { return };
        let slice = self.slices.of(config.policy);
        let status = VcpuStatus::new(config.policy, slice, threads.into(), problem);
        *lock(&port.vcpu) = Some(status);
    }

    /// Who does what an operator wants, also while the switch is stopping.
    #[must_use]
    pub fn operator(&self) -> Arc<dyn ControlApi> {
        let (shared, manager) = (Arc::clone(&self.shared), Arc::clone(&self.manager));
        Arc::new(Operated { shared, manager })
    }

    /// Who can tell what the switch is doing, also while it is stopping.
    #[must_use]
    pub fn status_source(&self) -> Arc<dyn StatusSource> {
        Arc::clone(&self.shared) as Arc<dyn StatusSource>
    }

    /// Ends all connections and threads. Front-ends see their sockets close; their guests' rings
    /// are left as they stand, for the next switch to go on with.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if self.stop.load(Ordering::Relaxed) {
            // It has handed over: rings, journals and what is owed are another process's.
            return;
        }
        drop(self.watchdog.take());
        drop(self.episodes.take());
        self.manager.stop();
        self.stop.store(true, Ordering::Relaxed);
        for worker in &mut self.workers {
            worker.waker.wake();
            if let Some(thread) = worker.thread.take() {
                // It cannot have panicked: that ends the process.
                let _ = thread.join();
            }
        }
    }
}

/// Does what only a process with rights can do: to be called before one that will start a switch gives them up.
///
/// # Errors
/// The system has no AIO, or the process may not have enough descriptors.
pub fn prepare(config: &Config) -> Result<(), StartError> {
    call::check_aio()?;
    Ok(descriptors::reserve(config)?)
}

/// As [`prepare`], for a process that gives up the right to raise its limits later, when ports come.
///
/// # Errors
/// As there.
pub fn prepare_confined(config: &Config) -> Result<(), StartError> {
    call::check_aio()?;
    Ok(descriptors::reserve_all(config)?)
}

/// What ports and uplinks are made of that a broker holds.
#[derive(Default)]
struct Held {
    devices: Option<Vec<Arc<DeviceSupply>>>,
    counters: Option<KeptCounters>,
    pairs: Option<TrafficMatrix>,
    /// Numbers and instances of ports, by index; the index is the number if there is no broker.
    seats: BTreeMap<usize, (usize, u64)>,
    /// What was acknowledged for guests, by index.
    journals: BTreeMap<usize, KeptJournal>,
    /// Numbers that ports and uplinks can have.
    numbers: Option<Capacity>,
    /// Numbers of uplinks, by index; the index is the number if there is no broker.
    uplinks: Vec<usize>,
    turns: Option<KeptTurns>,
    /// Frames for guests wait until their rings are taken up.
    awaits_guests: bool,
    /// Connections that another data plane has handed over, by instance.
    arrived: BTreeMap<u64, Arrived>,
}

impl Held {
    fn seat(&self, index: usize) -> (usize, u64) {
        self.seats.get(&index).copied().unwrap_or((index, 0))
    }

    fn uplink_number(&self, index: usize) -> usize {
        self.uplinks.get(index).copied().unwrap_or(index)
    }
}

type Channels = BTreeMap<usize, OwnedFd>;

/// Channels of ports, what else a broker holds, and what its data planes have learned.
fn take_apart(brokered: Option<Brokered>) -> (Channels, Held, Vec<KeptAddress>) {
    let Some(brokered) = brokered else {
        return (BTreeMap::new(), Held::default(), Vec::new());
    };
    let Brokered { ports, numbers, uplinks, counters, pairs, addresses, turns, .. } = brokered;
    let (awaits_guests, arrived) = (brokered.awaits_guests, brokered.arrived);
    let seat = |(&index, port): (&usize, &BrokerPort)| (index, (port.number, port.instance));
    let seats = ports.iter().map(seat).collect();
    let journals = ports.iter().filter_map(|(&index, port)| Some((index, port.journal?))).collect();
    let channels = ports.into_iter().map(|(index, port)| (index, port.channel)).collect();
    let (numbers, places) = (Some(numbers), uplinks.iter().map(|uplink| uplink.number).collect());
    let devices = Some(uplinks.into_iter().map(|uplink| uplink.device).collect());
    let held = Held {
        devices,
        counters,
        pairs,
        seats,
        journals,
        numbers,
        uplinks: places,
        turns,
        awaits_guests,
        arrived,
    };
    (channels, held, addresses)
}

/// Brings addresses that an earlier data plane had learned into the table: those behind uplinks at once, guests' when they are known to be still there.
fn restore(shared: &Shared, addresses: &[KeptAddress]) {
    let mut guests: BTreeMap<usize, Vec<(NetworkId, MacAddr)>> = BTreeMap::new();
    let mut tables = shared.tables_mut();
    for &(network, mac, id) in addresses {
        if id.index() < shared.capacity {
            guests.entry(id.index()).or_default().push((network, mac));
        } else if shared.uplink(id).is_some_and(|uplink| uplink.carried.carries(network)) {
            tables.of_mut(network).learn(mac, id, false, Instant::ZERO);
        }
    }
    drop(tables);
    for (index, addresses) in guests {
        if let Some(port) = shared.ports().get(index) {
            port.leave_addresses(addresses);
        }
    }
}

/// What the parts of a switch are made of.
struct Opened {
    shared: Shared,
    tables: Arc<Tables>,
    memory: Arc<Budget>,
}

/// Numbers for ports and uplinks: twice as many as are configured, so that others can come at run time.
#[must_use]
pub fn numbers(config: &Config) -> Capacity {
    let twice = |configured: usize, least| (2 * configured).next_power_of_two().max(least);
    let uplinks = twice(config.uplinks.len(), MIN_UPLINK_CAPACITY);
    let uplinks = uplinks.min(MAX_PORTS - config.ports.len());
    let ports = twice(config.ports.len(), MIN_CAPACITY).min(MAX_PORTS - uplinks);
    Capacity { ports, uplinks }
}

/// Makes the ports and opens the uplinks, or takes them from a broker.
fn open(
    config: &Config,
    wakers: &[Arc<Waker>],
    receivers: &mut [Vec<UplinkReceiver>],
    held: &Held,
) -> Result<Opened, StartError> {
    let (devices, counters) = (held.devices.as_deref(), held.counters.as_ref());
    let tables = Arc::new(Tables::new(MacTables::new(hash_seed(), config.l2.ageing)));
    let capacity = held.numbers.unwrap_or_else(|| numbers(config));
    let (memory, events) = (Budget::new(capacity.ports), Arc::<Events>::default());
    let port = |(i, c): (usize, &PortConfig)| {
        let waker = Arc::clone(&wakers[c.worker]);
        let (number, instance) = held.seat(i);
        let (id, heard) = (Ports::id(number), PortEvents::new(Arc::clone(&events)));
        let mut port = Port::new(id, c.clone(), waker, Arc::clone(&tables), heard);
        port.instance = instance;
        port.memory = Share::of(Arc::clone(&memory));
        if let Some(counters) = counters.and_then(|all| all.port(number, instance)) {
            port.count_in(&counters);
        }
        Arc::new(port)
    };
    let removed = counters.map(|all| count_orphans(all, held)).unwrap_or_default();
    let ports: Vec<_> = config.ports.iter().enumerate().map(port).collect();
    let captures = Arc::new(Captures::new(config.workers.len()));
    let defaults = EgressDefaults {
        meter: &config.meter,
        guests: capacity.ports,
        seed: hash_seed()[0],
        captures: &captures,
        events: &events,
    };
    let mut uplinks = Vec::new();
    for (i, c) in config.uplinks.iter().enumerate() {
        let failed = |source| StartError::Uplink { name: c.name.clone(), source };
        let number = held.uplink_number(i);
        let id = Ports::id(capacity.ports + number);
        let source =
            devices.map_or(DeviceSource::Own, |all| DeviceSource::Broker(Arc::clone(&all[i])));
        let waker = Arc::clone(&wakers[c.worker]);
        let kept = counters.map(|all| all.uplink(number)).unwrap_or_default();
        let (slot, receiver) =
            Uplink::open(id, c.clone(), &defaults, waker, source, kept).map_err(failed)?;
        receivers[c.worker].push(receiver);
        uplinks.push(slot);
    }
    let worker = |c: &WorkerConfig| WorkerInfo { core: c.core, ..WorkerInfo::default() };
    let workers = config.workers.iter().map(worker).collect();
    let table = Arc::clone(&tables);
    let shared = Shared::new(ports, capacity, uplinks, workers, table, captures, events);
    *lock(&shared.removed) = removed;
    fill_table(&shared);
    Ok(Opened { shared, tables, memory })
}

/// Counters of ports that are gone, with those that went while there was no data plane. To be called before other ports get their numbers.
fn count_orphans(counters: &KeptCounters, held: &Held) -> Removed {
    let removed = counters.removed();
    let seats: BTreeMap<_, _> = held.seats.values().copied().collect();
    counters.count_orphans(&removed, |number, instance| seats.get(&number) == Some(&instance));
    removed
}

/// Brings ports, uplinks and configured addresses into the forwarding tables.
fn fill_table(shared: &Shared) {
    let mut tables = shared.tables_mut();
    for port in shared.ports().iter() {
        manager::add_to_table(&mut tables, port);
    }
    for uplink in shared.uplinks().iter() {
        for network in uplink.carried.networks() {
            add_uplink(tables.of_mut(network), uplink);
            pin_gateways(tables.of_mut(network), uplink);
        }
    }
}

fn add_uplink(table: &mut MacTable, uplink: &Uplink) {
    table.add_port(uplink.id, PortKind::Uplink, MacTable::DEFAULT_UPLINK_LIMIT);
}

fn pin_gateways(table: &mut MacTable, uplink: &Uplink) {
    for &mac in &uplink.config.gateway_macs {
        if let Err(refusal) = table.pin(mac, uplink.id) {
            tracing::error!(uplink = uplink.config.name, %mac, ?refusal, "cannot pin the gateway's address");
        }
    }
}

/// Numbers that guests cannot guess, so that they cannot make addresses collide in the table.
fn hash_seed() -> [u64; 2] {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new();
    [random.hash_one(0), random.hash_one(1)]
}
