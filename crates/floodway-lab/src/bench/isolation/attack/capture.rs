//! An operator who captures the port of a busy VM.
//!
//! The VM is as busy in calm slices, so that what is compared is the capture alone. Whoever reads the capture shares a core with the VMs of this process, and the switch's
//! thread that writes it shares the worker's: both get what these leave, as an operator gets by nice(1), and the copies that find no room are lost.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_switch::api::capture::CaptureRequest;
use floodway_switch::control::{ClientError, ControlClient, Next};

use super::super::testbed::{ATTACKER, Testbed};
use super::{Attack, Flood, guest};

/// How long a capture may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked for.
const POLL: Duration = Duration::from_millis(1);
/// The lowest priority of an ordinary thread.
const NICEST: i32 = 19;

/// A VM that sends without end, and a capture of its port while the attack is on.
pub struct Captured {
    flood: Flood,
    control: PathBuf,
    port: String,
    running: Option<Running>,
}

/// A capture and who reads it.
struct Running {
    end: Arc<AtomicBool>,
    reader: JoinHandle<Result<u64, ClientError>>,
}

impl Captured {
    /// Boots the VM.
    ///
    /// # Errors
    /// When the switch does not take it.
    pub fn stage(bed: &Testbed) -> Result<Self> {
        let flood = guest::small_frames(bed, 1)?;
        let port = bed.port(ATTACKER).to_owned();
        Ok(Self { flood, control: bed.control_path(), port, running: None })
    }

    fn begin(&self) -> Running {
        let (control, end) = (self.control.clone(), Arc::new(AtomicBool::new(false)));
        let request = CaptureRequest::new(&self.port);
        let over = Arc::clone(&end);
        let reader = thread::spawn(move || {
            // SAFETY: takes plain numbers; 0 is this thread.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICEST) };
            let next = |_: &[u8]| match over.load(Ordering::Relaxed) {
                true => Next::Leave,
                false => Next::Continue,
            };
            ControlClient::new(&control)?.capture(&request, next)
        });
        Running { end, reader }
    }

    /// Waits until so many captures run.
    fn wait_for(&self, wanted: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let client = ControlClient::new(&self.control)?;
        while client.captures()?.iter().filter(|capture| capture.running).count() != wanted {
            ensure!(Instant::now() < deadline, "{wanted} captures do not run");
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let Some(Running { end, reader }) = self.running.take() else { return Ok(()) };
        end.store(true, Ordering::Relaxed);
        let ended = reader.join().map_err(|_| anyhow!("the reader panicked"))?;
        let id = ended.context("the capture")?;
        self.wait_for(0)?;
        let list = ControlClient::new(&self.control)?.captures()?;
        let captured = list.iter().find(|capture| capture.id == id).map_or(0, |it| it.captured);
        ensure!(captured > 0, "capture {id} has not seen a frame");
        Ok(())
    }
}

impl Attack for Captured {
    fn resume(&mut self) -> Result<()> {
        if self.running.is_none() {
            self.running = Some(self.begin());
            self.wait_for(1)?;
        }
        Ok(())
    }

    fn attack(&mut self) -> Result<()> {
        self.flood.attack()
    }

    fn calm(&mut self) -> Result<()> {
        self.flood.attack()
    }

    fn rest(&mut self) -> Result<bool> {
        self.end()?;
        self.flood.rest()
    }
}
