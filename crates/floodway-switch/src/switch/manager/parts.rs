//! Which ports and uplinks a change touches.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::uplinks::UplinkParts;
use crate::api::plan::{Action, Effect, Plan};
use crate::config::{Config, PortConfig};
use crate::state::port::Port;
use crate::state::ports::Ports;

/// The ports of a change.
pub(super) struct Parts {
    /// Those that are not touched.
    pub(super) stay: Vec<Arc<Port>>,
    /// Those that go.
    pub(super) gone: Vec<Arc<Port>>,
    /// Those that come, and can be made before others go.
    pub(super) early: Vec<PortConfig>,
    /// Those that come where others go: they have a socket or an address of theirs.
    pub(super) late: Vec<PortConfig>,
    /// Uplinks.
    pub(super) uplinks: UplinkParts,
}

impl Parts {
    /// What `plan` does to `ports`, and makes of `wanted`.
    pub(super) fn of(plan: &Plan, running: &Config, wanted: &Config, ports: &Ports) -> Self {
        let removed: BTreeSet<_> = plan.ports(Action::Remove, Effect::Reconnect).collect();
        let replaced: BTreeSet<_> = plan.ports(Action::Change, Effect::Reconnect).collect();
        let added: BTreeSet<_> = plan.ports(Action::Add, Effect::Live).collect();
        let goes = |name: &str| removed.contains(name) || replaced.contains(name);
        let taken = |port: &PortConfig| {
            running.ports.iter().any(|old| {
                let same = old.socket == port.socket || old.mac.is_some() && old.mac == port.mac;
                same && goes(&old.name)
            })
        };
        let is_new =
            |port: &&PortConfig| added.contains(&*port.name) || replaced.contains(&*port.name);
        let new = wanted.ports.iter().filter(is_new).cloned();
        let (late, early) = new.partition(taken);
        let (gone, stay) = ports.iter().cloned().partition(|port| goes(&port.config.name));
        let come = plan.uplinks(Action::Add).chain(plan.uplinks(Action::Change)).collect();
        let uplinks = UplinkParts::of(wanted, &come, ports.uplinks());
        Self { stay, gone, early, late, uplinks }
    }
}
