//! Changes that a broker has decided.
//!
//! # Theory of operation
//! The broker has checked the configuration, has opened the sockets and holds their front-ends; it says which ports are new, and gives each a number, an instance and a
//! channel. A port with another instance than before is another port, whatever has changed. Nothing is planned here, so both
//! processes cannot come to different ports.
//!
//! What may fail comes first: threads of new ports. If one fails nothing was changed, and the broker takes the change back. From the moment that
//! workers see the next table there is no way back; should a thread fail then, the process has to end, and its successor starts as the broker has decided.
//!
//! Uplinks are told apart by their numbers: whichever has another one than before is another uplink, and has come with its device.
//!
//! A new port whose number or address a port has that goes is made when that has gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::parts::Parts;
use super::uplinks::UplinkParts;
use super::{Doors, Manager, NotMade};
use crate::api::plan::Plan;
use crate::config::{Config, PortConfig};
use crate::state::port::Port;
use crate::state::ports::Ports;
use crate::switch::{BrokerPort, BrokerUplink};
use crate::sync::lock;

impl Parts {
    /// The ports and uplinks of a change to `wanted`, of which `new` and `come` are new.
    ///
    /// # Errors
    /// A port or uplink is neither new nor there.
    fn of_broker(
        wanted: &Config,
        new: &BTreeMap<String, BrokerPort>,
        come: &BTreeMap<String, BrokerUplink>,
        known: &Ports,
    ) -> Result<Self, String> {
        let ports = known.list();
        let uplinks =
            UplinkParts::of(wanted, &come.keys().map(String::as_str).collect(), known.uplinks());
        uplinks.check(wanted)?;
        let is_new = |name: &str| new.contains_key(name);
        let stays = |port: &Arc<Port>| {
            let name = &port.config.name;
            !is_new(name) && wanted.ports.iter().any(|known| known.name == *name)
        };
        let (stay, gone): (Vec<_>, Vec<_>) = ports.iter().cloned().partition(stays);
        let is_there = |name: &str| stay.iter().any(|port| port.config.name == name);
        if let Some(port) =
            wanted.ports.iter().find(|port| !is_new(&port.name) && !is_there(&port.name))
        {
            return Err(format!("port \"{}\" comes without a channel", port.name));
        }
        let is_taken = |port: &PortConfig| {
            let number = new.get(&port.name).map(|port| port.number);
            gone.iter().any(|old| {
                let same_mac = old.config.mac.is_some() && old.config.mac == port.mac;
                same_mac || number == Some(old.id.index())
            })
        };
        let come = wanted.ports.iter().filter(|port| is_new(&port.name)).cloned();
        let (late, early) = come.partition(is_taken);
        Ok(Self { stay, gone, early, late, uplinks })
    }
}

impl Manager {
    /// Makes the switch what its broker has decided; see [`Switch::follow`](crate::Switch::follow).
    pub(in crate::switch) fn follow(
        &self,
        wanted: Config,
        ports: BTreeMap<usize, BrokerPort>,
        uplinks: BTreeMap<usize, BrokerUplink>,
        answer: impl FnOnce(Result<(), String>),
    ) -> Result<(), String> {
        let mut state = lock(&self.state);
        let running = self.current(&state);
        let plan = Plan::between(&running, &wanted);
        let name = |index: usize| wanted.ports.get(index).map(|port| port.name.clone());
        let named = ports.into_iter().filter_map(|(index, port)| Some((name(index)?, port)));
        let new: BTreeMap<_, _> = named.collect();
        let name = |index: usize| wanted.uplinks.get(index).map(|uplink| uplink.name.clone());
        let named = uplinks.into_iter().filter_map(|(index, uplink)| Some((name(index)?, uplink)));
        let come: BTreeMap<_, _> = named.collect();
        let parts = Parts::of_broker(&wanted, &new, &come, &self.shared.ports())?;
        let mut doors = Doors::Broker(new, come);
        // The lock is held until the answer is given: a setting is made before all of the change, or after it and known to be.
        match self.make(&mut state, &running, wanted, &parts, &mut doors) {
            Ok(()) => {
                answer(Ok(()));
                self.tell(&plan, None);
            }
            Err(NotMade::Refused(error)) => {
                answer(Err(error.to_string()));
                self.tell(&plan, Some(error.to_string()));
            }
            Err(NotMade::Half(problem)) => return Err(problem),
        }
        Ok(())
    }
}
