//! `floodway data-plane`: the switch behind a broker, which is at the other end of standard input.
//!
//! What it starts with comes from the broker ([`Equipment`]). From then on the main thread speaks with the broker, and all others move frames: a request of theirs
//! rings a bell, and they never wait for the answer.

mod changes;
mod equipment;
mod memory;
mod preparation;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use floodway_process::channel::{Channel, Received};
use floodway_process::fault::{self, Point};
use floodway_process::message::{Confinement, FromDataPlane, Setting, ToDataPlane, VERSION};
use floodway_process::poll::wait_for;
use floodway_process::sandbox::{self, User};
use floodway_switch::api::status::Sandbox;
use floodway_switch::control::{ControlListener, ControlServer};
use floodway_switch::kept::addresses::KeptAddresses;
use floodway_switch::kept::counters::Places;
use floodway_switch::kept::flows::{self, Arrived};
use floodway_switch::state::ports::Capacity;
use floodway_switch::state::shared::SettingsKeeper;
use floodway_switch::state::supply::{Bell, DeviceSupply};
use floodway_switch::switch::{self, BrokerPort, BrokerUplink, Brokered, MoveStep};
use floodway_switch::uplink::Device;
use floodway_switch::{Config, Switch};
use rustix::process::setpriority_process;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::DataPlaneArgs;
use crate::run::{end_process_on_panic, start_log, summary};
use changes::Changes;
use equipment::{Equipment, Kept, device, last, port, text};
use memory::Fetched;
use preparation::Preparation;

/// Between two signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// Every so many signs there is a check that all locks are free.
const BEATS_PER_CHECK: u64 = 5;

/// After so many, one that has taken over needs no more memory for that.
const BEATS_AS_SUCCESSOR: u64 = 3;

/// The lowest priority of an ordinary thread.
const NICEST: i32 = 19;

type MainChannel = Channel<FromDataPlane, ToDataPlane>;

/// Moves frames until the broker says stop, or is gone.
///
/// # Errors
/// Standard input is no channel of a broker of this version, or the switch does not start.
pub fn run(args: &DataPlaneArgs) -> anyhow::Result<()> {
    // It was started by a path that is no name.
    rustix::thread::set_name(c"floodway")?;
    // The broker says when to stop, also when a signal comes to the whole group.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    // Who has made the channel is who the switch belongs to.
    let owner = rustix::net::sockopt::socket_peercred(&stdin)?.uid.as_raw();
    let channel = MainChannel::from(stdin);
    channel.set_time_limit(Some(BEAT))?;
    let channel = Arc::new(channel);
    let mut equipment = Equipment::receive(&channel)?;
    let config = Config::parse(&equipment.configuration, &args.name)?;
    switch::prepare_confined(&config)?;
    let colours = io::stderr().is_terminal();
    let confinement = confine(args)?;
    let _flush = start_log(&args.log, colours)?;
    end_process_on_panic();
    if let Some(bytes) = equipment.stands_by {
        equipment.fetched = Some(memory::fetch(bytes));
        channel.send(&FromDataPlane::StandsBy { version: VERSION }, &[])?;
        equipment.receive_rest(&channel)?;
    }
    serve(args, &config, equipment, (channel, owner), confinement)
}

