//! Journals of ports, of which the service manager has duplicates (`FileDescriptorStoreMax=` in systemd.service(5)).
//!
//! # Theory of operation
//! **Goal.** A [journal](floodway_broker::journal) has the bytes that were acknowledged in another's name. It outlives data planes in the broker, and brokers in the [descriptor store](floodway_broker::store). If all three processes are
//! killed at once, the service manager still has it, and passes it to the process that it starts next (sd_listen_fds(3)). There it is the journal of the same port again, and is adopted as after the death of a data plane alone.
//!
//! **Names.** `journal-VERSION-BUDGET-PORT-HASH`. The layout follows from the version of the program and from the budget that the journal was made for; the hash is of what tells whose bytes they are: control socket, socket, network and MAC address.
//! Whatever else the manager passes is released, for example journals of another version.
//!
//! **What the manager has** is what the ports in force have ([`Journals::follow`]), also after the end of the switch: systemd closes it when the unit has stopped or failed for good, and passes it on when it starts the unit again (`systemctl restart`, `Restart=`). Only a switch whose first data plane crashes lets go of everything
//! ([`Journals::release`]): the next one might crash as well. Messages to the manager are datagrams that arrive in order. Without a manager, or with one that keeps nothing, they have no effect; connections that lack bytes are then found by what their ends do (`forgotten` of the offload in `floodway-core`).
//! A switch of a single process has no journals, and lets go of those that it is passed.
//!
//! **One writer.** A switch begins anew only when nobody listens on its control socket, and a data plane has a duplicate of that until its process ends.
//!
//! **Trust.** The service manager has started this process. The memory that it returns was written by data planes, and is checked by whoever adopts it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::mem;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;

use floodway_broker::journal::Journal;
use floodway_broker::layout::Place;
use floodway_process::message::VERSION;
use floodway_switch::config::PortConfig;
use floodway_switch::kept::{WORD, journal};

use crate::notify;

/// What all names begin with.
const PREFIX: &str = "journal";

/// What the service manager has passed to this process.
#[derive(Default)]
pub struct Passed {
    /// Journals, by their ports' [keys](key).
    journals: BTreeMap<String, (u32, OwnedFd)>,
    /// Names of what is of no use.
    useless: Vec<String>,
    problem: Option<io::Error>,
}

impl Passed {
    /// Takes it. The descriptors are this process's own from then on, so this is called once, before others are opened.
    pub fn take() -> Self {
        let mut passed = Self::default();
        match sd_notify::listen_fds_with_names() {
            Ok(descriptors) => {
                for (descriptor, name) in descriptors {
                    // SAFETY: the service manager has opened it for this process, and nobody else takes it.
                    passed.add(name, unsafe { OwnedFd::from_raw_fd(descriptor) });
                }
            }
            Err(error) => passed.problem = Some(error),
        }
        passed
    }

    fn add(&mut self, name: String, file: OwnedFd) {
        let Some((budget, key)) = parse(&name) else { return self.useless.push(name) };
        match self.journals.get(key) {
            // The same name again: to release it would release both.
            Some(&(other, _)) if other == budget => {}
            None if Journal::is_journal(&file, size(budget)) => {
                self.journals.insert(key.to_owned(), (budget, file));
            }
            _ => self.useless.push(name),
        }
    }

    /// Lets the service manager close all of it.
    pub fn release(mut self) {
        self.release_useless();
        self.journals.iter().for_each(|(key, (budget, _))| notify::release(&name(*budget, key)));
    }

    fn release_useless(&mut self) {
        if let Some(error) = self.problem.take() {
            tracing::warn!(%error, "what the service manager passes cannot be used");
        }
        for name in mem::take(&mut self.useless) {
            tracing::warn!(name, "the service manager passes something that is of no use");
            notify::release(&name);
        }
    }
}

/// Makes journals, and tells the service manager of them.
pub struct Journals {
    /// Of the last switch.
    passed: Passed,
    /// Those that the service manager has been sent: instance of the port and name, by the port's key.
    kept: BTreeMap<String, (u64, String)>,
}

impl Journals {
    /// Begins with what the service manager has `passed`.
    pub fn new(mut passed: Passed) -> Self {
        passed.release_useless();
        Self { passed, kept: BTreeMap::new() }
    }

