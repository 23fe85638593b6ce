//! Uplinks of a change.
//!
//! # Theory of operation
//! An uplink that comes has its device open before anything changes; one that takes the place of another with the same device gets that one's, which stays
//! open, so that what the kernel has queued for it is not lost and a TAP interface does not go away.
//!
//! When all workers have seen the next table, nobody sends by an uplink that goes or receives from it. What waits in its queue is handed to the device as far as
//! that takes it, and the rest is dropped and counted; addresses behind it are forgotten. Only then do workers get the receiving halves of new uplinks:
//! a device has one reader at every moment, and what arrives meanwhile waits in it.
//!
//! TCP offload belongs to ports, so connections go on: what an offload sends is looked up like any frame, goes by whatever uplink its
//! destination is found behind next, and is repaired as after any loss.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::{Broker, Doors, Manager, State};
use crate::api::control::ControlError;
use crate::config::{Config, UplinkConfig};
use crate::state::port::Port;
use crate::state::ports::Ports;
use crate::state::uplink::{DeviceSource, EgressDefaults, Uplink, UplinkReceiver};
use crate::switch::{add_uplink, hash_seed, pin_gateways};
use crate::sync::lock;

/// The uplinks of a change.
#[derive(Default)]
pub(super) struct UplinkParts {
    /// Those that are not touched.
    pub(super) stay: Vec<Arc<Uplink>>,
    /// Those that go.
    pub(super) gone: Vec<Arc<Uplink>>,
    /// Those that come.
    pub(super) come: Vec<UplinkConfig>,
}

/// An uplink that works but is in no table yet.
pub(super) struct PreparedUplink {
    uplink: Arc<Uplink>,
    receiver: UplinkReceiver,
}

impl UplinkParts {
    /// The uplinks of a change from `known` to `wanted`, of which those called `come` are new.
    pub(super) fn of(wanted: &Config, come: &BTreeSet<&str>, known: &[Arc<Uplink>]) -> Self {
        let is_new = |name: &str| come.contains(name);
        let stays = |uplink: &Arc<Uplink>| {
            let name = &*uplink.config.name;
            !is_new(name) && wanted.uplinks.iter().any(|known| known.name == name)
        };
        let (stay, gone) = known.iter().cloned().partition(stays);
        let come = wanted.uplinks.iter().filter(|uplink| is_new(&uplink.name)).cloned();
        Self { stay, gone, come: come.collect() }
    }

    /// Refuses a configuration with an uplink that is neither new nor there.
    pub(super) fn check(&self, wanted: &Config) -> Result<(), String> {
        let stay = self.stay.iter().map(|uplink| &uplink.config.name);
        let known: BTreeSet<_> = stay.chain(self.come.iter().map(|uplink| &uplink.name)).collect();
        match wanted.uplinks.iter().find(|uplink| !known.contains(&uplink.name)) {
            Some(uplink) => Err(format!("uplink \"{}\" comes without a device", uplink.name)),
            None => Ok(()),
        }
    }

    /// Returns `true` if no uplink comes or goes.
    pub(super) const fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.come.is_empty()
    }

    /// The uplinks after the change, in the order of the configuration.
    pub(super) fn next(&self, prepared: &[PreparedUplink], wanted: &Config) -> Arc<[Arc<Uplink>]> {
        let new = prepared.iter().map(|prepared| &prepared.uplink);
        in_order(self.stay.iter().chain(new).cloned().collect(), wanted)
    }
}

fn in_order(mut uplinks: Vec<Arc<Uplink>>, wanted: &Config) -> Arc<[Arc<Uplink>]> {
    let names: Vec<_> = wanted.uplinks.iter().map(|uplink| &uplink.name).collect();
    uplinks.sort_by_key(|uplink| names.iter().position(|name| *name == &uplink.config.name));
    uplinks.into()
}

impl Manager {
    /// Opens the devices of new uplinks, or takes them from uplinks that go. If one fails, none is left.
    pub(super) fn prepare_uplinks(
        &self,
        state: &mut State,
        parts: &UplinkParts,
        ports: &Ports,
        wanted: &Config,
        doors: &mut Doors,
    ) -> Result<Vec<PreparedUplink>, ControlError> {
        let mut prepared = Vec::new();
        for config in &parts.come {
            match self.prepare_uplink(state, config, parts, wanted, doors) {
                Ok(uplink) => prepared.push(uplink),
                Err(problem) => {
                    self.give_uplinks_up(state, &prepared);
                    return Err(ControlError::Failed(problem));
                }
            }
        }
        debug_assert!(prepared.iter().all(|it| ports.uplink(it.uplink.id).is_none()));
        Ok(prepared)
    }

