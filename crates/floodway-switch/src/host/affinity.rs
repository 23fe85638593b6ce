//! Which cores threads run on.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// A set of cores.
#[derive(Clone, Copy)]
pub(crate) struct Cores(libc::cpu_set_t);

impl Cores {
    /// One core.
    ///
    /// # Errors
    /// There can be no such core.
    pub(crate) fn one(core: usize) -> io::Result<Self> {
        if core >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: an all-zero cpu_set_t is an empty set; `core` is inside it.
        let set = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            set
        };
        Ok(Self(set))
    }

    /// The cores that this thread may run on, without `taken`; `None` if none is left, or none is taken.
    pub(crate) fn spare(taken: impl IntoIterator<Item = usize>) -> Option<Self> {
        // SAFETY: an all-zero cpu_set_t is an empty set; the pointer and the size are its own.
        let (mut set, failed) = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let failed = libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
            (set, failed)
        };
        let before = Self(set).count();
        for core in taken.into_iter().filter(|&core| core < libc::CPU_SETSIZE as usize) {
            // SAFETY: `core` is inside the set.
            unsafe { libc::CPU_CLR(core, &mut set) };
        }
        let left = Self(set).count();
        (failed == 0 && left > 0 && left < before).then_some(Self(set))
    }

    fn count(&self) -> i32 {
        // SAFETY: takes a set by reference.
        unsafe { libc::CPU_COUNT(&self.0) }
    }

    /// Lets `thread` run on these cores only.
    ///
    /// # Errors
    /// The system refuses: the process may use none of them.
    pub(crate) fn pin<T>(&self, thread: &JoinHandle<T>) -> io::Result<()> {
        // SAFETY: the thread is not joined; the pointer and the size are those of a set.
        let failed = unsafe {
            libc::pthread_setaffinity_np(
                thread.as_pthread_t(),
                size_of_val(&self.0),
                &raw const self.0,
            )
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_of_workers_are_left_to_them_if_there_are_others() {
        let all: Vec<usize> = (0..libc::CPU_SETSIZE as usize).collect();
        assert!(Cores::spare(all.iter().copied()).is_none(), "all are taken");
        assert!(Cores::spare([]).is_none(), "nothing to keep off");
        let mine: Vec<usize> =
            all.into_iter().filter(|&core| Cores::spare([core]).is_some()).collect();
        for &core in &mine {
            let spare = Cores::spare([core]).unwrap();
            // SAFETY: `core` is inside the set.
            assert!(!unsafe { libc::CPU_ISSET(core, &spare.0) });
            assert_eq!(spare.count() as usize, mine.len() - 1);
        }
    }
}