    /// The journal that the last switch has left of a port with this [key], or a new one.
    ///
    /// # Errors
    /// Memory or descriptors have run out.
    pub fn of(&self, port: &PortConfig, key: &str) -> io::Result<Journal> {
        match self.passed.journals.get(key) {
            Some((budget, file)) => {
                tracing::info!(port = port.name, "has the journal of the last switch");
                Ok(Journal::from_file(file.try_clone()?, *budget))
            }
            None => {
                let budget = journal::budget(&port.offload);
                Journal::new(budget, size(budget))
            }
        }
    }

    /// Lets the service manager have the journals of the ports with these keys, and no others.
    pub fn follow<'a>(&mut self, places: impl Iterator<Item = (String, &'a Place)>) {
        let places: BTreeMap<_, _> = places.collect();
        for (key, (budget, file)) in mem::take(&mut self.passed.journals) {
            let name = name(budget, &key);
            match places.get(&key) {
                Some(place) if place.journal.is_same_file(&file) => {
                    self.kept.insert(key, (place.instance, name));
                }
                _ => {
                    tracing::warn!(name, "no port goes on with this journal of the last switch");
                    notify::release(&name);
                }
            }
        }
        // First, since a name may come back with another journal.
        self.kept.retain(|key, (instance, name)| {
            let stays = places.get(key).is_some_and(|place| place.instance == *instance);
            if !stays {
                notify::release(name);
            }
            stays
        });
        for (key, place) in places {
            let name = name(place.journal.budget(), &key);
            self.kept.entry(key).or_insert_with(|| {
                notify::keep(&name, place.journal.as_fd());
                (place.instance, name)
            });
        }
    }

    /// Lets the service manager close all that it has.
    pub fn release(&mut self) {
        self.follow(std::iter::empty());
    }
}

/// What tells a port of the switch with this control socket from all others, in the names of journals. Programs that were built by other versions of Rust may hash differently, and do not use
/// each other's journals then.
pub fn key(control: &Path, port: &PortConfig) -> String {
    let mut hasher = DefaultHasher::new();
    let network = port.network.as_ref().map(|network| &network.name);
    (control, &port.socket, network, port.mac).hash(&mut hasher);
    format!("{}-{:016x}", port.name, hasher.finish())
}

fn name(budget: u32, key: &str) -> String {
    format!("{PREFIX}-{VERSION}-{budget}-{key}")
}

/// Returns budget and key in the name of a journal of this version.
fn parse(name: &str) -> Option<(u32, &str)> {
    let mut parts = name.splitn(4, '-');
    let is_ours = parts.next()? == PREFIX && parts.next()?.parse() == Ok(VERSION);
    if !is_ours {
        return None;
    }
    Some((parts.next()?.parse().ok()?, parts.next()?))
}

/// Bytes of the journal for a budget.
fn size(budget: u32) -> u64 {
    (journal::words(budget) * WORD) as u64
}

#[cfg(test)]
mod tests {
    use floodway_switch::config::NetworkConfig;

    use super::*;

    const BUDGET: u32 = 1 << 20;

    fn made() -> OwnedFd {
        Journal::new(BUDGET, size(BUDGET)).unwrap().as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn only_journals_of_this_version_are_used() {
        let mut passed = Passed::default();
        passed.add(name(BUDGET, "vm-1.a-0"), made());
        passed.add(name(BUDGET, "vm-1.a-0"), made());
        // Another journal of the same port, another size, another version, and something else.
        passed.add(name(2 * BUDGET, "vm-1.a-0"), made());
        passed.add(name(2 * BUDGET, "vm2-0"), made());
        passed.add(format!("{PREFIX}-{}-{BUDGET}-vm3-0", VERSION + 1), made());
        passed.add("socket".into(), made());
        assert_eq!((passed.journals.len(), passed.useless.len()), (1, 4));
        assert_eq!(passed.journals["vm-1.a-0"].0, BUDGET);
    }

    #[test]
    fn a_port_that_becomes_another_one_has_another_key() {
        let control = Path::new("/run/floodway/control.sock");
        let port = PortConfig::new("vm1", "/run/vm1.sock");
        let with = |change: fn(&mut PortConfig)| {
            let mut port = port.clone();
            change(&mut port);
            key(control, &port)
        };
        let own = key(control, &port);
        assert!(own.starts_with("vm1-"));
        assert_eq!(with(|port| port.offload.budget *= 2), own);
        assert_ne!(with(|port| port.socket = "/run/vm2.sock".into()), own);
        assert_ne!(with(|port| port.mac = Some(Default::default())), own);
        assert_ne!(with(|port| port.network = Some(NetworkConfig::new("blue", 7))), own);
        assert_ne!(key(Path::new("/run/other.sock"), &port), own);
    }
}
