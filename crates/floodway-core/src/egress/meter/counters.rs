//! What a meter counts.

use crate::counters::counters;

counters! {
    /// What a meter has done. Counters only grow.
    pub struct Counters in CounterCells {
        /// Packets that were high.
        high,
        /// Packets that were low, those without a pair included.
        low,
        /// Packets that were low because the table was full.
        refused,
        /// Packets that made their pair low because the VM had sent enough in the high class.
        capped,
        /// Times that a pair became low.
        demoted,
        /// Times that a low pair became high again.
        promoted,
    }
}
