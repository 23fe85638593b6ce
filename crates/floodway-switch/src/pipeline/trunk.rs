//! Frames of a guest that is in several networks (a trunk port), as far as they have tags.
//!
//! # Theory of operation
//! A tag says what network a frame is in. It is taken off, and from there on the frame goes the way of any other: its source is checked, its
//! destination is looked up in the table of its network, and the storm limit is that of the port in this network. Towards a guest
//! [`Delivery`](crate::pipeline::delivery::Delivery) puts the tag on again.
//!
//! **Offloads.** A checksum that the guest leaves to be filled in, and where the payload of a GSO packet begins, are named by offsets from the frame's first
//! byte: they are four bytes less without the tag ([`crate::frame::vlan`]). What has been checked of them with the tag is checked again without it.
//!
//! **Order.** Tagged frames of a batch go first and one by one, the others after them and together, as on access ports. Two frames with different tags are of different
//! networks, which 802.1Q lets overtake each other.
//!
//! **TCP offload and inbound rates** know one network of a port: that without tags, in which they send what they make or hold. They see its frames; the rest
//! passes by, and is counted while the offload is active.

#[cfg(test)]
mod tests;

use floodway_core::l2::Origin;
use floodway_core::time::Instant;

use crate::frame::Frame;
use crate::frame::describe::{Special, special};
use crate::pipeline::decide::{Source, Verdict, addresses, check_received};
use crate::pipeline::forward::{Forwarder, send_as};
use crate::queues::tx::Batch;
use crate::state::carried::{NO_NETWORK, take_tag};
use crate::state::port::Port;
use crate::stats::DropReason;

impl Forwarder {
    /// Forwards or drops those frames of a batch that have a tag, or none where they need one. Returns a mask of them.
    #[inline(never)]
    pub(super) fn forward_trunk(&mut self, ingress: &Port, batch: &mut Batch, now: Instant) -> u32 {
        let mut done = 0;
        for i in 0..batch.len() {
            let Some(frame) = batch.frame(i) else { continue };
            let forwarded = match special(frame.prefix) {
                Some(Special::Tagged) => {
                    take_tag(&frame, |vid, frame| self.forward_from_trunk(ingress, vid, frame, now))
                }
                None if ingress.network == NO_NETWORK => Err(DropReason::VlanFiltered),
                _ => continue,
            };
            done |= 1 << i;
            if let Err(reason) = forwarded {
                batch.drop_frame(i, reason);
            }
        }
        done
    }

    /// Forwards a frame that had a tag with VLAN identifier `vid`.
    fn forward_from_trunk(
        &mut self,
        ingress: &Port,
        vid: u16,
        frame: &Frame<'_>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let network = ingress.carried.network_of(vid).ok_or(DropReason::VlanFiltered)?;
        let frame = Frame { vnet: check_received(frame)?, ..*frame };
        ingress.count_sent(u64::from(!frame.is_pure_ack()));
        let origin = Origin { port: ingress.id, network };
        let verdict = match self.judge_sent(ingress, origin, &frame, now)? {
            Verdict::Drop(reason) => return Err(reason),
            verdict => verdict,
        };
        let leaves = match verdict {
            Verdict::To { dst, .. } => self.is_uplink(dst),
            _ => true,
        };
        // Only a priority tag is of the network without tags.
        if leaves && network == ingress.network {
            return self.send_one_to_uplink(ingress, verdict, &frame);
        }
        if leaves && ingress.offload.is_active() {
            ingress.offload.count_tagged();
        }
        send_as(&mut self.delivery, origin, verdict, &frame);
        Ok(())
    }

    /// What becomes of a frame from a VM in the network of `origin`, whose source is learned if it is new there.
    fn judge_sent(
        &mut self,
        ingress: &Port,
        origin: Origin,
        frame: &Frame<'_>,
        now: Instant,
    ) -> Result<Verdict, DropReason> {
        let (source, verdict) = {
            let tables = self.delivery.shared.tables();
            let table = tables.of(origin.network);
            let source = self.observe(table, ingress, frame, now)?;
            (source, self.classify(table, ingress, origin, frame, now))
        };
        if source == Source::Changed {
            self.delivery.learn(addresses(frame.prefix).1, origin, false, now);
        }
        Ok(verdict)
    }
}
