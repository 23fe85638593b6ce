//! Pauses a VM again and again, as an operator does for a snapshot.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::json;

use crate::vm::Vm;

/// How often and for how long a VM is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// Time that the VM runs between two pauses, in ms.
    pub every_ms: u64,
    /// Length of a pause, in ms. After two seconds the switch has dropped all that waited for the VM.
    pub for_ms: u64,
}

impl Pause {
    /// # Errors
    /// With the key that makes no sense.
    pub fn check(&self) -> Result<()> {
        ensure!(self.every_ms > 0, "pause.every_ms = 0: must be at least 1");
        ensure!(self.for_ms > 0, "pause.for_ms = 0: must be at least 1");
        Ok(())
    }

    /// Calls `body` while `guest` is paused again and again. Returns what it returned, and the number of pauses. The VM runs when this
    /// returns.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn during<R>(&self, guest: &Vm, body: impl FnOnce() -> R) -> Result<(R, u64)> {
        let (done, is_done) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let pauses = scope.spawn(move || {
                let mut count = 0_u64;
                let every = Duration::from_millis(self.every_ms);
                while is_done.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    guest.qmp("stop", &json!({})).context("cannot pause the VM")?;
                    thread::sleep(Duration::from_millis(self.for_ms));
                    guest.qmp("cont", &json!({})).context("cannot resume the VM")?;
                    count += 1;
                }
                Ok(count)
            });
            let result = body();
            drop(done);
            let count: Result<u64> = pauses.join().map_err(|_| anyhow!("a thread panicked"))?;
            Ok((result, count?))
        })
    }
}