/// Moves frames, with `equipment`, until the broker at the other end of `channel` says what is to come then; the switch belongs to `owner`.
fn serve(
    args: &DataPlaneArgs,
    config: &Config,
    equipment: Equipment,
    (channel, owner): (Arc<MainChannel>, u32),
    confinement: Confinement,
) -> anyhow::Result<()> {
    equipment.check(config)?;
    tracing::debug!("everything has come");
    let bell = Arc::new(Bell::new()?);
    let Equipment { control, numbers, ports, uplinks, mut devices, state, .. } = equipment;
    let supply = |number: u16| supply(number.into(), devices.remove(&number), &bell);
    let uplinks: Vec<_> = uplinks.into_iter().map(supply).collect();
    let listener = listener(control, &config.control)?;
    let places = Places { ports: numbers.ports, uplinks: numbers.uplinks };
    let kept = Kept::open(state, places, config.workers.len());
    let (mut brokered, addresses) = brokered(kept, ports, numbers, uplinks.clone());
    brokered.awaits_guests = equipment.stands_by.is_some();
    brokered.arrived = arrived(equipment.flows);
    tracing::debug!("connections are read");
    let switch = Arc::new(Switch::start_behind_broker(config, brokered)?);
    tracing::debug!("workers and ports run");
    switch.note_sandbox(sandbox_of(confinement));
    equipment.past.hand_over(&switch, equipment.stands_by.is_none());
    switch.keep_settings(settings_keeper(Arc::clone(&channel)));
    switch.speak_of_moves(Arc::clone(&bell));
    let control = ControlServer::start_for(listener, switch.operator(), owner)?;
    channel.send(&ready(&switch, confinement), &[])?;
    fault::pass(Point::ReadySent);
    tracing::info!(control = %config.control.display(), "running with {}", summary(config));
    let changes = Changes::new(
        Arc::clone(&switch),
        Arc::clone(&channel),
        args.name.clone(),
        Arc::clone(&bell),
    );
    let devices = uplinks.into_iter().map(|uplink| (uplink.number, uplink.device)).collect();
    let mut serving = Serving {
        switch: &switch,
        channel: Arc::clone(&channel),
        bell,
        devices,
        addresses,
        changes,
        is_heard: true,
        fetched: equipment.fetched,
        preparation: None,
    };
    let end = serving.run()?;
    let (addresses, preparation) = (serving.addresses.take(), serving.preparation.take());
    drop(serving);
    if end == Ending::HandOver {
        return hand_over(switch, control, addresses, preparation, &channel);
    }
    // Before the switch lets go of anything: no request is under way then.
    drop(control);
    tracing::info!("stopping");
    // A change that is under way has its own reference, and the process ends before it.
    drop(switch);
    Ok(())
}

/// Where operators connect. Nobody closes it before the process ends: a switch that begins anew waits until nobody listens, and so until this process has stopped writing.
fn listener(control: Option<OwnedFd>, path: &Path) -> anyhow::Result<ControlListener> {
    let Some(control) = control else { bail!("the broker sends no control socket") };
    std::mem::forget(control.try_clone()?);
    Ok(ControlListener::from_broker(control, path))
}

/// The first message of one that serves.
fn ready(switch: &Switch, confinement: Confinement) -> FromDataPlane {
    let carried = switch.handed_over().online;
    FromDataPlane::Ready { version: VERSION, confinement, carried }
}

/// Connections that another data plane has left in `file`, if it has, by the instances of ports.
fn arrived(file: Option<(OwnedFd, u64)>) -> BTreeMap<u64, Arrived> {
    let Some((file, bytes)) = file else { return BTreeMap::new() };
    flows::read(file, bytes).unwrap_or_else(|error| {
        tracing::warn!(%error, "connections of before go off the offload");
        BTreeMap::new()
    })
}

/// How `confinement` is called in the status.
fn sandbox_of(confinement: Confinement) -> Sandbox {
    match confinement {
        Confinement::Full => Sandbox::Full,
        Confinement::Partial => Sandbox::Partial,
        Confinement::Off => Sandbox::Off,
    }
}

/// Lets go of everything, and tells the broker.
fn hand_over(
    switch: Arc<Switch>,
    mut control: ControlServer,
    mut addresses: Option<KeptAddresses>,
    preparation: Option<Preparation>,
    channel: &MainChannel,
) -> anyhow::Result<()> {
    tracing::debug!("handing over");
    control.begin_stop();
    let mut switch = own(switch)?;
    switch.begin_hand_over();
    // Before workers end: no request is under way then.
    drop(control);
    let (online, flows) = preparation.map(Preparation::end).unwrap_or_default();
    switch.hand_over(addresses.as_mut(), flows);
    tracing::debug!("connections are written");
    // What ports' threads have said last: whoever has taken connections in has said so.
    for message in switch.take_said() {
        channel.send(&message, &[])?;
    }
    channel.send(&FromDataPlane::HandedOver { online }, &[])?;
    // What is left is to give memory back. The next one needs the CPU more: frames stand still. If that is refused, it takes turns with it.
    let _ = setpriority_process(None, NICEST);
    tracing::info!(online, "handed over");
    Ok(())
}

/// The switch, once the thread of a change that was made has let go of it.
fn own(mut switch: Arc<Switch>) -> anyhow::Result<Switch> {
    let deadline = Instant::now() + BEAT;
    loop {
        match Arc::try_unwrap(switch) {
            Ok(switch) => return Ok(switch),
            // The process ends, and another one follows all the same.
            Err(_) if Instant::now() >= deadline => bail!("a change is under way"),
            Err(shared) => switch = shared,
        }
        thread::sleep(preparation::LOOK);
    }
}

