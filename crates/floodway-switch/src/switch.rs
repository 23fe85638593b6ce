//! The switch as a whole: built from a configuration, running until it is stopped.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::{self, JoinHandle};

use floodway_core::l2::{MacTable, PortId, PortKind};
use floodway_core::time::Instant;

use crate::api::operate::Operator;
use crate::api::status::{PredecessorsStatus, StatusSource};
use crate::config::{Config, PortConfig, WorkerConfig};
use crate::host::affinity::Cores;
use crate::host::descriptors::{self, TooFewDescriptors};
use crate::host::socket_file::SocketError;
use crate::memory::budget::{Budget, Share};
use crate::queues::call;
use crate::runtime::polling::Polling;
use crate::runtime::vcpu::Keeper;
use crate::runtime::watchdog::{WatchdogThread, Watched, spawn_critical};
use crate::runtime::worker::{Schedule, Worker};
use crate::state::port::Port;
use crate::state::shared::Shared;
use crate::state::uplink::{Shape, UplinkReceiver, UplinkSlot};
use crate::state::workers::WorkerInfo;
use crate::sync::waker::Waker;
use crate::uplink;
use crate::vhost::connection::Connection;
use crate::vhost::relay;

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
        source: uplink::OpenError,
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
    connections: Vec<Connection>,
    /// Looks at the workers.
    watchdog: Option<WatchdogThread>,
    /// Gives vCPU threads back what they had when the switch stops.
    vcpus: Option<Keeper>,
    stop: Arc<AtomicBool>,
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
        Self::start_with_channels(config, BTreeMap::new())
    }

    /// As [`Switch::start`]; a port whose index is in `channels` has its front-ends from a broker at the other end of that channel.
    ///
    /// # Errors
    /// As there.
    pub fn start_with_channels(
        config: &Config,
        mut channels: BTreeMap<usize, OwnedFd>,
    ) -> Result<Self, StartError> {
        call::check_aio()?;
        descriptors::reserve(config)?;
        let failed = |index| move |source| StartError::Worker { index, source };
        let wakers = (0..config.workers.len())
            .map(|index| Waker::new().map(Arc::new).map_err(failed(index)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut receivers: Vec<Vec<UplinkReceiver>> = wakers.iter().map(|_| Vec::new()).collect();
        let shared = Arc::new(open(config, &wakers, &mut receivers)?);
        shared.configure_inbound(&config.inbound);

        let mut switch = Self {
            shared,
            workers: Vec::new(),
            connections: Vec::new(),
            watchdog: None,
            vcpus: None,
            stop: Arc::new(AtomicBool::new(false)),
        };
        for ((index, waker), uplinks) in wakers.into_iter().enumerate().zip(receivers) {
            let worker = switch.start_worker(&config.workers[index], index, waker, uplinks)?;
            switch.workers.push(worker);
        }
        let spare = Cores::spare(config.workers.iter().filter_map(|worker| worker.core));
        for (index, port) in switch.shared.ports.iter().enumerate() {
            let connection = match channels.remove(&index) {
                Some(channel) => relay::start(Arc::clone(port), channel),
                None => Connection::start(Arc::clone(port)),
            };
            let connection = connection.map_err(|source| StartError::Socket {
                name: port.config.name.clone(),
                path: port.config.socket.clone(),
                source,
            })?;
            connection.keep_to(spare);
            switch.connections.push(connection);
        }
        switch.watchdog = switch.watch(config)?;
        let failed = |source| StartError::Vcpus { source };
        switch.vcpus = Keeper::start(&switch.shared.ports, config.vcpu).map_err(failed)?;
        Ok(switch)
    }

    fn watch(&self, config: &Config) -> Result<Option<WatchdogThread>, StartError> {
        let workers = self.workers.iter().zip(&self.shared.workers);
        let watched = |(worker, info): (&RunningWorker, &WorkerInfo)| Watched {
            waker: Arc::clone(&worker.waker),
            stats: Arc::clone(&info.stats),
        };
        WatchdogThread::start(config.watchdog, workers.map(watched).collect())
            .map_err(|source| StartError::Watchdog { source })
    }

    fn start_worker(
        &self,
        config: &WorkerConfig,
        index: usize,
        waker: Arc<Waker>,
        uplinks: Vec<UplinkReceiver>,
    ) -> Result<RunningWorker, StartError> {
        let failed = |source| StartError::Worker { index, source };
        for uplink in &uplinks {
            waker.watch_uplink(uplink).map_err(failed)?;
        }
        let mine = |port: &&Arc<Port>| port.config.worker == index;
        let ports: Vec<_> = self.shared.ports.iter().filter(mine).cloned().collect();
        let worker = Worker {
            shared: Arc::clone(&self.shared),
            waker: Arc::clone(&waker),
            schedule: Schedule::of(&ports, &uplinks).timed(),
            was_busy: false,
            ports,
            uplinks,
            polling: Polling::new(config.poll),
            stats: Arc::clone(&self.shared.workers[index].stats),
            stop: Arc::clone(&self.stop),
            housekeeper: index == 0,
            next_completion: Instant::NEVER,
        };
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

    /// Notes how many data planes of the same broker have ended before this one, and why the last one did.
    pub fn note_predecessors(&self, count: u32, last_end: Option<String>) {
        // Said once.
        let _ = self.shared.predecessors.set(PredecessorsStatus { count, last_end });
    }

    /// Who does what an operator wants, also while the switch is stopping.
    #[must_use]
    pub fn operator(&self) -> Arc<dyn Operator> {
        Arc::new(Arc::clone(&self.shared))
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
        drop(self.watchdog.take());
        drop(self.vcpus.take());
        for connection in self.connections.drain(..) {
            connection.stop();
        }
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

/// Makes the ports and opens the uplinks.
fn open(
    config: &Config,
    wakers: &[Arc<Waker>],
    receivers: &mut [Vec<UplinkReceiver>],
) -> Result<Shared, StartError> {
    let table = Arc::new(RwLock::new(MacTable::new(hash_seed(), config.l2.ageing)));
    let memory = Budget::new(config.ports.len());
    let port = |(i, c): (usize, &PortConfig)| {
        let waker = Arc::clone(&wakers[c.worker]);
        let mut port = Port::new(port_id(i), c.clone(), waker, Arc::clone(&table));
        port.memory = Share::of(Arc::clone(&memory));
        Arc::new(port)
    };
    let ports: Vec<_> = config.ports.iter().enumerate().map(port).collect();
    let shape = Shape { meter: &config.meter, guests: ports.len(), seed: hash_seed()[0] };
    let mut uplinks = Vec::new();
    for (i, c) in config.uplinks.iter().enumerate() {
        let failed = |source| StartError::Uplink { name: c.name.clone(), source };
        let id = port_id(ports.len() + i);
        let (slot, receiver) =
            UplinkSlot::open(id, c.clone(), &shape, Arc::clone(&wakers[c.worker]))
                .map_err(failed)?;
        receivers[c.worker].push(receiver);
        uplinks.push(slot);
    }
    let worker = |c: &WorkerConfig| WorkerInfo { core: c.core, ..WorkerInfo::default() };
    let workers = config.workers.iter().map(worker).collect();
    let shared = Shared::new(ports, uplinks, workers, table);
    fill_table(&shared);
    Ok(shared)
}

#[cfg(any(test, feature = "testing"))]
impl Shared {
    /// The switch of `config` without sockets and threads: for benches, which are its worker.
    ///
    /// # Errors
    /// As [`Switch::start`].
    pub fn without_threads(config: &Config) -> Result<Arc<Self>, StartError> {
        let failed = |index| move |source| StartError::Worker { index, source };
        let wakers = (0..config.workers.len())
            .map(|index| Waker::new().map(Arc::new).map_err(failed(index)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut receivers: Vec<_> = wakers.iter().map(|_| Vec::new()).collect();
        let shared = Arc::new(open(config, &wakers, &mut receivers)?);
        shared.configure_inbound(&config.inbound);
        Ok(shared)
    }
}

/// Brings ports, uplinks and configured addresses into the forwarding table.
fn fill_table(shared: &Shared) {
    let mut table = shared.table_mut();
    for port in &shared.ports {
        table.add_port(port.id, PortKind::Local, MacTable::DEFAULT_LOCAL_LIMIT);
        table.allow_takeover(port.id, port.config.allow_mac_takeover);
        if let Some(mac) = port.config.mac {
            table.reserve(mac, port.id);
        }
    }
    for uplink in &shared.uplinks {
        table.add_port(uplink.id, PortKind::Uplink, MacTable::DEFAULT_UPLINK_LIMIT);
        for &mac in &uplink.config.gateway_macs {
            if let Err(refusal) = table.pin(mac, uplink.id) {
                tracing::error!(uplink = uplink.config.name, %mac, ?refusal, "cannot pin the gateway's address");
            }
        }
    }
}

/// Ports and uplinks are numbered together; the configuration's limits keep the number in range.
fn port_id(index: usize) -> PortId {
    u16::try_from(index).map_or(PortId::MAX, PortId)
}

/// Numbers that guests cannot guess, so that they cannot make addresses collide in the table.
fn hash_seed() -> [u64; 2] {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new();
    [random.hash_one(0), random.hash_one(1)]
}
