//! The switch's configuration as the broker holds it: its ports' sockets and its uplinks' devices, and changes of them while the switch runs.
//!
//! # Theory of operation
//! **Goal**: a change asked for by an operator is made in both processes or in none, and a data plane has no part in what is opened for it.
//!
//! One change at a time is made, in this order:
//! 1. It is planned against the configuration that runs, with the settings that were made at run time.
//! 2. Everything that can fail is done: limits, numbers, accounts, sockets of new ports, devices of new uplinks, threads. If one of these fails, what was opened is closed again, and
//!    nothing else was touched.
//! 3. The broker's loop puts the new configuration in force and has the data plane make it ([`Changes::make`]). If that refuses, all is as in 2.
//! 4. Ports that are gone end: front-ends are disconnected, and what was kept of them is let go. Their sockets' files go last.
//! 5. vCPUs of other VMs are looked after, if there are such.
//!
//! **Sockets** are kept by path. A port that changes, or that comes where another goes, takes over the socket that is there, so that its front-end finds it at
//! every moment; only rights change, if they do.
//!
//! **Numbers** tell ports apart in the data plane's tables, and are used again as late as possible. Instances tell whoever has a number from whoever had it before.
//!
//! **Invariants**: sockets that listen are those of the configuration in force, or of a change under way; a port whose instance stays has not changed
//! but for what takes effect at once.

pub mod resume;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, anyhow};
use floodway_broker::descriptors;
use floodway_broker::layout::{Changes, Layout, Place};
use floodway_broker::notices::Notices;
use floodway_broker::port::{Past, PortFault, PortThread, Source};
use floodway_broker::record::Limits;
use floodway_broker::settings::Settings;
use floodway_broker::store::Store;
use floodway_broker::uplink::UplinkPlace;
use floodway_switch::Config;
use floodway_switch::api::control::ControlError;
use floodway_switch::api::plan::{Action, Effect, Plan};
use floodway_switch::api::settings::{adopt, settled};
use floodway_switch::config::{PortConfig, SocketMode};
use floodway_switch::host::descriptors as data_plane_descriptors;
use floodway_switch::host::socket_access::{self, Access};
use floodway_switch::host::socket_file::{self, SocketFile};
use floodway_switch::operator::ConfigApi;
use floodway_switch::runtime::vcpu::SliceController;

use super::journals::{self, Journals};
use super::{migration, uplinks, vcpus};
use resume::Left;

/// How many numbers there are.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// For ports.
    pub ports: u16,
    /// For uplinks.
    pub uplinks: u16,
}

/// The ports and uplinks of a switch. See the module's theory of operation.
pub struct Ports {
    notices: Arc<Notices>,
    settings: Arc<Settings>,
    changes: Arc<Changes>,
    faults: Sender<PortFault>,
    /// Numbers that ports can have.
    numbers: u16,
    /// Where ports leave what they hold.
    store: Store,
    state: Mutex<State>,
}

/// What changes.
struct State {
    config: Config,
    layout: Layout,
    sockets: Sockets,
    /// Numbers of no port; the one that has been free for longest is first.
    free: VecDeque<u16>,
    /// Numbers of no uplink, in the same order.
    free_uplinks: VecDeque<u16>,
    /// The last instance that was given.
    instances: u64,
    /// Makes those of new ports.
    journals: Journals,
    vcpus: Option<SliceController>,
}

/// Sockets of ports in server mode, by path.
type Sockets = BTreeMap<PathBuf, Socket>;

struct Socket {
    listener: UnixListener,
    file: SocketFile,
    access: Access,
}

/// What a change needs, all of it.
struct Prepared {
    layout: Layout,
    /// Sockets that were not there.
    sockets: Sockets,
    /// Rights of sockets that stay, as they were before.
    rights: Vec<(PathBuf, Access)>,
    free: VecDeque<u16>,
    free_uplinks: VecDeque<u16>,
    instances: u64,
}

/// Names of ports and uplinks in a plan.
struct Names<'a> {
    /// Uplinks that come, or that others take the place of.
    uplinks: BTreeSet<&'a str>,
    /// Those that come, or come back as others.
    new: BTreeSet<&'a str>,
    /// Those that go, or come back as others.
    gone: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(plan: &'a Plan) -> Self {
        let changed = || plan.ports(Action::Change, Effect::Reconnect);
        let new = plan.ports(Action::Add, Effect::Live).chain(changed());
        let gone = plan.ports(Action::Remove, Effect::Reconnect).chain(changed());
        let uplinks = plan.uplinks(Action::Add).chain(plan.uplinks(Action::Change)).collect();
        Self { uplinks, new: new.collect(), gone: gone.collect() }
    }
}

