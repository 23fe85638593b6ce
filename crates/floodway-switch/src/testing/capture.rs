//! Captures whose file is in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use super::pcapng::File;
use super::{wait, wait_until};
use crate::api::capture::{CaptureRequest, CaptureStatus};
use crate::api::control::ControlError;
use crate::operator::{CaptureSink, ControlApi};

/// A file in memory.
#[derive(Clone, Default)]
pub struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// It takes nothing meanwhile.
    pub stuck: Arc<AtomicBool>,
    /// Nobody listens any more.
    pub closed: Arc<AtomicBool>,
}

impl Memory {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().expect("nobody panics with it")
    }
}

impl CaptureSink for Memory {
    fn send(&mut self, bytes: Vec<u8>) -> bool {
        while self.stuck.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        self.bytes().extend(bytes);
        self.is_open()
    }

    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }
}

/// A capture that runs.
pub struct Running {
    api: Arc<dyn ControlApi>,
    id: u64,
    /// Its file.
    pub memory: Memory,
}

impl Running {
    /// Begins a capture for user 7. It sees frames from now on.
    ///
    /// # Errors
    /// The switch refuses.
    pub fn begin(
        api: &Arc<dyn ControlApi>,
        request: &CaptureRequest,
    ) -> Result<Self, ControlError> {
        let memory = Memory::default();
        let id = api.capture(request, 7, Box::new(memory.clone()))?;
        // The tap is set before the first bytes are there.
        wait_until("the header", || !memory.bytes().is_empty());
        Ok(Self { api: Arc::clone(api), id, memory })
    }

    /// What the switch says of it.
    ///
    /// # Panics
    /// It does not list it.
    #[must_use]
    pub fn status(&self) -> CaptureStatus {
        let list = self.api.captures().captures;
        list.into_iter().find(|capture| capture.id == self.id).expect("it is listed")
    }

    /// The file so far.
    #[must_use]
    pub fn file(&self) -> File {
        File::read(&self.memory.bytes())
    }

    /// Waits until `n` frames are captured.
    pub fn wait_for(&self, n: usize) -> File {
        wait("captured frames", || Some(self.file()).filter(|file| file.packets.len() >= n))
    }

    /// Ends it, and returns the complete file.
    ///
    /// # Panics
    /// It cannot be ended.
    pub fn end(self) -> File {
        self.api.end_capture(self.id).expect("it is known");
        self.wait_end()
    }

    /// The complete file, once it has ended.
    pub fn wait_end(&self) -> File {
        wait_until("the end of the capture", || !self.status().running);
        self.file()
    }
}
