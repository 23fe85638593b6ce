//! Uplinks' devices: opened here, kept here, and handed to each data plane.
//!
//! # Theory of operation
//! The device stays open from one data plane to the next, with what the kernel has queued for it. It is opened again when it is found to be gone
//! before a data plane starts, or when a data plane reports that it has failed. The new one is opened before the old one is closed, so a data plane
//! that reports failures at will changes nothing but which of two descriptors of the same device it has; it may do so once every [`PAUSE`].
//!
//! An uplink that changes, and keeps its device, keeps it open: the next layout has it under another number.
//!
//! A device that cannot be opened again is left out: the data plane starts without it, and asks again.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use floodway_process::message::{ToDataPlane, UplinkKind};

/// Least time between two attempts to open a device for a data plane that asks. It asks once a second.
const PAUSE: Duration = Duration::from_millis(500);

/// An open device.
pub trait Device: Send {
    /// How its descriptors are used.
    fn kind(&self) -> UplinkKind;

    /// Bits per second, if the device says so.
    fn link_rate(&self) -> Option<u64>;

    /// As many descriptors as the kind has.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Returns `true` if the interface behind it has been removed.
    fn is_gone(&self) -> bool;
}

/// Opens an uplink's device.
pub type Opener = Box<dyn Fn() -> io::Result<Box<dyn Device>> + Send>;

/// An uplink of the configuration.
pub struct Uplink {
    name: String,
    open: Opener,
    device: Option<Box<dyn Device>>,
    /// When a data plane may ask again.
    next: Instant,
}

impl Uplink {
    /// Opens the uplink `name`.
    ///
    /// # Errors
    /// Its device cannot be used.
    pub fn open(name: &str, open: Opener) -> io::Result<Self> {
        let device = Some(open()?);
        Ok(Self { name: name.to_owned(), open, device, next: Instant::now() })
    }

    /// The uplink `name`, with the device that a broker which has died has opened.
    #[must_use]
    pub fn resume(name: &str, open: Opener, device: Option<Box<dyn Device>>) -> Self {
        Self { name: name.to_owned(), open, device, next: Instant::now() }
    }

    /// Opens a device that has been removed again; to be called before a data plane gets it.
    pub fn refresh(&mut self) {
        if self.device.as_ref().is_none_or(|device| device.is_gone()) {
            self.device = None;
            self.reopen();
        }
    }

    /// Opens the device again, since a data plane says that it has failed. Returns `true` if there is another one.
    pub fn on_failed(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + PAUSE;
        self.reopen()
    }

    fn reopen(&mut self) -> bool {
        match (self.open)() {
            Ok(device) => {
                self.device = Some(device);
                true
            }
            Err(error) => {
                tracing::debug!(uplink = self.name, %error, "cannot open the uplink again");
                false
            }
        }
    }

    /// What a data plane is given as the uplink with this number; nothing while there is no device.
    #[must_use]
    pub fn message(&self, number: u16) -> Option<(ToDataPlane, Vec<BorrowedFd<'_>>)> {
        let device = self.device.as_ref()?;
        let (kind, link_rate) = (device.kind(), device.link_rate());
        Some((ToDataPlane::Uplink { number, kind, link_rate }, device.descriptors()))
    }
}

/// An uplink of a layout.
#[derive(Clone)]
pub struct UplinkPlace {
    /// Its number, which no other uplink of the layout has, nor one of the layout before that is not the same.
    pub number: u16,
    /// Its device; that of an uplink of the layout before, if it is the same one.
    pub uplink: Arc<Mutex<Uplink>>,
}

impl UplinkPlace {
    /// Calls `f` with the uplink.
    pub fn with<R>(&self, f: impl FnOnce(&mut Uplink) -> R) -> R {
        f(&mut self.uplink.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for UplinkPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UplinkPlace").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

    use super::*;

    /// A network interface: how often it was opened, and whether it is there.
    #[derive(Default)]
    struct Interface {
        opened: AtomicU64,
        missing: AtomicBool,
    }

    struct Opened {
        interface: Arc<Interface>,
        number: u64,
        file: File,
    }

    impl Device for Opened {
        fn kind(&self) -> UplinkKind {
            UplinkKind::Tap
        }

        fn link_rate(&self) -> Option<u64> {
            Some(self.number)
        }

        fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
            vec![self.file.as_fd()]
        }

        fn is_gone(&self) -> bool {
            self.interface.missing.load(Relaxed)
        }
    }

    fn open(interface: &Arc<Interface>) -> io::Result<Box<dyn Device>> {
        if interface.missing.load(Relaxed) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let number = interface.opened.fetch_add(1, Relaxed) + 1;
        let (interface, file) = (Arc::clone(interface), File::open("/dev/null")?);
        Ok(Box::new(Opened { number, interface, file }))
    }

    fn uplink() -> (Arc<Interface>, Uplink) {
        let interface = Arc::new(Interface::default());
        let opened = Arc::clone(&interface);
        let uplink = Uplink::open("u", Box::new(move || open(&opened))).unwrap();
        (interface, uplink)
    }

    /// Which of the devices that were opened is handed out; `None` for none.
    fn handed_out(uplink: &Uplink) -> Option<u64> {
        match uplink.message(3)? {
            (ToDataPlane::Uplink { number: 3, link_rate, .. }, fds) if fds.len() == 1 => link_rate,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_device_is_kept_from_one_data_plane_to_the_next() {
        let (_, mut uplink) = uplink();
        uplink.refresh();
        uplink.refresh();
        assert_eq!(handed_out(&uplink), Some(1));
    }

    #[test]
    fn a_device_that_has_gone_is_left_out_until_it_is_back() {
        let (interface, mut uplink) = uplink();
        interface.missing.store(true, Relaxed);
        uplink.refresh();
        assert_eq!(handed_out(&uplink), None);
        assert!(!uplink.on_failed(Instant::now()));
        interface.missing.store(false, Relaxed);
        uplink.refresh();
        assert_eq!(handed_out(&uplink), Some(2));
    }

    #[test]
    fn a_data_plane_that_asks_all_the_time_is_answered_twice_a_second() {
        let (interface, mut uplink) = uplink();
        let start = Instant::now();
        let asked = (0..1000).filter(|ms| uplink.on_failed(start + Duration::from_millis(*ms)));
        assert_eq!(asked.count(), 2);
        assert_eq!((interface.opened.load(Relaxed), handed_out(&uplink)), (3, Some(3)));
    }
}
