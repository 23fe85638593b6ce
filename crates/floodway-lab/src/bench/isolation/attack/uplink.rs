//! Attacks over and from the uplink.

use anyhow::Result;
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::testing::frames::{ipv4, mac, numbered};
use floodway_switch::uplink::Sender;
use floodway_switch::uplink::packet::{self, PacketReceiver, PacketSender};
use floodway_wire::build::{Link, udp};
use floodway_wire::vnet::VnetHdr;

use super::super::kind::REFUSED;
use super::super::testbed::{ATTACKER, FAR_DEVICE, Testbed};
use super::super::victim::FAR;
use super::super::vm::Spec;
use super::guest::{SMALL, broadcast};
use super::{Attack, Flood};

/// Destinations that do not exist, as many as the meter keeps for a VM.
const INVENTED: u16 = 1024;
/// Payload of frames that fill a link.
const LARGE: usize = 1458;

/// A frame to each of [`INVENTED`] addresses in turn, all of them small flows.
pub fn invented_destinations(bed: &Testbed) -> Result<Flood> {
    let spec = Spec { ring_size: INVENTED, ..Spec::default() };
    let mut attacker = bed.boot(ATTACKER, &spec)?;
    let link = Link::new(mac(ATTACKER), mac(FAR));
    attacker.fill_each(|slot| {
        let [high, low] = slot.to_be_bytes();
        let to = std::net::Ipv4Addr::new(10, 1, high, low);
        udp(&link, (ipv4(ATTACKER), 7).into(), (to, 7).into(), &[0; LARGE])
    });
    Ok(Flood::new(vec![attacker], 1))
}

/// Frames to a host that the egress filter of the uplink's interface drops them to.
pub fn refused_destination(bed: &Testbed) -> Result<Flood> {
    let mut attacker = bed.boot(ATTACKER, &Spec::default())?;
    attacker.fill(&VnetHdr::default(), &numbered(ATTACKER, REFUSED, 0, SMALL));
    Ok(Flood::new(vec![attacker], 1))
}

/// A host of the network that sends broadcasts as fast as it can.
pub struct Broadcasts {
    _receiver: PacketReceiver,
    sender: PacketSender,
    frame: Vec<u8>,
}

impl Broadcasts {
    pub fn stage() -> Result<Self> {
        let (receiver, sender) = packet::open(FAR_DEVICE)?;
        Ok(Self { _receiver: receiver, sender, frame: broadcast(FAR) })
    }
}

impl Attack for Broadcasts {
    fn attack(&mut self) -> Result<()> {
        // What the interface has no room for is one attack less.
        let _ = self.sender.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&self.frame)]);
        Ok(())
    }

    fn rest(&mut self) -> Result<bool> {
        Ok(true)
    }
}
