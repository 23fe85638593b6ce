//! Addresses that come, go and move: what becomes of frames in between.
//!
//! # Theory of operation
//! **Goal**: a VM arrives, leaves, changes its address or moves to another host, and co-resident VMs that send to it from memory to memory
//! lose nothing, and nothing overtakes.
//!
//! States of a port's guest: *running*; *departed* when its rings have stopped; *gone*.
//!
//! - Running to departed: addresses stay in the table, and may be learned elsewhere ([`MacTable::depart`]): on the network, and at
//!   another port of this switch if the address is not configured for this one. What waits in the port's receive
//!   queues and what comes for these addresses waits in the first one, within the queue's bound.
//! - Departed to running: the guest is back (its driver or its front-end started anew), and gets what has waited.
//! - Departed to gone, after one to two seconds ([`Port::expire_stopped_guest`]): addresses are forgotten, what waits is dropped and counted.
//! - A guest that arrives with rings that were in use before has moved here, or its switch has started anew: it is announced at once
//!   ([`Delivery::announce`]), by a RARP request as hypervisors send for guests on bridges. It says so itself, too, but only when it has
//!   had the CPU for that, and until then other switches send to where it was. The address is the port's configured one; for a guest
//!   without, the front-end may ask for it (`SEND_RARP`).
//! - What the TCP offload keeps for a guest follows it, too, also when it is gone already ([`Port::on_guest_moved`]).
//! - An address of a departed guest shows up behind an uplink or another port ([`Delivery::learn`]), with any frame and at the
//!   latest with the gratuitous ARP that a guest sends after it has moved: what waits for it goes there first, and then
//!   the table says so.
//!
//! **Order**: the first receive queue's lock is held from taking out what waits until the table has changed. Who looked the
//! address up before, waits for that lock and then looks it up again ([`Delivery::deliver_to_stopped`]); who looks it up
//! afterwards sends to the new place, where all that came before is already. Only between two ports of this switch the lock is not held on the
//! way, for two receive queues must not be held at once; frames of *another* worker may be earlier there.
//!
//! A frame that came from the uplink where its destination is now is not sent back there: the network would learn its sender
//! at our port.
//!
//! **Invariant**: memory is bounded by the port's `queue_bytes`; every frame goes to one place, or its drop is counted.
//!
//! [`MacTable::depart`]: floodway_core::l2::MacTable::depart
//! [`Port::expire_stopped_guest`]: crate::state::port::Port::expire_stopped_guest
//! [`Port::on_guest_moved`]: crate::state::port::Port::on_guest_moved

use std::net::Ipv4Addr;
use std::sync::Arc;

use floodway_core::l2::{NetworkId, Observed, Origin, PortId};
use floodway_core::time::Instant;
use floodway_core::work::Work;
use floodway_wire::build::Link;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{MacAddr, arp};

use crate::api::events::EventKind;
use crate::frame::{self, Frame, vlan};
use crate::pipeline::delivery::{self, Delivery, Flush};
use crate::pipeline::taps::Drops;
use crate::queues::rx::{PendingFrame, RxQueue};
use crate::state::port::Port;
use crate::state::uplink::Uplink;
use crate::stats::DropReason;

impl Delivery {
    /// A frame from `mac` has come in by `ingress`, and the table does not know that yet.
    #[cold]
    pub fn learn(&mut self, mac: MacAddr, ingress: Origin, announcement: bool, now: Instant) {
        let owner = self.place_of(mac, ingress.network).filter(|&owner| owner != ingress.port);
        tracing::debug!(%mac, to = ?ingress, from = ?owner, announcement, "address learned");
        self.move_address(mac, owner, ingress, announcement, now);
        if self.place_of(mac, ingress.network) != Some(ingress.port) {
            return;
        }
        let owing = |port: &&Arc<Port>| {
            port.id != ingress.port && port.network == ingress.network && port.offload.owes(mac)
        };
        if let Some(port) = self.ports.iter().find(owing) {
            port.on_guest_moved();
        }
    }

