//! Segments that neither end has sent.

use floodway_core::offload::Verdict;
use floodway_core::time::Instant;
use floodway_wire::tcp::Flags;

use super::World;
use super::packet::Packet;
use super::switch::Action;
use super::tcp::Endpoint;

fn segment_of(from: &Endpoint, to: &Endpoint, at: i64, len: u32, now: Instant) -> Packet {
    let mut packet = from.packet(at, now);
    packet.segment.flags = Flags::ACK;
    packet.segment.ack = to.seq(from.rx.nxt);
    let window = (from.rx.edge - from.rx.nxt).max(0) >> from.my_scale;
    packet.segment.window = window as u16;
    packet.segment.len = len;
    packet
}

impl World {
    /// A segment without payload that somebody forges in the peer's name, `distance` behind its next byte.
    pub fn blind(&self, distance: u32) -> Packet {
        let mut packet = self.peer_segment(0);
        packet.segment.seq += distance;
        packet
    }

    /// The peer's next segment, but for its number.
    pub fn peer_segment(&self, len: u32) -> Packet {
        segment_of(&self.peer, &self.guest, self.peer.tx.nxt, len, self.now)
    }

    /// A segment of the guest, `ahead` of what it sent last.
    pub fn guest_segment(&self, ahead: i64, len: u32) -> Packet {
        segment_of(&self.guest, &self.peer, self.guest.tx.nxt + ahead, len, self.now)
    }

    /// What the guest has put out comes to the switch, the first frame last.
    pub fn reorder_guest(&mut self) {
        let mut packets = self.guest.take_out();
        assert!(packets.len() > 1);
        packets.rotate_left(1);
        for packet in &packets {
            self.guest_packet(packet);
        }
        self.flush();
    }

    /// A packet comes from the network that the peer has not sent. What becomes of it goes to the guest if `deliver`; the
    /// monitor, which takes all that it sees for the peer's, does not see it.
    pub fn forged_packet(&mut self, packet: &Packet, deliver: bool) -> Verdict {
        let (now, flow) = (self.now, self.flow);
        let verdict = self.switch.peer_sends(now, &flow, packet);
        if let Verdict::Pass(_) = verdict {
            let passed = self.switch.actions.0.pop();
            let Some(Action::ToGuest(passed)) = passed else { panic!("{passed:?} was passed") };
            if deliver {
                self.queue_for_guest(passed);
            }
        }
        self.carry_out();
        self.flush();
        verdict
    }
}