impl Ports {
    /// Opens the ports of `config`, of which `text` is the text and `uplinks` are the uplinks; `numbers` is how many there can be. What data planes do wrong goes to `faults`. What a broker that has
    /// died has left of them, if one has, is gone on with; otherwise what `journals` has.
    ///
    /// # Errors
    /// A socket or thread cannot be had.
    pub fn open(
        config: Config,
        text: &str,
        (numbers, uplinks): (Numbers, Vec<UplinkPlace>),
        (faults, store): (Sender<PortFault>, Store),
        (left, journals): (Option<Left>, Journals),
    ) -> anyhow::Result<Self> {
        let limits: Vec<_> = config.ports.iter().map(limits).collect();
        descriptors::reserve(&limits, config.uplinks.len(), config.migration.is_some())?;
        let ports = Self {
            notices: Arc::new(Notices::new()?),
            settings: Arc::default(),
            changes: Arc::new(Changes::new()?),
            faults,
            numbers: numbers.ports,
            store,
            state: Mutex::new(State {
                config: Config { ports: Vec::new(), ..config.clone() },
                free_uplinks: (0..numbers.uplinks)
                    .filter(|number| uplinks.iter().all(|place| place.number != *number))
                    .collect(),
                layout: Layout { configuration: text.into(), ports: Vec::new(), uplinks },
                sockets: Sockets::new(),
                free: (0..numbers.ports).collect(),
                instances: 0,
                journals,
                vcpus: None,
            }),
        };
        let mut state = ports.lock();
        let new = config.ports.iter().map(|port| port.name.as_str()).collect();
        let names = Names { new, gone: BTreeSet::new(), uplinks: BTreeSet::new() };
        let prepared = match left {
            Some(left) => ports.resume(&mut state, &config, text, left)?,
            None => ports.prepare(&mut state, &config, text, &names)?,
        };
        Self::take_over(&mut state, config, prepared);
        let State { config, layout, vcpus, .. } = &mut *state;
        *vcpus = vcpus::start(config, layout, &ports.notices)?;
        drop(state);
        Ok(ports)
    }

    /// What data planes serve at first.
    pub fn layout(&self) -> Layout {
        self.lock().layout.clone()
    }

    /// Notices for data planes, sent when they change.
    pub fn notices(&self) -> Arc<Notices> {
        Arc::clone(&self.notices)
    }

