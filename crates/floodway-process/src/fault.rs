//! Points at which a test ends a process, in debug builds.
//!
//! # Theory of operation
//! **Goal.** The hand-over between data planes, brokers and descriptor stores has to be right wherever one of them dies. Its steps have names here, the
//! [points](Point), and the code calls [`pass`] behind each. The model in `floodway-model` has the same steps: a new point has to be given a meaning there before it compiles.
//!
//! **How.** A test makes a file of [`LEN`] bytes and names it in the environment ([`VARIABLE`]) of `floodway run`, which passes it on to its children. Each process maps it before it enters its
//! sandbox. There are two words for each point: how often it was passed, and how many passings are left until a process ends. The passing that takes the
//! latter to zero ends its process by `SIGKILL`, and nobody after it: the words are shared by all.
//!
//! **Release builds** have nothing of this: [`pass`] is empty, and no variable is read. `make build` looks for the variable's name in the program.

/// Whose step a point is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// It moves frames.
    DataPlane,
    /// It holds sockets.
    Broker,
    /// It holds what the next broker needs.
    Store,
}

/// Declares the points, each in the process that passes it.
macro_rules! points {
    ($($process:ident { $($(#[$doc:meta])* $point:ident,)* })*) => {
        /// A step of the hand-over that is done.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Point {
            $($($(#[$doc])* $point,)*)*
        }

        impl Point {
            /// All of them.
            pub const ALL: &'static [Self] = &[$($(Self::$point,)*)*];

            /// The process that passes it.
            #[must_use]
            pub const fn process(self) -> Process {
                match self {
                    $($(Self::$point)|* => Process::$process,)*
                }
            }
        }
    };
}

points! {
    DataPlane {
        // Its workers.
        /// A batch of frames was taken from a transmit ring.
        BatchTaken,
        /// A frame was copied into a receive ring, and its used entry was written.
        FramePlaced,
        /// The used index of a receive ring was published.
        UsedPublished,
        /// A guest was interrupted.
        Interrupted,
        /// The used index of a transmit ring was published.
        BatchCompleted,
        /// A frame was taken from an uplink.
        SegmentReceived,
        /// A word of a journal was stored.
        JournalStored,
        /// An acknowledgement was sent in a guest's name.
        AckSent,
        // Its port threads.
        /// A message was received from the broker.
        MessageReceived,
        /// The device has acted on it.
        MessageActed,
        /// Its outcome was sent.
        HandledSent,
        /// The device has acted on a message of the record.
        ReplayActed,
        /// The end of the record was confirmed.
        ResumedSent,
        // Its main thread.
        /// It has got all that it starts with.
        PlaneEquipped,
        /// It serves, and has said so.
        ReadySent,
    }
    Broker {
        // Its port threads.
        /// The mark that the front-end is owed something is in the store.
        MarkSet,
        /// A message was taken from the front-end's socket.
        MessageTaken,
        /// It was sent to the data plane.
        MessageDelivered,
        /// Its outcome was received, and the record changed.
        HandledReceived,
        /// The reply was written.
        ReplyWritten,
        /// Changes of the record are in the store.
        ChangesKept,
        /// The connection is in the store, with the number of its next message.
        SessionKept,
        /// The mark was removed.
        MarkRemoved,
        /// A front-end was accepted.
        FrontEndAccepted,
        /// The channel of a new data plane is in the store.
        ChannelKept,
        /// The record was sent.
        ReplaySent,
        // Its main thread.
        /// A data plane was started.
        PlaneStarted,
        /// It is in the store.
        PlaneKept,
        /// Ports were given their channels to it.
        PlaneAttached,
        /// It was given the last of what it starts with.
        PlaneSupplied,
        /// That it is ready is in the store.
        ReadyKept,
        /// A data plane has ended.
        PlaneGone,
    }
    Store {
        /// It has taken an item.
        ItemKept,
        /// It has seen that the broker is gone.
        BrokerLost,
        /// It has given the next broker all items.
        ItemsGiven,
    }
}

/// The environment variable that names the file.
#[cfg(debug_assertions)]
pub const VARIABLE: &str = "FLOODWAY_FAULT_POINTS";

/// Bytes of the file: two words for each point.
#[cfg(debug_assertions)]
pub const LEN: usize = Point::ALL.len() * 2 * 8;

/// Says that `point` was passed. Does nothing in release builds.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn pass(_point: Point) {}

#[cfg(debug_assertions)]
pub use armed::{Points, open, pass};

#[cfg(debug_assertions)]
mod armed {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::ptr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::{LEN, Point, VARIABLE};

    static POINTS: OnceLock<Points> = OnceLock::new();

    /// The words of a file of points, mapped for as long as the process lives.
    #[derive(Clone, Copy, Debug)]
    pub struct Points(&'static [[AtomicU64; 2]]);

    impl Points {
        /// Makes the file at `path`, in which no point is armed.
        ///
        /// # Errors
        /// It cannot be made or mapped.
        pub fn create(path: &Path) -> io::Result<Self> {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
            file.set_len(LEN as u64)?;
            Self::map(&file)
        }

        fn map(file: &File) -> io::Result<Self> {
            if file.metadata()?.len() < LEN as u64 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let (prot, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
            // SAFETY: a new mapping, wherever the kernel has room for it.
            let start = unsafe { libc::mmap(ptr::null_mut(), LEN, prot, libc::MAP_SHARED, fd, 0) };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: as many words as were mapped, page-aligned, never unmapped, and accessed as atomics only; tests do not shorten the file.
            let words = unsafe { std::slice::from_raw_parts(start.cast(), Point::ALL.len()) };
            Ok(Self(words))
        }

        /// Ends the process that passes `point` for the `count`-th time from now on.
        pub fn arm(&self, point: Point, count: u64) {
            self.0[point as usize][1].store(count, SeqCst);
        }

        /// Returns `true` until a process has ended at `point`.
        #[must_use]
        pub fn is_armed(&self, point: Point) -> bool {
            self.0[point as usize][1].load(SeqCst) != 0
        }

        /// How often `point` was passed.
        #[must_use]
        pub fn passed(&self, point: Point) -> u64 {
            self.0[point as usize][0].load(SeqCst)
        }

        /// Notes a passing of `point`. Returns `true` if it is the one that was armed.
        fn note(&self, point: Point) -> bool {
            let [passed, left] = &self.0[point as usize];
            passed.fetch_add(1, SeqCst);
            left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1)
        }
    }

    /// Maps the file that the environment names, if it names one. To be called before the process confines itself.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn open() -> io::Result<()> {
        let Some(path) = std::env::var_os(VARIABLE) else { return Ok(()) };
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let points = Points::map(&file)?;
        // Fails when it was mapped before.
        let _ = POINTS.set(points);
        Ok(())
    }

    /// Says that `point` was passed. Ends the process if a test has armed it for this time.
    pub fn pass(point: Point) {
        let Some(points) = POINTS.get() else { return };
        if points.note(point) {
            // SAFETY: takes plain numbers. It does not return.
            unsafe { libc::raise(libc::SIGKILL) };
        }
    }

    #[cfg(test)]
    mod tests {
        use super::super::Process;
        use super::*;

        #[test]
        fn each_point_has_words_of_its_own_and_ends_one_process() {
            assert!(Point::ALL.iter().enumerate().all(|(at, &point)| point as usize == at));
            let path = std::env::temp_dir().join(format!("floodway-points-{}", std::process::id()));
            let points = Points::create(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            points.arm(Point::AckSent, 2);
            let ended: Vec<_> = (0..4).map(|_| points.note(Point::AckSent)).collect();
            assert_eq!(ended, [false, true, false, false]);
            assert_eq!(
                (points.passed(Point::AckSent), points.is_armed(Point::AckSent)),
                (4, false)
            );
            assert_eq!(points.passed(Point::MessageReceived), 0);
        }

        #[test]
        fn points_are_those_of_the_process_that_passes_them() {
            let of = |process| Point::ALL.iter().filter(move |point| point.process() == process);
            assert_eq!(of(Process::DataPlane).next_back(), Some(&Point::ReadySent));
            assert_eq!(of(Process::Broker).next_back(), Some(&Point::PlaneGone));
            assert_eq!(of(Process::Store).next(), Some(&Point::ItemKept));
        }
    }
}
