//! What a broker gives a data plane before the start.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use anyhow::{Context, bail};
use floodway_process::channel::Received;
use floodway_process::fault::{self, Point};
use floodway_process::message::{self, Setting, StatePart, ToDataPlane, VERSION};
use floodway_process::moves::Moves;
use floodway_process::sealed;
use floodway_process::upgrade::Programs;
use floodway_switch::config::UplinkKind;
use floodway_switch::kept::addresses::KeptAddresses;
use floodway_switch::kept::counters::{KeptCounters, Places};
use floodway_switch::kept::journal::KeptJournal;
use floodway_switch::kept::pairs;
use floodway_switch::kept::turns::KeptTurns;
use floodway_switch::state::ports::Capacity;
use floodway_switch::stats::traffic_matrix::TrafficMatrix;
use floodway_switch::switch::BrokerPort;
use floodway_switch::uplink::Device;
use floodway_switch::{Config, Switch};

use super::MainChannel;
use super::memory::Fetched;

/// What came before the start.
#[derive(Default)]
pub struct Equipment {
    /// The text of the configuration.
    pub configuration: String,
    /// Where operators connect.
    pub control: Option<OwnedFd>,
    /// Numbers that ports and uplinks can have.
    pub numbers: Capacity,
    /// Numbers of uplinks, in the order of the configuration.
    pub uplinks: Vec<u16>,
    /// Ports, by index.
    pub ports: BTreeMap<usize, BrokerPort>,
    /// Devices of uplinks, by number; those that could not be opened are missing.
    pub devices: BTreeMap<u16, Device>,
    /// Memory that outlives data planes, by part.
    pub state: Vec<(StatePart, OwnedFd)>,
    /// Connections that another data plane has handed over: a file and its length.
    pub flows: Option<(OwnedFd, u64)>,
    /// What earlier data planes have left.
    pub past: Past,
    /// Another data plane runs, which has so many bytes of heap, and will hand over.
    pub stands_by: Option<u64>,
    /// What is to be given back of memory for taking over.
    pub fetched: Option<Fetched>,
}

/// State of earlier data planes, as far as it can be used.
pub struct Kept {
    /// What ports and uplinks have counted.
    pub counters: Option<KeptCounters>,
    /// Who has sent to whom.
    pub pairs: Option<TrafficMatrix>,
    /// Where learned addresses are.
    pub addresses: Option<KeptAddresses>,
    /// Whose turn it is.
    pub turns: Option<KeptTurns>,
}

impl Kept {
    /// Opens what a switch with these places and so many workers can use. The switch runs without the rest.
    pub fn open(state: Vec<(StatePart, OwnedFd)>, places: Places, workers: usize) -> Self {
        let mut kept = Self { counters: None, pairs: None, addresses: None, turns: None };
        for (part, file) in state {
            let opened = match part {
                StatePart::Counters => {
                    KeptCounters::open(&file, places).map(|counters| kept.counters = Some(counters))
                }
                StatePart::Pairs => {
                    pairs::open(&file, places).map(|pairs| kept.pairs = Some(pairs))
                }
                StatePart::MacTable => KeptAddresses::open(&file, places)
                    .map(|addresses| kept.addresses = Some(addresses)),
                // They are read once, and not kept.
                StatePart::Flows => Ok(()),
                StatePart::Turns => {
                    KeptTurns::open(&file, workers).map(|turns| kept.turns = Some(turns))
                }
            };
            if let Err(error) = opened {
                tracing::error!(?part, %error, "state ends with this data plane");
            }
        }
        kept
    }
}

/// What is known from before the start, and shown or done again.
#[derive(Default)]
pub struct Past {
    /// Settings that operators made.
    settings: Vec<Setting>,
    /// How the broker fares with vCPUs, by port: threads that have the policy's slice, and why others do not.
    vcpus: BTreeMap<usize, (u32, Option<String>)>,
    /// Process id of the broker.
    broker: u32,
    /// Data planes that ended before this one.
    restarts: u32,
    /// Why the last one did.
    last_end: Option<String>,
    /// Which programs run.
    programs: Programs,
    /// Connections that follow VMs to other hosts, if they do.
    moves: Option<Moves>,
}

impl Past {
    /// Brings `switch` to where the last one was, which has ended by itself, or else is being replaced.
    pub fn hand_over(self, switch: &Switch, has_ended: bool) {
        switch.note_predecessors(self.broker, self.restarts, self.last_end, has_ended);
        switch.note_programs(&self.programs);
        if let Some(moves) = self.moves {
            switch.note_moves(moves);
        }
        for (port, (threads, problem)) in self.vcpus {
            switch.note_vcpus(port, threads, problem);
        }
        for Setting { key, value } in self.settings {
            if let Err(error) = switch.apply_setting(&key, &value) {
                tracing::warn!(%error, "a setting of before is not made again");
            }
        }
    }
}

impl Equipment {
    /// Takes what the broker gives, up to the start, or until it is to stand by.
    ///
    /// # Errors
    /// The broker is of another version, or has ended.
    pub fn receive(channel: &MainChannel) -> anyhow::Result<Self> {
        let mut equipment = Self::default();
        equipment.past.broker = std::os::unix::process::parent_id();
        equipment.receive_rest(channel)?;
        Ok(equipment)
    }

