//! Switches the offload of a port off and on, again and again, as an operator in doubt would.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use floodway_switch::api::control::OffloadChange;

use crate::switch_process::Switch;

/// Offload that is being switched until [`Flips::stop`]. It ends when dropped, too.
pub struct Flips {
    stop: Sender<()>,
    thread: JoinHandle<Result<u64>>,
}

impl Flips {
    /// Starts with "off", one period from now.
    ///
    /// # Errors
    /// When no client of the control socket can be made.
    pub fn start(switch: &Switch, port: &str, period: Duration) -> Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (client, port) = (switch.client()?, port.to_owned());
        let thread = thread::spawn(move || {
            let mut flips = 0_u64;
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                client.set_offload(&port, &both(flips % 2 == 1))?;
                flips += 1;
            }
            client.set_offload(&port, &both(true))?;
            Ok(flips)
        });
        Ok(Self { stop, thread })
    }

    /// Ends with both offloads on. Returns how often they were switched.
    ///
    /// # Errors
    /// When the switch refused or did not answer.
    pub fn stop(self) -> Result<u64> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow!("a thread panicked"))?
    }
}

fn both(on: bool) -> OffloadChange {
    OffloadChange { transmit: Some(on.into()), receive: Some(on), ..OffloadChange::default() }
}
