//! VM scheduling: how long a guest's CPUs run at a time, for guests that ask and guests that compute.
//!
//! # Theory of operation
//! **Goal**: a guest that has to answer gets the CPU soon after its interrupt, although others on the same core have work
//! without end (the paper's first latency trap). On Linux vCPUs are ordinary threads under EEVDF, which
//! picks, among those that have had no more than their share, the one with the earliest virtual deadline; a thread's
//! deadline is its *slice* away. A short slice therefore means soon and not for long, a long one later and undisturbed;
//! the share is the same. A waking thread with a shorter slice preempts one with a longer one (Linux 6.12).
//!
//! A port with a `[port.vcpu]` section names its VM by a QMP socket ([`qmp`]) or a process id
//! ([`threads`]), and a policy: `latency` (short slice) or `throughput` (long). A thread of the switch looks for the VM's
//! vCPU threads every few seconds, since VMs come and go, and gives those it has not seen the policy's slice
//! ([`sched`]); nothing else of a thread's scheduling is touched.
//!
//! **Trust**: what answers on a QMP socket may be a VMM that its guest has taken over. It is never waited for (`call`): a question ends
//! with the answer, two seconds after it began, or with a megabyte, whichever comes first, and the VMs have schedules of their own. The threads
//! that it names have to be its own (`peer`); if one is not, nothing is changed.
//!
//! **Rights**: with a broker all of this runs there, since it needs a capability and paths; the data plane only shows what becomes of it.
//!
//! **Ends**: what a thread had before is noted and given back when the switch stops. A switch that is killed gives
//! nothing back; the next one takes what it finds for what was before.
//!
//! **Refusals** are said once and are in the status until they are over: no such VM, no permission (another user's threads
//! need `CAP_SYS_NICE`), a kernel before 6.12 (which takes the slice and ignores it: it is read back), a thread
//! that is not an ordinary one.
//!
//! **Invariants**: no thread but a configured VM's is changed, whatever its socket says; a thread is told from a later one of the same number
//! by its start time; what is given back is what was found.
//!
//! Source: Linux `kernel/sched/fair.c` and `syscalls.c` (custom slices, 6.12); QEMU `query-cpus-fast`.

mod call;
mod controller;
mod peer;
pub mod qmp;
pub mod sched;
#[cfg(test)]
mod tests;
pub mod threads;

pub use crate::config::{Policy, Slices};
pub use controller::{ManagedVm, SliceController};