    /// The port or uplink of a network behind which an address is.
    fn place_of(&self, mac: MacAddr, network: NetworkId) -> Option<PortId> {
        self.shared.tables().of(network).lookup(mac)
    }

    /// Brings the new place of `mac` into the table, and sends what waits for it there.
    fn move_address(
        &mut self,
        mac: MacAddr,
        owner: Option<PortId>,
        ingress: Origin,
        announcement: bool,
        now: Instant,
    ) {
        let (shared, ports) = (Arc::clone(&self.shared), Arc::clone(&self.ports));
        let Origin { port: place, network } = ingress;
        let learn = || shared.tables_mut().of_mut(network).learn(mac, place, announcement, now);
        let departed = owner.and_then(|owner| ports.get(owner.index()));
        let Some(port) = departed.filter(|port| port.is_departed()) else {
            learn();
            return;
        };
        let mut rx = port.pairs[0].rx();
        // What waits for a guest is not for everybody who claims its address.
        let observed = shared.tables().of(network).observe(mac, place, announcement, now);
        if observed != Observed::Changed {
            return;
        }
        port.emit(|port| EventKind::GuestMigrated { port });
        let waiting = take_waiting(port, &mut rx, mac, network);
        let origin = Origin { port: port.id, network };
        match self.ports.uplink(place).cloned() {
            Some(uplink) => {
                let lost = self.send_on(port, network, &uplink, waiting, now);
                rx.traffic.count_drop(DropReason::PortDown, lost);
                learn();
            }
            None => {
                learn();
                drop(rx);
                for PendingFrame { vnet, bytes, .. } in waiting {
                    frame::with_slice(vnet, &bytes, |frame| {
                        let pair = self.select_rx_queue(place, frame);
                        self.deliver(origin, place, pair, Flush::Later, frame);
                    });
                }
            }
        }
    }

    /// Tells the network that the guest of `port` is here now, if it has moved. Co-resident VMs need not know: the table does.
    pub fn announce(&mut self, port: &Port, now: Instant) {
        let Some(mac) = port.take_unannounced() else { return };
        for network in port.carried.networks() {
            self.announce_in(port, network, mac, now);
        }
        self.flush();
    }

    fn announce_in(&mut self, port: &Port, network: NetworkId, mac: MacAddr, now: Instant) {
        let origin = Origin { port: port.id, network };
        self.learn(mac, origin, true, now);
        let is_here = self.place_of(mac, network) == Some(port.id);
        // A guest that starts its driver again and again must not have us flood the network, either.
        if !is_here || !port.admits_flood(network, 1, now) {
            return;
        }
        let request = arp::Packet {
            operation: arp::RARP_REQUEST,
            sender_mac: mac,
            sender_ip: Ipv4Addr::UNSPECIFIED,
            target_mac: mac,
            target_ip: Ipv4Addr::UNSPECIFIED,
        };
        let bytes = Link::new(mac, MacAddr::BROADCAST).arp(&request);
        frame::with_slice(VnetHdr::default(), &bytes, |frame| {
            self.send_to_uplinks(origin, frame);
        });
    }

    /// Sends by `uplink` what has waited for a guest of `port`; answers how many frames must not go there.
    fn send_on(
        &self,
        port: &Port,
        network: NetworkId,
        uplink: &Uplink,
        waiting: Vec<PendingFrame>,
        now: Instant,
    ) -> u64 {
        let mut lost = 0;
        let origin = Origin { port: port.id, network };
        for PendingFrame { vnet, bytes, .. } in waiting {
            let source = address(&bytes, 6);
            if source.and_then(|source| self.place_of(source, network)) == Some(uplink.id) {
                lost += 1;
                continue;
            }
            frame::with_slice(vnet, &bytes, |frame| {
                self.shared.traffic.count(port.id, uplink.id, 1, u64::from(frame.len));
                if uplink.send(origin, now, std::iter::once(*frame)) {
                    port.resume_soon();
                }
            });
        }
        lost
    }

