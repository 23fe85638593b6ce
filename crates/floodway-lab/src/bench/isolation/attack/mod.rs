//! What may be done to the victims. Each attack has been seen to harm others on some version of some switch.

mod capture;
mod frontend;
mod guest;
mod uplink;

use anyhow::Result;

use super::kind::Kind;
use super::testbed::Testbed;
use super::vm::Vm;

/// Boots the attacker's VMs.
///
/// # Errors
/// When the switch does not take them.
pub fn stage(kind: Kind, bed: &Testbed) -> Result<Box<dyn Attack + '_>> {
    Ok(match kind {
        Kind::BlockedCall => Box::new(frontend::BlockedCall::stage(bed)?),
        Kind::ShrunkMemory => Box::new(frontend::ShrunkMemory::stage(bed)?),
        Kind::RegionWalk => Box::new(guest::region_walk(bed)?),
        Kind::DirtyLog => Box::new(frontend::DirtyLog::stage(bed)?),
        Kind::SilentQmp => Box::new(frontend::SilentQmp::stage(bed)?),
        Kind::Reconnects => Box::new(frontend::Reconnects::stage(bed)?),
        Kind::SmallFrames | Kind::QueuePairs => {
            Box::new(guest::small_frames(bed, kind.queue_pairs())?)
        }
        Kind::Capture => Box::new(capture::Captured::stage(bed)?),
        Kind::GsoPackets => Box::new(guest::gso_packets(bed)?),
        Kind::Broadcasts => Box::new(guest::broadcasts(bed)?),
        Kind::ForgedNeighbours => Box::new(guest::forged_neighbours(bed)?),
        Kind::InventedDestinations => Box::new(uplink::invented_destinations(bed)?),
        Kind::RefusedDestination => Box::new(uplink::refused_destination(bed)?),
        Kind::UplinkBroadcasts => Box::new(uplink::Broadcasts::stage()?),
    })
}

/// An attacker that is paused and resumed. It never blocks in its turns, which take microseconds.
pub trait Attack {
    /// Gets ready for more.
    ///
    /// # Errors
    /// When the switch does not take the attacker any more.
    fn resume(&mut self) -> Result<()> {
        Ok(())
    }

    /// A turn while the attack is on.
    ///
    /// # Errors
    /// When the attack cannot go on.
    fn attack(&mut self) -> Result<()>;

    /// A turn in a slice that the attack is compared with.
    ///
    /// # Errors
    /// As [`Self::attack`].
    fn calm(&mut self) -> Result<()> {
        Ok(())
    }

    /// A turn while it is paused. Returns `true` once the switch has nothing left to do for the attacker.
    ///
    /// # Errors
    /// As [`Self::attack`].
    fn rest(&mut self) -> Result<bool>;
}

/// VMs that transmit what is in their buffers, over and over. Each is a sender, a receiver, or both.
struct Flood {
    vms: Vec<Vm>,
    /// How many of them transmit, from the first.
    senders: usize,
    turn: usize,
}

impl Flood {
    fn new(vms: Vec<Vm>, senders: usize) -> Self {
        Self { vms, senders, turn: 0 }
    }

    /// A burst of a queue pair of each.
    fn turn(&mut self, again: bool) {
        self.turn += 1;
        for (number, vm) in self.vms.iter_mut().enumerate() {
            let pair = self.turn % vm.pairs();
            if number < self.senders {
                vm.transmit(pair, again);
            }
            vm.discard(pair, |_| ());
        }
    }
}

impl Attack for Flood {
    fn attack(&mut self) -> Result<()> {
        self.turn(true);
        Ok(())
    }

    fn rest(&mut self) -> Result<bool> {
        self.turn(false);
        Ok(self.vms[..self.senders].iter().all(Vm::has_transmitted))
    }
}