/// The uplink with this number, whose device may be yet to come.
fn supply(number: usize, device: Option<Device>, bell: &Arc<Bell>) -> BrokerUplink {
    let device = Arc::new(DeviceSupply::new(device, Arc::clone(bell)));
    BrokerUplink { number, device }
}

/// What a switch starts with, whose state is where earlier data planes have left it, and where learned addresses are saved.
fn brokered(
    kept: Kept,
    ports: BTreeMap<usize, BrokerPort>,
    numbers: Capacity,
    uplinks: Vec<BrokerUplink>,
) -> (Brokered, Option<KeptAddresses>) {
    let Kept { counters, pairs, addresses: kept, turns } = kept;
    let seats: BTreeMap<_, _> = ports.values().map(|port| (port.number, port.instance)).collect();
    let is_at = |number: usize| seats.get(&number).copied();
    let addresses = kept.as_ref().map(|kept| kept.restore(is_at)).unwrap_or_default();
    if let Some(pairs) = &pairs {
        pairs.restore(is_at);
    }
    let (awaits_guests, arrived) = (false, BTreeMap::new());
    let brokered = Brokered {
        ports,
        numbers,
        uplinks,
        counters,
        pairs,
        addresses,
        turns,
        arrived,
        awaits_guests,
    };
    (brokered, kept)
}

/// Sends settings to the broker: what is in its queue outlives this process.
fn settings_keeper(channel: Arc<MainChannel>) -> SettingsKeeper {
    Box::new(move |key, value| {
        let setting = Setting { key: key.to_owned(), value };
        if let Err(error) = channel.send(&FromDataPlane::Remember(setting), &[]) {
            tracing::error!(key, %error, "a setting ends with this process");
        }
    })
}

/// Gives up what the options do not say to keep. There is one thread so far.
fn confine(args: &DataPlaneArgs) -> anyhow::Result<Confinement> {
    if args.no_sandbox {
        return Ok(Confinement::Off);
    }
    let user = args.uid.zip(args.gid).map(|(uid, gid)| User { uid, gid });
    sandbox::enter(user).map_err(|error| anyhow!("no sandbox: {error} (--no-sandbox does without)"))
}

/// What the main thread needs while the switch runs.
struct Serving<'a> {
    switch: &'a Switch,
    channel: Arc<MainChannel>,
    bell: Arc<Bell>,
    /// Where devices of uplinks come from, by their numbers.
    devices: BTreeMap<usize, Arc<DeviceSupply>>,
    addresses: Option<KeptAddresses>,
    changes: Changes,
    /// There is a broker to hear signs of life.
    is_heard: bool,
    /// What it has not given back of the memory for taking over, if it has.
    fetched: Option<Fetched>,
    /// What is done before another data plane takes over.
    preparation: Option<Preparation>,
}

/// Why a data plane ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The switch stops.
    Stop,
    /// Another data plane takes its place.
    HandOver,
}