    /// Delivers frames to a port whose guest did not run when the caller looked: they wait, or go to where their destination is now.
    /// All is looked at again under the receive queue's lock, for the guest may have come, gone or moved meanwhile.
    #[cold]
    pub(crate) fn deliver_to_stopped<'f>(
        &mut self,
        origin: Origin,
        port: &Arc<Port>,
        frames: impl Iterator<Item = Frame<'f>>,
    ) {
        let network = origin.network;
        for frame in frames {
            let Some(dst) = address(frame.prefix, 0) else { continue };
            let mut rx = port.pairs[0].rx();
            let place = self.place_of(dst, network);
            if place.is_some_and(|place| place != port.id) {
                drop(rx);
                self.send(origin, dst, &frame);
            } else if network == port.network {
                let waits = self.leave_for_guest(origin.port, port, &mut rx, &frame);
                self.count_refused(u64::from(!waits));
            } else {
                let mut refused = 0;
                port.carried.put_tag(network, &frame, |frame| {
                    let waits = self.leave_for_guest(origin.port, port, &mut rx, frame);
                    refused += u64::from(!waits);
                });
                self.count_refused(refused);
            }
        }
    }

    /// Lets a frame wait for a guest that has stopped, or gives it to one that is back. Returns `false` if it is dropped.
    fn leave_for_guest(
        &self,
        src: PortId,
        port: &Port,
        rx: &mut RxQueue,
        frame: &Frame<'_>,
    ) -> bool {
        self.account(src, port, rx, frame);
        let (before, refused) = (Drops::of(&rx.traffic), rx.refused());
        let mut drop = None;
        if !port.admits(frame) {
            rx.refuse(DropReason::Oversize);
        } else if rx.is_running() {
            // It is back.
            rx.deliver(frame);
            self.shared.ledger.charge(src, &rx.take_extra());
            delivery::finish(port, rx);
        } else if rx.expects_guest() {
            rx.wait_for_guest(frame);
        } else {
            port.undelivered().count_drop(DropReason::PortDown, 1);
            drop = Some(DropReason::PortDown);
        }
        let drop = drop.or_else(|| before.newest(&rx.traffic));
        self.shared.capture_delivered(port, frame, drop);
        drop.is_none() && rx.refused() == refused
    }

    /// Charges `src` for a frame that the first receive queue of `port` is about to get, and counts it.
    fn account(&self, src: PortId, port: &Port, rx: &RxQueue, frame: &Frame<'_>) {
        let bytes = u64::from(frame.len);
        let descriptors = frame.parts.len() as u64;
        let mut work = Work { copies: 1, descriptors, bytes, ..Work::default() };
        if rx.is_running() {
            port.count_received(u64::from(!frame.is_pure_ack()));
            if rx.needs_software(frame) {
                work.bytes += bytes;
                work.segments = u64::from(frame.segments());
            }
        }
        self.shared.ledger.charge(src, &work);
        self.shared.traffic.count(src, port.id, 1, bytes);
    }
}

/// Takes out, in order, what waits in `rx` of `port` for `mac` in `network`, without the tags that it has there.
fn take_waiting(
    port: &Port,
    rx: &mut RxQueue,
    mac: MacAddr,
    network: NetworkId,
) -> Vec<PendingFrame> {
    let vid = (network != port.network).then_some(network.0);
    // What a guest without tagged networks gets has no tag, or came before that was so.
    let is_there = |frame: &PendingFrame| !port.is_trunk() || vlan::outer_vid(&frame.bytes) == vid;
    let waiting = rx.take_waiting(mac, is_there);
    if vid.is_none() {
        return waiting;
    }
    waiting.into_iter().map(PendingFrame::without_tag).collect()
}

fn address(frame: &[u8], at: usize) -> Option<MacAddr> {
    Some(MacAddr(*frame.get(at..)?.first_chunk()?))
}
