//! What is counted for a VM.

use crate::counters::counters;

counters! {
    /// What a VM's inbound clamp has done. Counters only grow.
    pub struct Counters in CounterCells {
        /// Connections that completed their handshake, or were met in mid-stream.
        established,
        /// Connections that are never changed: an option that is not known, or AccECN, in their SYNs.
        excluded,
        /// Connections that were not followed for lack of room.
        refused,
        /// Segments whose window was made smaller.
        clamped,
        /// ACKs that had to wait.
        held,
        /// ACKs that left after waiting.
        released,
        /// ACKs that left because they had waited for too long.
        released_late,
        /// Window updates of our own.
        updates,
        /// ACKs that told nothing any more: a newer one took their place.
        superseded,
        /// Requests of the VM that had to wait, so that the answers to all do not come at once.
        requests_held,
        /// SYN-ACKs that had to wait, so that those who call do not all speak at once.
        syn_acks_held,
        /// Requests and SYN-ACKs that left because they had waited for too long, or because more of the VM came behind them.
        requests_late,
        /// Requests and SYN-ACKs that were lost while they waited: their connection was forgotten to make room, reset, or begun anew.
        waiting_lost,
        /// Bytes that arrived without having been granted.
        ungranted_bytes,
        /// UDP datagrams dropped.
        policed,
    }
}