    /// Takes the rest, after it was to stand by.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_rest(&mut self, channel: &MainChannel) -> anyhow::Result<()> {
        loop {
            match channel.recv()? {
                Received::Message(ToDataPlane::Start, _) => {
                    fault::pass(Point::PlaneEquipped);
                    return Ok(());
                }
                Received::Message(ToDataPlane::StandBy { heap }, _) => {
                    self.stands_by = Some(heap);
                    return Ok(());
                }
                Received::Message(message, descriptors) => self.take(message, descriptors)?,
                Received::Nothing => {}
                Received::Closed => bail!("the broker has ended"),
            }
        }
    }

    /// Checks that there is a channel for each port of `config`, and a number for each uplink.
    ///
    /// # Errors
    /// There is not.
    pub fn check(&self, config: &Config) -> anyhow::Result<()> {
        let (ports, uplinks) = (self.ports.len(), self.uplinks.len());
        if ports != config.ports.len() {
            bail!("the broker sends {ports} channels for {} ports", config.ports.len());
        }
        if uplinks != config.uplinks.len() {
            bail!("the broker sends {uplinks} numbers for {} uplinks", config.uplinks.len());
        }
        Ok(())
    }

    fn take(&mut self, message: ToDataPlane, mut descriptors: Vec<OwnedFd>) -> anyhow::Result<()> {
        match message {
            ToDataPlane::Hello { version, .. } if version != VERSION => {
                bail!("the broker speaks version {version}, and this is version {VERSION}");
            }
            ToDataPlane::Hello { restarts, last_end, .. } => {
                (self.past.restarts, self.past.last_end) = (restarts, last_end);
            }
            ToDataPlane::Configuration { bytes, numbers, uplink_numbers, uplinks } => {
                self.configuration = text(&mut descriptors, bytes)?;
                self.numbers = Capacity { ports: numbers.into(), uplinks: uplink_numbers.into() };
                self.uplinks = uplinks;
            }
            ToDataPlane::Control => self.control = Some(last(&mut descriptors)?),
            ToDataPlane::Port { index, number, instance, journal } => {
                let port = port((number, instance, journal), &mut descriptors)?;
                self.ports.insert(index.into(), port);
            }
            ToDataPlane::Uplink { number, kind, link_rate } => {
                self.devices.insert(number, device(kind, descriptors, link_rate)?);
            }
            ToDataPlane::State { part: StatePart::Flows, bytes } => {
                self.flows = Some((last(&mut descriptors)?, bytes));
            }
            ToDataPlane::State { part, .. } => self.state.push((part, last(&mut descriptors)?)),
            ToDataPlane::Setting(setting) => self.past.settings.push(setting),
            ToDataPlane::Vcpus { port, threads, problem } => {
                self.past.vcpus.insert(usize::from(port), (threads, problem));
            }
            ToDataPlane::Programs(programs) => self.past.programs = programs,
            ToDataPlane::Moves(moves) => self.past.moves = Some(moves),
            ToDataPlane::Stop => bail!("the broker stops"),
            other => bail!("the broker sends what this version cannot use: {other:?}"),
        }
        Ok(())
    }
}

/// The last descriptor of a message that has one.
///
/// # Errors
/// It came without.
pub fn last(descriptors: &mut Vec<OwnedFd>) -> anyhow::Result<OwnedFd> {
    descriptors.pop().context("a message came without its descriptor")
}

/// The text of a configuration.
///
/// # Errors
/// It came without its descriptor, or is none.
pub fn text(descriptors: &mut Vec<OwnedFd>, bytes: u32) -> anyhow::Result<String> {
    let text = sealed::read(last(descriptors)?, usize::try_from(bytes)?)?;
    Ok(String::from_utf8(text)?)
}

/// A port whose socket the broker holds.
///
/// # Errors
/// It came without its channel or its journal.
pub fn port(
    (number, instance, budget): (u16, u64, u32),
    descriptors: &mut Vec<OwnedFd>,
) -> anyhow::Result<BrokerPort> {
    let journal = KeptJournal::open(&last(descriptors)?, budget)
        .inspect_err(|error| {
            tracing::error!(number, %error, "what is acknowledged for a guest ends with this data plane");
        })
        .ok();
    Ok(BrokerPort { number: number.into(), instance, channel: last(descriptors)?, journal })
}

/// An uplink's device that the broker has opened.
///
/// # Errors
/// It has other descriptors than its kind.
pub fn device(
    kind: message::UplinkKind,
    descriptors: Vec<OwnedFd>,
    link_rate: Option<u64>,
) -> anyhow::Result<Device> {
    let kind = match kind {
        message::UplinkKind::Tap => UplinkKind::Tap,
        message::UplinkKind::Packet => UplinkKind::Packet,
    };
    Device::from_descriptors(kind, descriptors, link_rate)
        .context("an uplink came with other descriptors than its kind has")
}
