//! What tests of the built program share.

use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

/// Far beyond what a start or stop takes; only a failed test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A process that ends with the test. It is asked to end, not killed: data plane and descriptor store of a switch outlive a broker that was killed.
pub struct Running(pub Child);

impl Running {
    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.0.id()).unwrap();
        // SAFETY: kill takes plain numbers; the child is not yet waited for, so the id is its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Returns `true` if the process has ended within [`PATIENCE`].
    fn has_ended(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.0.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.signal(libc::SIGTERM);
        }
        if !self.has_ended() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
