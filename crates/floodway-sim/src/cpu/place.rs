//! Where a vCPU goes: shared by the schedulers that keep a queue per pCPU.

/// The pCPU of `affinity` that comes first by `key`; the lowest number among equals.
///
/// # Panics
/// If the affinity names none of the `count` pCPUs.
pub(super) fn best<K: Ord>(affinity: u64, count: usize, key: impl Fn(usize) -> K) -> usize {
    let allowed = (0..count).filter(|&pcpu| allows(affinity, pcpu));
    allowed.min_by_key(|&pcpu| key(pcpu)).expect("the affinity names no pCPU of the machine")
}

pub(super) const fn allows(affinity: u64, pcpu: usize) -> bool {
    affinity >> (pcpu & 63) & 1 != 0
}
