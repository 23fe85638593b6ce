//! What a port's offload has done.

use super::summary::Reason;
use crate::counters::counters;

counters! {
    /// Events since the port was made. Each only grows.
    pub struct Counters in CounterCells {
        /// Connections seen from their first SYN.
        flows_opened,
        /// Connections that ended or were forgotten.
        flows_closed,
        /// Connections not followed, because the table was full.
        flows_refused,
        /// Connections that pass untouched because of what their SYNs say, or did not let be seen.
        flows_excluded,
        /// Those with an option that the switch does not know.
        excluded_unknown_option,
        /// Those with data in a SYN.
        excluded_syn_data,
        /// Those that agreed on AccECN.
        excluded_accurate_ecn,
        /// Those of whose handshake a part was not seen.
        excluded_partial_handshake,
        /// Those that the guest forwards for another host.
        excluded_forwarded,
        /// Flows whose congestion control the switch took over.
        went_online,
        /// Flows given back to the guest's own congestion control.
        went_offline,
        /// Transitions to `ACTIVE`.
        to_active,
        /// Transitions to `NO_BUFFER`.
        to_no_buffer,
        /// Transitions to `PACKET_LOSS`.
        to_packet_loss,
        /// Frames stored.
        stored_frames,
        /// Bytes of payload stored.
        stored_bytes,
        /// Ranges released to the network for the first time.
        released,
        /// Ranges sent again.
        retransmitted,
        /// Bytes of payload sent again.
        retransmitted_bytes,
        /// Retransmission time-outs at the switch.
        timeouts,
        /// Those of flows that had left their first slow start.
        timeouts_after_slow_start,
        /// Tail loss probes sent.
        tail_loss_probes,
        /// Probes of a closed receive window.
        window_probes,
        /// Fast recoveries entered.
        fast_recoveries,
        /// Times that a peer had discarded what it had acknowledged selectively.
        reneged,
        /// Reductions of the congestion window because of ECN.
        ecn_reductions,
        /// Recoveries that turned out to be needless and were undone.
        undone,
        /// Frames from the guest that were stored already.
        absorbed_stored,
        /// Frames from the guest that were acknowledged already.
        absorbed_acknowledged,
        /// Acknowledgements that the guest heard of in a later one.
        merged_acks,
        /// Duplicate acknowledgements kept from the guest.
        absorbed_dup_acks,
        /// Frames dropped because the guest sent beyond its grant.
        beyond_grant,
        /// Frames dropped because they blindly acknowledged what was never sent.
        acks_unsent,
        /// Frames passed in which the peer acknowledged what the switch has not sent.
        acks_unseen,
        /// Segments from the network that changed nothing, because of their numbers or their clock: keepalives, very late
        /// ones, and blind ones.
        unacceptable,
        /// Flows whose segments became smaller because a router said so.
        mss_lowered,
        /// Such messages that named nothing under way, or said nothing new.
        too_big_ignored,
        /// Times that segments became smaller because none came through.
        mss_fallbacks,
        /// Times that they became as large as before.
        mss_restored,
        /// Window updates sent to the guest.
        window_updates,
        /// Times that bytes were acknowledged to a guest before its peer had acknowledged them.
        early_acks,
        /// Connections reset because bytes that were acknowledged to the guest early cannot reach its peer any more.
        early_acks_aborted,
        /// Managed notices sent to the guest.
        managed_notices,
        /// SYN-ACKs that bore the name of their flow instead, first ones and repeated ones.
        named_in_syn_ack,
        /// Offline notices sent to the guest.
        offline_notices,
        /// Acknowledgements sent for the guest.
        acks_sent,
        /// Acknowledgements that rode on released data.
        acks_piggybacked,
        /// Acknowledgements sent for the guest that reported what had come out of order, before the guest did.
        early_sacks,
        /// Acknowledgements of the guest that said nothing new.
        absorbed_acks,
        /// Bytes acknowledged for the guest, those included whose acknowledgement was withdrawn.
        acknowledged_bytes,
        /// Kept frames that were delivered again.
        redelivered,
        /// Connections reset because bytes that were acknowledged for the guest cannot be delivered any more.
        aborted,
        /// Connections of an earlier process that were owed bytes, which are there.
        adopted,
        /// Such connections that are reset, because bytes are missing.
        adopted_broken,
        /// Such connections that cannot be told from others, so that all of the port are reset for a while.
        adopted_unknown,
        /// Receive side: transitions to `ACTIVE`.
        rx_to_active,
        /// Receive side: transitions to `NO_BUFFER`.
        rx_to_no_buffer,
        /// Receive side: transitions to `UNEXPECTED_SEQ`.
        rx_to_unexpected_seq,
        /// Receive side: segments whose acknowledgement was withdrawn before it left, because the guest's queue had no room for them.
        rx_withdrawn,
    }
}

impl CounterCells {
    /// Counts a connection that is not offloaded.
    pub(super) fn exclude(&self, reason: Reason) {
        self.flows_excluded().add(1);
        match reason {
            Reason::UnknownOption => self.excluded_unknown_option().add(1),
            Reason::SynData => self.excluded_syn_data().add(1),
            Reason::AccurateEcn => self.excluded_accurate_ecn().add(1),
            Reason::Forwarded => self.excluded_forwarded().add(1),
            _ => self.excluded_partial_handshake().add(1),
        }
    }
}