    /// Settings that operators made at run time.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings)
    }

    /// Where changes are left for the broker.
    pub fn changes(&self) -> Arc<Changes> {
        Arc::clone(&self.changes)
    }

    /// Leaves nothing of what was acknowledged in another's name with the service manager.
    pub fn release_journals(&self) {
        self.lock().journals.release();
    }

    /// Ends all ports. Their sockets' files go last: nobody is to connect to a port that is not served.
    pub fn close(&self) {
        let mut state = self.lock();
        state.vcpus = None;
        state.layout.ports.clear();
        state.layout.uplinks.clear();
        state.sockets.clear();
    }

    /// The configuration that runs, with the settings that were made at run time.
    fn current(&self, state: &State) -> Config {
        let mut config = state.config.clone();
        for setting in self.settings.all() {
            if let Err(error) = adopt(&mut config, &setting.key, &setting.value) {
                tracing::debug!(%error, "a setting is no part of the configuration");
            }
        }
        config
    }

    fn make(&self, state: &mut State, wanted: Config, plan: &Plan) -> anyhow::Result<()> {
        let names = Names::of(plan);
        let gone = state.config.ports.iter().filter(|port| names.gone.contains(&*port.name));
        // Those that go are there until the others are.
        let limits: Vec<_> = wanted.ports.iter().chain(gone).map(limits).collect();
        let uplinks = wanted.uplinks.len() + names.uplinks.len();
        descriptors::reserve(&limits, uplinks, wanted.migration.is_some())?;
        data_plane_descriptors::check(&wanted)?;
        let text = toml::to_string(&wanted)?;
        let prepared = self.prepare(state, &wanted, &text, &names)?;
        let settled = settled(&state.config, names.gone.iter().copied());
        if let Err(error) = self.changes.make(prepared.layout.clone(), settled) {
            set_back(&mut state.sockets, prepared.rights);
            return Err(error.into());
        }
        Self::take_over(state, wanted, prepared);
        Ok(())
    }

    /// Makes what the next layout needs beside what is there.
    fn prepare(
        &self,
        state: &mut State,
        wanted: &Config,
        text: &str,
        names: &Names<'_>,
    ) -> anyhow::Result<Prepared> {
        let (kept, gone): (Vec<_>, Vec<_>) =
            state.named_places().partition(|(name, _)| !names.gone.contains(name));
        let gone = gone.iter().map(|(_, place)| place.number);
        let Some((numbers, free)) = give_numbers(&state.free, gone, names.new.len()) else {
            let most = self.numbers;
            return Err(anyhow!("{most} ports are the most without a restart; restart the switch"));
        };
        let kept: BTreeMap<_, _> = kept.into_iter().collect();
        let mut free_uplinks = state.free_uplinks.clone();
        let before = (&state.config, &*state.layout.uplinks);
        let uplinks = uplinks::next(before, wanted, &names.uplinks, &mut free_uplinks)?;
        let is_there = |number: u16| uplinks.iter().any(|place| place.number == number);
        let gone = state.layout.uplinks.iter().map(|place| place.number);
        free_uplinks.extend(gone.filter(|&number| !is_there(number)));
        let sockets = open_sockets(&state.sockets, wanted, names)?;
        let mut instances = state.instances;
        let (mut numbers, mut ports) = (numbers.into_iter(), Vec::new());
        for port in &wanted.ports {
            let place = match kept.get(port.name.as_str()) {
                Some(&place) => place.clone(),
                None => {
                    instances += 1;
                    let number = numbers.next().context("a number for each port")?;
                    let past = Past::new(self.store.clone(), instances, None);
                    let thread = self.start(port, &state.sockets, &sockets, past)?;
                    let key = journals::key(&wanted.control, port);
                    let journal = state.journals.of(port, &key);
                    let journal = journal.with_context(|| format!("port \"{}\"", port.name))?;
                    Place {
                        number,
                        instance: instances,
                        name: port.name.clone(),
                        vm: migration::vm(port),
                        thread: Arc::new(thread),
                        journal: Arc::new(journal),
                    }
                }
            };
            ports.push(place);
        }
        let layout = Layout { configuration: text.into(), ports, uplinks };
        // Last, since it is taken back if it fails.
        let rights = set_rights(&mut state.sockets, wanted)?;
        Ok(Prepared { layout, sockets, rights, free, free_uplinks, instances })
    }

    /// The thread of a port, which takes no front-end yet.
    fn start(
        &self,
        port: &PortConfig,
        known: &Sockets,
        new: &Sockets,
        past: Past,
    ) -> anyhow::Result<PortThread> {
        let source = match port.mode {
            SocketMode::Client => {
                Source::Connect { path: port.socket.clone(), describe: socket_access::describe }
            }
            SocketMode::Server => {
                let socket = new.get(&port.socket).or_else(|| known.get(&port.socket));
                Source::Listen(socket.context("a socket for each port")?.listener.try_clone()?)
            }
        };
        Ok(PortThread::start(&port.name, source, limits(port), self.faults.clone(), past)?)
    }

    /// Takes note of what is in force, and lets go of what is not.
    fn take_over(state: &mut State, wanted: Config, prepared: Prepared) {
        let Prepared { layout, sockets, free, free_uplinks, instances, .. } = prepared;
        (state.free, state.free_uplinks, state.instances) = (free, free_uplinks, instances);
        // Front-ends of ports that are gone are disconnected here.
        state.layout = layout;
        state.sockets.extend(sockets);
        let paths: BTreeSet<_> = servers(&wanted).map(|port| &*port.socket).collect();
        state.sockets.retain(|path, _| paths.contains(&**path));
        state.config = wanted;
        let State { config, layout, journals, .. } = state;
        let keys = config.ports.iter().map(|port| journals::key(&config.control, port));
        journals.follow(keys.zip(&layout.ports));
    }

    /// Looks after vCPUs anew if there are others than `before`.
    fn look_after_vcpus(&self, state: &mut State, before: &[vcpus::Vm]) {
        let State { config, layout, vcpus, .. } = state;
        if vcpus::of(config, layout) == before {
            return;
        }
        *vcpus = None;
        // Nobody reports any more.
        before.iter().for_each(|vm| self.notices.remove(vm.number()));
        match vcpus::start(config, layout, &self.notices) {
            Ok(keeper) => *vcpus = keeper,
            Err(error) => tracing::error!(%error, "no thread looks after vCPUs"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Ports by name.
    fn named_places(&self) -> impl Iterator<Item = (&str, &Place)> {
        self.config.ports.iter().map(|port| port.name.as_str()).zip(&self.layout.ports)
    }
}

impl ConfigApi for Ports {
    fn configuration(&self) -> Result<Config, ControlError> {
        Ok(self.current(&self.lock()))
    }

    fn reconfigure(
        &self,
        edit: &dyn Fn(&Config) -> Result<Config, ControlError>,
        dry_run: bool,
    ) -> Result<Plan, ControlError> {
        let mut state = self.lock();
        let running = self.current(&state);
        let wanted = edit(&running)?;
        let plan = Plan::between(&running, &wanted);
        plan.check_fixed()?;
        if dry_run || plan.is_empty() {
            return Ok(plan);
        }
        let vms = vcpus::of(&state.config, &state.layout);
        let made = self.make(&mut state, wanted, &plan);
        let made = made.map_err(|error| ControlError::Failed(format!("{error:#}")));
        self.look_after_vcpus(&mut state, &vms);
        tracing::info!(%plan, error = made.as_ref().err().map(tracing::field::display), "reconfigured");
        made.map(|()| plan)
    }
}

/// Numbers for `new` ports, and those that are free then: what has been free for longest first, and what is free only by the change, of ports that are `gone`, if there is no
/// other. `None` if there are too few.
fn give_numbers(
    free: &VecDeque<u16>,
    gone: impl Iterator<Item = u16>,
    new: usize,
) -> Option<(VecDeque<u16>, VecDeque<u16>)> {
    let mut given: VecDeque<_> = free.iter().copied().chain(gone).collect();
    let free = (new <= given.len()).then(|| given.split_off(new))?;
    Some((given, free))
}

/// What front-ends of a port can make the broker hold.
fn limits(port: &PortConfig) -> Limits {
    Limits::of_port(2 * usize::from(port.queue_pairs))
}

fn servers(config: &Config) -> impl Iterator<Item = &PortConfig> {
    config.ports.iter().filter(|port| port.mode == SocketMode::Server)
}

/// Opens sockets that are not among the `known` ones, or whose files somebody has removed.
fn open_sockets(known: &Sockets, wanted: &Config, names: &Names<'_>) -> anyhow::Result<Sockets> {
    let mut sockets = Sockets::new();
    for port in servers(wanted).filter(|port| names.new.contains(&*port.name)) {
        if !known.get(&port.socket).is_some_and(|socket| socket.file.is_there()) {
            sockets.insert(port.socket.clone(), listen(port)?);
        }
    }
    Ok(sockets)
}

fn listen(port: &PortConfig) -> anyhow::Result<Socket> {
    let access = access(port)?;
    let bind = || -> anyhow::Result<_> {
        if let Some(directory) = port.socket.parent() {
            fs::create_dir_all(directory).context("cannot make its directory")?;
        }
        Ok(socket_file::listen(&port.socket, access)?)
    };
    let PortConfig { name, socket, .. } = port;
    let (listener, file) = bind().map_err(|error| {
        anyhow!("port \"{name}\": socket = \"{}\": {error:#}", socket.display())
    })?;
    Ok(Socket { listener, file, access })
}

fn access(port: &PortConfig) -> anyhow::Result<Access> {
    Access::resolve(&port.permissions)
        .map_err(|error| anyhow!("port \"{}\".permissions: {error}", port.name))
}

/// Gives sockets that are there the rights that `wanted` says. Returns those that they had; if one cannot have them, all are as before.
fn set_rights(sockets: &mut Sockets, wanted: &Config) -> anyhow::Result<Vec<(PathBuf, Access)>> {
    let mut before = Vec::new();
    for port in servers(wanted) {
        let Some(socket) = sockets.get_mut(&port.socket) else { continue };
        let set = access(port).and_then(|access| {
            if access == socket.access || !socket.file.is_there() {
                return Ok(());
            }
            before.push((port.socket.clone(), socket.access));
            socket.access = access;
            Ok(socket.file.set_access(access)?)
        });
        if let Err(error) = set {
            set_back(sockets, before);
            return Err(error);
        }
    }
    Ok(before)
}

/// Gives sockets the rights that they had.
fn set_back(sockets: &mut Sockets, rights: Vec<(PathBuf, Access)>) {
    for (path, access) in rights {
        let Some(socket) = sockets.get_mut(&path) else { continue };
        socket.access = access;
        if let Err(error) = socket.file.set_access(access) {
            tracing::error!(path = %path.display(), %error, "a socket keeps the rights that it was to have");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_as_late_as_possible() {
        let give = |free: &[u16], gone: &[u16], new| {
            give_numbers(&free.iter().copied().collect(), gone.iter().copied(), new)
                .map(|(given, free)| (Vec::from(given), Vec::from(free)))
        };
        assert_eq!(give(&[5, 3], &[0, 1], 1), Some((vec![5], vec![3, 0, 1])));
        assert_eq!(give(&[5, 3], &[0, 1], 3), Some((vec![5, 3, 0], vec![1])));
        assert_eq!(
            give(&[], &[0], 1),
            Some((vec![0], vec![])),
            "one that goes makes room for itself"
        );
        assert_eq!(give(&[5, 3], &[0, 1], 5), None);
        assert_eq!(give(&[5], &[], 0), Some((vec![], vec![5])));
    }
}
