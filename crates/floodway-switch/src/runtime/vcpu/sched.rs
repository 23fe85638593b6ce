//! Scheduling attributes of a thread (sched_setattr(2)).

use std::io;
use std::time::Duration;

pub use crate::config::SLICES;

/// `struct sched_attr` of the kernel, first version.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    size: u32,
    /// `SCHED_*` policy.
    pub policy: u32,
    /// `SCHED_FLAG_*` bits.
    pub flags: u64,
    /// Niceness, of an ordinary thread.
    pub nice: i32,
    /// Priority, of a real-time thread.
    pub priority: u32,
    /// Nanoseconds; of an ordinary thread, its slice.
    pub runtime: u64,
    /// Nanoseconds, of a deadline thread.
    pub deadline: u64,
    /// Nanoseconds, of a deadline thread.
    pub period: u64,
}

impl Attributes {
    /// Those of a thread under `policy` with nothing else said: nice 0, the default slice.
    #[must_use]
    pub fn new(policy: i32) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            policy: policy.unsigned_abs(),
            flags: 0,
            nice: 0,
            priority: 0,
            runtime: 0,
            deadline: 0,
            period: 0,
        }
    }

    /// The attributes of a thread; 0 is the calling one.
    ///
    /// # Errors
    /// There is no such thread.
    pub fn of(thread: i32) -> io::Result<Self> {
        let mut attributes = Self::new(0);
        // SAFETY: the pointer is to a sched_attr of the size that is given, which the kernel fills.
        let rc = unsafe {
            libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, attributes.size, 0)
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
    }

    /// Gives them to a thread.
    ///
    /// # Errors
    /// There is no such thread, it is another user's, or the kernel refuses.
    pub fn apply(&self, thread: i32) -> io::Result<()> {
        // SAFETY: the pointer is to a sched_attr that says its own size and lives through the call.
        let rc =
            unsafe { libc::syscall(libc::SYS_sched_setattr, thread, std::ptr::from_ref(self), 0) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// It is an ordinary thread (`SCHED_OTHER` or `SCHED_BATCH`): slices are for those.
    #[must_use]
    pub const fn is_ordinary(&self) -> bool {
        matches!(self.policy.cast_signed(), libc::SCHED_OTHER | libc::SCHED_BATCH)
    }

    /// The slice of an ordinary thread; zero on kernels that have none.
    #[must_use]
    pub const fn slice(&self) -> Duration {
        Duration::from_nanos(self.runtime)
    }
}

/// Why a slice was not set.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// It is not an ordinary thread.
    #[error(
        "thread {0} is a real-time or idle one; slices are for ordinary threads (set its policy back to SCHED_OTHER)"
    )]
    NotOrdinary(i32),
    /// The kernel took the slice and did nothing.
    #[error("this kernel has no slices per thread; they came with Linux 6.12")]
    Unsupported,
    /// Another user's thread.
    #[error(
        "no permission to change thread {0}; run floodway as the VM's user or give it CAP_SYS_NICE"
    )]
    Permission(i32),
    /// Anything else.
    #[error("thread {thread}: {source}")]
    System {
        /// The thread.
        thread: i32,
        /// What the system said.
        source: io::Error,
    },
}

impl SliceError {
    /// The thread has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.raw_os_error() == Some(libc::ESRCH))
    }
}

/// Sets the slice of an ordinary thread and nothing else; answers what it had before.
///
/// # Errors
/// See [`SliceError`]; nothing is changed then.
pub fn set_slice(thread: i32, slice: Duration) -> Result<Attributes, SliceError> {
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => SliceError::Permission(thread),
        _ => SliceError::System { thread, source },
    };
    let before = Attributes::of(thread).map_err(failed)?;
    if !before.is_ordinary() {
        return Err(SliceError::NotOrdinary(thread));
    }
    let runtime = slice.clamp(*SLICES.start(), *SLICES.end()).as_nanos() as u64;
    Attributes { runtime, ..before }.apply(thread).map_err(failed)?;
    if Attributes::of(thread).map_err(failed)?.runtime != runtime {
        let _ = before.apply(thread);
        return Err(SliceError::Unsupported);
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_set_and_given_back_and_nothing_else_changes() {
        std::thread::spawn(|| {
            // Also where tests run as SCHED_IDLE.
            let nice = Attributes::of(0).unwrap().nice;
            Attributes { nice, ..Attributes::new(libc::SCHED_OTHER) }.apply(0).unwrap();
            let before = Attributes::of(0).unwrap();
            match set_slice(0, Duration::from_millis(7)) {
                Ok(had) => {
                    assert_eq!(had, before);
                    let now = Attributes::of(0).unwrap();
                    assert_eq!(now, Attributes { runtime: 7_000_000, ..before });
                }
                // The rest is about kernels that have slices.
                Err(SliceError::Unsupported) => return,
                Err(error) => panic!("{error}"),
            }
            set_slice(0, Duration::from_secs(9)).unwrap();
            assert_eq!(Attributes::of(0).unwrap().slice(), *SLICES.end());
            before.apply(0).unwrap();
            assert_eq!(Attributes::of(0).unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn refusals_say_what_to_do() {
        let gone = set_slice(i32::MAX, Duration::from_millis(1)).unwrap_err();
        assert!(gone.is_gone(), "{gone}");
        assert!(SliceError::Permission(7).to_string().contains("CAP_SYS_NICE"));
        assert!(SliceError::Unsupported.to_string().contains("6.12"));
        std::thread::spawn(|| {
            Attributes::new(libc::SCHED_IDLE).apply(0).unwrap();
            let error = set_slice(0, Duration::from_millis(1)).unwrap_err();
            assert!(matches!(error, SliceError::NotOrdinary(0)), "{error}");
        })
        .join()
        .unwrap();
    }
}