    /// An uplink with an open device, at a number of its own.
    fn prepare_uplink(
        &self,
        state: &mut State,
        config: &UplinkConfig,
        parts: &UplinkParts,
        wanted: &Config,
        doors: &mut Doors,
    ) -> Result<PreparedUplink, String> {
        let UplinkConfig { name, .. } = config;
        let (number, source) = match doors {
            Doors::Own => {
                let most = self.shared.uplink_capacity;
                let number = state.free_uplinks.pop_front().ok_or_else(|| {
                    format!("{most} uplinks are the most without a restart, with those that a change replaces; restart the switch")
                })?;
                (number, source_of(config, &parts.gone))
            }
            Doors::Broker(_, doors) => {
                let door = doors.remove(name);
                let door = door.ok_or_else(|| format!("uplink \"{name}\": no device"))?;
                (door.number, DeviceSource::Broker(door.device))
            }
        };
        let opened = self.open_uplink(state, number, config, wanted, source);
        opened.map_err(|problem| {
            state.free_uplinks.push_front(number);
            problem
        })
    }

    fn open_uplink(
        &self,
        state: &State,
        number: usize,
        config: &UplinkConfig,
        wanted: &Config,
        source: DeviceSource,
    ) -> Result<PreparedUplink, String> {
        let shared = &self.shared;
        let id = Ports::id(shared.capacity + number);
        let defaults = EgressDefaults {
            meter: &wanted.meter,
            guests: shared.capacity,
            seed: hash_seed()[0],
            captures: &shared.captures,
            events: &shared.events,
        };
        let kept = state.broker.as_ref().and_then(|Broker { counters }| counters.as_ref());
        let kept = kept.map(|all| all.begin_uplink(number)).unwrap_or_default();
        let waker = Arc::clone(&self.wakers[config.worker]);
        let opened = Uplink::open(id, config.clone(), &defaults, waker, source, kept);
        let failed = |error| format!("uplink \"{}\": {error}", config.name);
        let (uplink, receiver) = opened.map_err(failed)?;
        shared.traffic.begin(id, 0);
        shared.ledger.forget(id);
        for network in uplink.carried.networks() {
            add_uplink(shared.tables_mut().of_mut(network), &uplink);
        }
        Ok(PreparedUplink { uplink, receiver })
    }

    /// Forgets uplinks that are in no table.
    pub(super) fn give_uplinks_up(&self, state: &mut State, prepared: &[PreparedUplink]) {
        for PreparedUplink { uplink, .. } in prepared {
            self.forget_uplink(state, uplink);
        }
    }

    /// Takes down uplinks that no worker knows any more.
    pub(super) fn retire_uplinks(&self, state: &mut State, gone: &[Arc<Uplink>]) {
        for uplink in gone {
            uplink.retire(self.shared.now());
            self.forget_uplink(state, uplink);
        }
    }

    fn forget_uplink(&self, state: &mut State, uplink: &Uplink) {
        for network in uplink.carried.networks() {
            self.shared.tables_mut().of_mut(network).remove_port(uplink.id);
        }
        if state.broker.is_none() {
            state.free_uplinks.push_back(uplink.id.index() - self.shared.capacity);
        }
    }

    /// Lets workers receive from new uplinks, and gives these the addresses that those which have gone have had.
    pub(super) fn hand_receivers_over(&self, prepared: Vec<PreparedUplink>, list: &[Arc<Port>]) {
        if prepared.is_empty() {
            return;
        }
        for PreparedUplink { uplink, receiver } in prepared {
            for network in uplink.carried.networks() {
                pin_gateways(self.shared.tables_mut().of_mut(network), &uplink);
            }
            lock(&self.shared.workers[uplink.config.worker].arriving).push(receiver);
        }
        self.show(list, &self.shared.uplinks());
    }

    /// Puts settings of uplinks that stay into effect.
    pub(super) fn settle_uplinks(&self, running: &Config, wanted: &Config) {
        let limits = |uplink: &UplinkConfig| (uplink.storm_pps, uplink.multicast_pps);
        for uplink in self.shared.uplinks().iter() {
            let named = |config: &Config| {
                let mut uplinks = config.uplinks.iter();
                uplinks.find(|known| known.name == uplink.config.name).cloned()
            };
            if let (Some(was), Some(is)) = (named(running), named(wanted))
                && limits(&was) != limits(&is)
            {
                uplink.configure_floods(&is, self.shared.now());
            }
        }
    }

    /// The uplinks that there are, in the order of the configuration.
    pub(super) fn uplinks_in_order(&self, wanted: &Config) -> Arc<[Arc<Uplink>]> {
        in_order(self.shared.uplinks().to_vec(), wanted)
    }
}

/// Where the device of a new uplink comes from: of one that goes and has it, or by its name.
fn source_of(config: &UplinkConfig, gone: &[Arc<Uplink>]) -> DeviceSource {
    let device = |uplink: &UplinkConfig| (uplink.kind, uplink.device.clone());
    let before = gone.iter().find(|uplink| device(&uplink.config) == device(config));
    match before.and_then(|uplink| uplink.share_device()) {
        Some(open) => DeviceSource::Opened(Arc::new(Mutex::new(Some(open)))),
        None => DeviceSource::Own,
    }
}
