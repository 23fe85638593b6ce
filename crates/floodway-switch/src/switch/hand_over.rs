//! What the switch does for the process that takes its place while its guests run.
//!
//! # Theory of operation
//! A hand-over has two halves. While frames still move, connections are taken off the offload, as far as they can be ([`Switch::prepare_hand_over`]): only if the next data plane does not read
//! how they are. Then everything that touches guests' memory, devices and kept memory ends, in this order ([`Switch::hand_over`]):
//!
//! 1. the watchdog, for which workers would seem to stand still, and at the same time ports' threads, each between two messages: rings that run go on, and what a front-end has set up is
//!    not taken down, since its rings are to stay as they are;
//! 2. workers, each at the end of a round: chains that were taken are returned, frames that were delivered are published, and rings stand at `used.idx`.
//!
//! Then it is written how connections are ([`kept::flows`](crate::kept::flows)). From then on nothing is written any more. Frames that wait inside (for a guest's buffers, for an uplink's rate) end with the process, as they do in a crash.
//! Guests are not interrupted for what was published last: whoever takes rings up interrupts once.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use floodway_core::offload::Resumption;
use floodway_process::upgrade::Programs;

use super::{Drain, Switch};
use crate::api::events::EventKind;
use crate::api::status::{ProgramStatus, ProgramsStatus, UpgradesStatus};
use crate::events::time_at;
use crate::kept::addresses::KeptAddresses;
use crate::kept::flows::{Arrived, FlowsWriter};
use crate::kept::journal::KeptJournal;
use crate::state::shared::Shared;
use crate::sync::lock;

impl Switch {
    /// Takes connections off the offload, until this is [taken back](Self::cancel_hand_over) or the switch ends.
    #[must_use]
    pub fn prepare_hand_over(&self) -> Drain {
        self.manager.begin_drain()
    }

    /// Lets the offload take connections again.
    pub fn cancel_hand_over(&self, drain: Drain) {
        self.manager.end_drain(drain);
    }

    /// Connections whose congestion control the switch has.
    #[must_use]
    pub fn online(&self) -> u32 {
        self.shared.ports().iter().map(|port| port.offload.machine().engine.online()).sum()
    }

    /// What has become of connections that another data plane has handed over to this one.
    #[must_use]
    pub const fn handed_over(&self) -> Resumption {
        self.handed_over
    }

    /// Asks threads to end that are to end before workers do. They all wake up at once, and not each only when the one before it has ended: on a busy machine each waits for a CPU.
    pub fn begin_hand_over(&mut self) {
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.begin_stop();
        }
        if let Some(episodes) = &mut self.episodes {
            episodes.begin_stop();
        }
        self.manager.begin_hand_over();
    }

    /// Lets go of everything: when this returns, nothing of guests, devices and kept memory is touched any more. Learned addresses are saved, and connections written to `flows`, if there
    /// is a file, of this length.
    pub fn hand_over(
        &mut self,
        addresses: Option<&mut KeptAddresses>,
        flows: Option<(OwnedFd, u64)>,
    ) {
        self.begin_hand_over();
        drop(self.watchdog.take());
        drop(self.episodes.take());
        self.manager.hand_over();
        tracing::debug!("threads beside workers have ended");
        self.stop.store(true, Ordering::Relaxed);
        self.workers.iter().for_each(|worker| worker.waker.wake());
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // It cannot have panicked: that ends the process.
                let _ = thread.join();
            }
        }
        tracing::debug!("workers have ended");
        if let Some(addresses) = addresses {
            self.save_addresses(addresses);
        }
        if let Some((file, bytes)) = flows
            && let Err(error) = self.write_flows(file, bytes)
        {
            tracing::error!(%error, "connections go off the offload: they cannot be handed over");
        }
    }

    fn write_flows(&self, file: OwnedFd, bytes: u64) -> io::Result<()> {
        let mut flows = FlowsWriter::begin(file, bytes)?;
        for port in self.shared.ports().iter() {
            port.offload.hand_over(port.instance, self.shared.now(), &mut flows)?;
        }
        flows.end().map(drop)
    }

    /// Notes which programs run. Of an upgrade that was made or has failed since the last time operators hear.
    pub fn note_programs(&self, programs: &Programs) {
        let status = programs_status(programs);
        let before = lock(&self.shared.programs).replace(status.clone());
        let Some(before) = before else { return };
        let (was, is) = (before.upgrades, status.upgrades);
        if is.count > was.count {
            self.shared.events.emit(EventKind::SwitchUpgraded {
                from: is.from.clone(),
                to: status.data_plane.version,
                pause_us: is.pause_us,
                online: is.online,
                carried: is.carried,
            });
        }
        if let (Some(reason), true) = (is.problem, is.attempts > was.attempts) {
            self.shared.events.emit(EventKind::UpgradeFailed { reason });
        }
    }
}

/// Lets ports take up what earlier data planes have left of connections. Returns what has become of those that were handed over.
pub(super) fn take_up(
    shared: &Shared,
    journals: &BTreeMap<usize, KeptJournal>,
    mut arrived: BTreeMap<u64, Arrived>,
) -> Resumption {
    let mut all = Resumption::default();
    for (index, port) in shared.ports().iter().enumerate() {
        let arrived = arrived.remove(&port.instance);
        let found = port.take_up(journals.get(&index).copied(), arrived, shared.now());
        all.carried += found.carried;
        all.online += found.online;
        all.refused += found.refused;
    }
    all
}

/// The document of `programs`.
#[must_use]
pub fn programs_status(programs: &Programs) -> ProgramsStatus {
    let Programs { broker, data_plane, upgrades } = programs.clone();
    let of = |program: floodway_process::upgrade::Program| ProgramStatus {
        version: program.version,
        binary: program.binary,
    };
    let upgrades = UpgradesStatus {
        attempts: upgrades.attempts,
        count: upgrades.count,
        at: (upgrades.count > 0).then(|| time_at(upgrades.at)),
        from: upgrades.from,
        pause_us: upgrades.pause_us,
        online: upgrades.online,
        carried: upgrades.carried,
        problem: upgrades.problem,
    };
    ProgramsStatus { broker: of(broker), data_plane: of(data_plane), upgrades }
}
