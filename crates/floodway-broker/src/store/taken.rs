//! What a broker that has died has left, put in order for the next one.
//!
//! The store returns what was kept last under each key, so the parts belong together but for one case: a broker that died over a change. The data plane may have made it or not; it is
//! ended then, and the next one starts with the layout that was in force. So is one that not all ports' threads have taken up yet: it would serve the others for ever.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use floodway_process::channel::Channel;
use floodway_process::message::{FromPort, Setting, StatePart, ToPort, UplinkKind, VERSION};
use floodway_process::peer::Peer;
use floodway_process::store::{Item, KeptLayout};
use floodway_process::upgrade::Programs;

use crate::journal::Journal;
use crate::process::Process;
use crate::record::Packet;
use floodway_process::poll::is_readable;

/// What was left.
#[derive(Debug, Default)]
pub struct Taken {
    /// The control socket.
    pub control: Option<OwnedFd>,
    /// Configuration and ports.
    pub layout: Option<KeptLayout>,
    /// Devices of uplinks, by number: kind, bits per second, descriptors.
    pub uplinks: BTreeMap<u16, (UplinkKind, Option<u64>, Vec<OwnedFd>)>,
    /// State of data planes.
    pub state: Vec<(StatePart, u64, OwnedFd)>,
    /// Settings that were made at run time.
    pub settings: Vec<Setting>,
    /// Ports, by instance.
    pub ports: BTreeMap<u64, TakenPort>,
    /// The data plane that runs.
    pub data_plane: Option<TakenDataPlane>,
    /// Data planes that ended before the last one.
    pub restarts: u32,
    /// Number of the last one.
    pub number: u32,
    /// The programs that ran.
    pub programs: Programs,
    /// The broker has replaced itself, in an upgrade: nobody has died.
    pub replacing: bool,
    change: bool,
}

/// A data plane that runs.
#[derive(Debug)]
pub struct TakenDataPlane {
    pub(crate) number: u32,
    pub(crate) channel: OwnedFd,
    pub(crate) pidfd: OwnedFd,
}

/// What was left of a port.
#[derive(Debug, Default)]
pub struct TakenPort {
    /// Its journal.
    pub journal: Option<Journal>,
    pub(crate) channel: Option<Channel<ToPort, FromPort>>,
    /// Of which data plane that is.
    data_plane: u32,
    /// Number of the last connection.
    pub(crate) sessions: u32,
    pub(crate) front_end: Option<TakenFrontEnd>,
    pub(crate) busy: bool,
    entries: Vec<(u64, Packet<Arc<OwnedFd>>)>,
}

/// A front-end's connection.
#[derive(Debug)]
pub(crate) struct TakenFrontEnd {
    pub(crate) stream: OwnedFd,
    pub(crate) id: u32,
    pub(crate) number: u64,
    pub(crate) peer: Option<Peer>,
    /// The record, in the order of its entries.
    pub(crate) entries: Vec<(u64, Packet<Arc<OwnedFd>>)>,
}

impl Taken {
    /// Puts items in order.
    pub(super) fn from_items(items: Vec<(Item, Vec<OwnedFd>)>) -> Self {
        let mut taken = Self::default();
        for (item, files) in items {
            taken.take(item, files);
        }
        if (taken.change || !taken.has_all_ports())
            && let Some(data_plane) = taken.data_plane.take()
        {
            // Nobody knows how far it has come, or nobody could give it the ports that it lacks.
            drop(Process::new(data_plane.pidfd));
        }
        let lives = taken.data_plane.is_some();
        for port in taken.ports.values_mut() {
            port.settle(lives);
        }
        taken
    }

    /// The broker's end of each port's channel to the last data plane is there. The port's thread leaves it there, and may have been late.
    fn has_all_ports(&self) -> bool {
        let is_there = |port: &TakenPort| port.channel.is_some() && port.data_plane == self.number;
        let mut ports = self.layout.iter().flat_map(|layout| &layout.ports);
        ports.all(|(instance, _)| self.ports.get(instance).is_some_and(is_there))
    }

    fn take(&mut self, item: Item, mut files: Vec<OwnedFd>) {
        match item {
            Item::Store => {}
            Item::DataPlane { version, ready, restarts, number } => {
                (self.restarts, self.number) = (restarts, number);
                let (Some(pidfd), Some(channel)) = (files.pop(), files.pop()) else { return };
                if !ready || version != VERSION {
                    // This broker cannot go on with it.
                    drop(Process::new(pidfd));
                } else if !is_readable(pidfd.as_fd()) {
                    self.data_plane = Some(TakenDataPlane { number, channel, pidfd });
                }
            }
            Item::Change => self.change = true,
            Item::Programs { programs, replacing } => {
                (self.programs, self.replacing) = (programs, replacing);
            }
            Item::Control => self.control = files.pop(),
            Item::Layout { bytes } => {
                let layout = files.pop().map(|file| KeptLayout::read(file, bytes));
                self.layout = layout.and_then(Result::ok);
            }
            Item::Uplink { number, kind, link_rate } => {
                self.uplinks.insert(number, (kind, link_rate, files));
            }
            Item::State { part, bytes } => {
                self.state.extend(files.pop().map(|file| (part, bytes, file)));
            }
            Item::Setting(setting) => self.settings.push(setting),
            Item::Port { port, budget } => {
                let journal = files.pop().map(|file| Journal { file, budget });
                self.port(port).journal = journal;
            }
            Item::Channel { port, data_plane } => {
                let port = self.port(port);
                (port.channel, port.data_plane) = (files.pop().map(Channel::from), data_plane);
            }
            Item::Session { port, id, number, peer } => {
                let entries = Vec::new();
                let front_end = files.pop();
                let port = self.port(port);
                port.sessions = id;
                port.front_end =
                    front_end.map(|stream| TakenFrontEnd { stream, id, number, peer, entries });
            }
            Item::Busy { port } => self.port(port).busy = true,
            Item::Entry { port, key, bytes } => {
                let descriptors = files.into_iter().map(Arc::new).collect();
                self.port(port).entries.push((key, Packet { bytes, descriptors }));
            }
        }
    }

    fn port(&mut self, instance: u64) -> &mut TakenPort {
        self.ports.entry(instance).or_default()
    }
}

impl TakenPort {
    /// Lets go of what cannot go on: channels whose data plane has ended, and front-ends that are owed something.
    fn settle(&mut self, data_plane_lives: bool) {
        if !data_plane_lives {
            self.channel = None;
        }
        if self.busy {
            self.front_end = None;
        }
        let entries = std::mem::take(&mut self.entries);
        if let Some(front_end) = &mut self.front_end {
            front_end.entries = entries;
        }
    }
}
