//! Ports that a broker which has died has left.
//!
//! They keep their numbers, instances, journals, and front-ends. Sockets that listen are made anew: nobody but a broker accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use floodway_broker::layout::{Layout, Place};
use floodway_broker::port::Past;
use floodway_broker::store::taken::TakenPort;
use floodway_switch::Config;

use super::super::{journals, migration};
use super::{Names, Ports, Prepared, Sockets, State, open_sockets, set_rights};

/// What was left of ports.
pub struct Left {
    /// Instance and number of each, in the order of the configuration.
    pub seats: Vec<(u64, u16)>,
    /// The rest, by instance.
    pub ports: BTreeMap<u64, TakenPort>,
}

impl Ports {
    /// Makes what is needed to go on with the ports of `config`, of which `text` is the text.
    pub(super) fn resume(
        &self,
        state: &mut State,
        config: &Config,
        text: &str,
        mut left: Left,
    ) -> anyhow::Result<Prepared> {
        let names = Names {
            new: config.ports.iter().map(|port| port.name.as_str()).collect(),
            gone: BTreeSet::new(),
            uplinks: BTreeSet::new(),
        };
        let sockets = open_sockets(&Sockets::new(), config, &names)?;
        let mut ports = Vec::new();
        for (port, &(instance, number)) in config.ports.iter().zip(&left.seats) {
            let mut taken = left.ports.remove(&instance).unwrap_or_default();
            let journal = match taken.journal.take() {
                Some(journal) => journal,
                None => {
                    let key = journals::key(&config.control, port);
                    let journal = state.journals.of(port, &key);
                    journal.with_context(|| format!("port \"{}\"", port.name))?
                }
            };
            let past = Past::new(self.store.clone(), instance, Some(taken));
            let thread = Arc::new(self.start(port, &state.sockets, &sockets, past)?);
            let (name, vm) = (port.name.clone(), migration::vm(port));
            ports.push(Place { number, instance, name, vm, thread, journal: Arc::new(journal) });
        }
        let taken: BTreeSet<_> = left.seats.iter().map(|&(_, number)| number).collect();
        let free = (0..self.numbers).filter(|number| !taken.contains(number)).collect();
        let instances = left.seats.iter().map(|&(instance, _)| instance).max().unwrap_or_default();
        let rights = set_rights(&mut state.sockets, config)?;
        let (uplinks, free_uplinks) = (state.layout.uplinks.clone(), state.free_uplinks.clone());
        let layout = Layout { configuration: text.into(), ports, uplinks };
        Ok(Prepared { layout, sockets, rights, free, free_uplinks, instances })
    }
}