impl Serving<'_> {
    /// Gives signs of life until the broker says stop or another data plane takes over, or the broker is gone.
    fn run(&mut self) -> anyhow::Result<Ending> {
        let mut beat = Instant::now();
        let mut count = 0;
        loop {
            let now = Instant::now();
            if now >= beat {
                (beat, count) = (now + BEAT, count + 1);
                if count % BEATS_PER_CHECK == 0 {
                    // Takes the lock of every queue: one that is never given back ends the signs.
                    self.switch.status_source().status();
                }
                // What nobody takes would fill the channel.
                if self.is_heard {
                    self.channel.send(&FromDataPlane::Alive { count }, &[])?;
                }
                if let Some(addresses) = &mut self.addresses {
                    self.switch.save_addresses(addresses);
                }
                if count >= BEATS_AS_SUCCESSOR {
                    self.fetched.take_if(|fetched| !fetched.give_back());
                }
            }
            let prepares = self.preparation.as_ref().is_some_and(Preparation::is_waited_for);
            let left = if prepares { preparation::LOOK } else { beat - now };
            wait_for(&[self.channel.as_fd(), self.bell.as_fd()], Some(left));
            if self.preparation.as_mut().is_some_and(Preparation::is_over_now) {
                self.channel.send(&FromDataPlane::HandOverPrepared, &[])?;
            }
            self.pass_requests_on()?;
            self.changes.check()?;
            loop {
                match self.channel.try_recv()? {
                    Received::Nothing => break,
                    Received::Closed | Received::Message(ToDataPlane::Stop, _) => {
                        return Ok(Ending::Stop);
                    }
                    Received::Message(ToDataPlane::HandOver, _) => return Ok(Ending::HandOver),
                    Received::Message(message, descriptors) => {
                        self.on_message(message, descriptors)?;
                    }
                }
            }
        }
    }

    /// The uplinks of a change that are not there yet, by their positions, with the devices that have come for them; `numbers` are those of all. Lets go of what
    /// belongs to uplinks that are neither.
    fn new_uplinks(&mut self, numbers: &[u16]) -> BTreeMap<usize, BrokerUplink> {
        let switch = self.switch;
        let numbers: Vec<_> = numbers.iter().map(|&number| usize::from(number)).collect();
        self.devices.retain(|number, _| switch.has_uplink(*number));
        let mut new = BTreeMap::new();
        for (index, &number) in numbers.iter().enumerate() {
            if !switch.has_uplink(number) {
                let uplink = supply(number, self.changes.take_device(number), &self.bell);
                self.devices.insert(number, Arc::clone(&uplink.device));
                new.insert(index, uplink);
            }
        }
        new
    }

    /// Asks the broker for what workers want.
    fn pass_requests_on(&self) -> anyhow::Result<()> {
        self.bell.silence();
        for (number, supply) in &self.devices {
            if supply.take_request() {
                let number = u16::try_from(*number)?;
                self.channel.send(&FromDataPlane::Reopen { number }, &[])?;
            }
        }
        for message in self.switch.take_said() {
            if self.is_heard {
                self.channel.send(&message, &[])?;
            }
        }
        Ok(())
    }

    fn cancel_preparation(&mut self) {
        if let Some(preparation) = self.preparation.take() {
            preparation.cancel(self.switch);
        }
    }

    fn on_message(
        &mut self,
        message: ToDataPlane,
        mut descriptors: Vec<OwnedFd>,
    ) -> anyhow::Result<()> {
        match message {
            ToDataPlane::Uplink { number, kind, link_rate } => {
                let (number, device) = (number.into(), device(kind, descriptors, link_rate)?);
                match self.devices.get(&number).filter(|_| self.switch.has_uplink(number)) {
                    Some(supply) => supply.put(device),
                    None => self.changes.add_device(number, device),
                }
            }
            ToDataPlane::PrepareHandOver { flows, bytes } => {
                let file = last(&mut descriptors)?;
                self.preparation = Some(Preparation::begin(self.switch, flows, file, bytes));
            }
            ToDataPlane::CancelHandOver => self.cancel_preparation(),
            ToDataPlane::Programs(programs) => self.switch.note_programs(&programs),
            ToDataPlane::Moves(moves) => self.switch.note_moves(moves),
            ToDataPlane::Broker { pid } => {
                // An upgrade ends with the broker that has begun it, and so does a move.
                self.cancel_preparation();
                self.switch.end_moves();
                self.is_heard = pid != 0;
                self.switch.note_broker(pid);
                match pid {
                    0 => tracing::warn!(
                        "the broker has died; frames go on, and the next one is waited for"
                    ),
                    pid => tracing::info!(pid, "there is another broker"),
                }
            }
            ToDataPlane::Vcpus { port, threads, problem } => {
                self.switch.note_vcpus(usize::from(port), threads, problem);
            }
            ToDataPlane::Port { index, number, instance, journal } => {
                self.changes.add(index, port((number, instance, journal), &mut descriptors)?);
            }
            ToDataPlane::Change { number, bytes, uplinks } => {
                let text = text(&mut descriptors, bytes)?;
                let new = self.new_uplinks(&uplinks);
                self.changes.begin(number, &text, new)?;
            }
            other => self.on_move(other, descriptors)?,
        }
        Ok(())
    }

    /// What the broker has decided of a guest that moves to another host or from one.
    fn on_move(&self, message: ToDataPlane, mut descriptors: Vec<OwnedFd>) -> anyhow::Result<()> {
        let (port, step) = match message {
            ToDataPlane::Export { port, flows, bytes } => {
                (port, MoveStep::Export { flows, file: last(&mut descriptors)?, bytes })
            }
            ToDataPlane::Import { port, bytes } => {
                (port, MoveStep::Import { file: last(&mut descriptors)?, bytes })
            }
            ToDataPlane::StayBehind { port } => (port, MoveStep::StayBehind),
            ToDataPlane::Released { port } => (port, MoveStep::Released),
            ToDataPlane::Arriving { port, arriving } => (port, MoveStep::Arriving(arriving)),
            other => bail!("the broker sends what this version cannot use: {other:?}"),
        };
        self.switch.follow_move(port, step);
        Ok(())
    }
}
