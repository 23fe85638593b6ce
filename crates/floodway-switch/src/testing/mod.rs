//! The guest's and the front-end's side of everything, for tests, benches and fuzz targets.
//!
//! # Theory of operation
//! [`TestMemory`] is a VM's memory: memfd regions that are mapped here and that the switch maps
//! again. [`DriverQueue`] is the driver side of one split virtqueue in it, with every word of the
//! ring open to tests that mean harm. [`Guest`] is a VM with a virtio-net device: queue pairs,
//! buffers, frames in and out. [`Frontend`] is the VMM: it attaches a guest to a port over
//! vhost-user with raw messages, so that a test can also send what no VMM would.
//!
//! A guest outlives its front-end: dropping a [`Frontend`] is a crash of the connection (nothing is
//! said, the socket closes), and a later one goes on with the same rings, as QEMU does.
//!
//! Nothing here waits by itself; [`wait`] gives up with a panic after [`HANG`], which is long
//! enough that only a hang gets there.

pub mod broker;
pub mod capture;
pub mod driver;
pub mod frames;
pub mod frontend;
pub mod fuzz;
pub mod guest;
pub mod memory;
pub mod message;
pub mod pcapng;
pub mod stored;

use std::thread;
use std::time::{Duration, Instant};

pub use driver::{Buffer, DriverQueue, RawDescriptor, Used};
pub use frontend::{Frontend, RequestError};
pub use guest::{Guest, GuestConfig, TxShape, as_driver_sends};
pub use memory::TestMemory;

/// When a test counts as hanging. A lossy connection of a stand-in guest, whose timeouts double, has taken 31 s on a busy machine.
pub const HANG: Duration = Duration::from_secs(120);

/// Calls `f` until it answers something.
///
/// # Panics
/// After [`HANG`]; `what` says what never came.
pub fn wait<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(answer) = f() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {HANG:?} in vain for: {what}");
        thread::sleep(Duration::from_micros(100));
    }
}

/// Waits until `f` is true; see [`wait`].
///
/// # Panics
/// As [`wait`].
pub fn wait_until(what: &str, mut f: impl FnMut() -> bool) {
    wait(what, || f().then_some(()));
}
