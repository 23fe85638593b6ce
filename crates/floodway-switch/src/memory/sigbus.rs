//! Memory of front-ends that goes away under us: `SIGBUS`, survived.
//!
//! # Theory of operation
//! **Goal**: a front-end shares files with us ([`crate::memory::mapping`]), and may take their bytes away whenever it likes: it shrinks a file, or the file
//! system is full when a hole of the file is touched, or the memory is broken. The kernel answers an access to such a page with `SIGBUS`, which
//! ends the process unless it is handled. Only that front-end's port may suffer.
//!
//! **How**: a handler for the whole process looks the address up among all mappings of front-ends' files. If it is in one, the page is replaced
//! by anonymous memory, and the access starts again: it reads zeros, or writes what nobody reads. That goes for a chunk around
//! the page (`CHUNK`), and from the `CHUNKS`-th fault of a connection on for the whole mapping, so that a front-end causes a few faults, not one for each page. The
//! connection's [`Faults`] note what happened and wake the port's socket thread, which ends the connection and quarantines the port
//! ([`crate::vhost::connection`]). Until it does, workers go on with memory that nobody shares; whatever they read there is checked as always.
//! `SIGBUS` for any other address goes to the handler that was there before. One that no access of ours has caused (`BUS_MCEERR_AO`: the kernel found a
//! page broken before anybody touched it) is ignored: its address says nothing about what this thread does, and the access that needs the page will
//! fault.
//!
//! System calls that are handed such memory fail with `EFAULT` instead; the frame is dropped and counted.
//!
//! **State**: a fixed table of atomics, as a signal handler can neither lock nor allocate. A slot's `sequence` is odd while it changes, and a reader that sees it change
//! leaves the slot out: the slot that a faulting thread looks for cannot change, as the thread keeps the mapping alive.
//!
//! **Invariants**: a slot's `faults` are alive while the slot is in use; a slot is given back before its mapping goes.
//!
//! Source: `sigaction(2)`, `signal-safety(7)`, `mmap(2)`.

use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Once, OnceLock};

use vmm_sys_util::eventfd::EventFd;

use crate::sync::lock;

/// Bytes that are replaced at once, if the pages are not larger. More cost fewer faults, and more time for each.
const CHUNK: usize = 2 << 20;
/// Faults of a connection after which a mapping is replaced whole.
const CHUNKS: u32 = 64;
/// Mappings of front-ends' files, in all. The kernel allows 65 530 of any kind (`vm.max_map_count`).
const SLOTS: usize = 1 << 16;

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A region of guest memory.
    GuestMemory = 1,
    /// A dirty log.
    DirtyLog = 2,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::GuestMemory, Self::DirtyLog];

    /// Its name in status and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::GuestMemory => "guest_memory",
            Self::DirtyLog => "dirty_log",
        }
    }

    /// Its name in texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GuestMemory => "guest memory",
            Self::DirtyLog => "dirty log",
        }
    }
}

/// What has happened to the mappings of one connection.
#[derive(Debug, Default)]
pub struct Faults {
    count: AtomicU32,
    /// What the first one hit, as a [`Kind`]; zero if there was none.
    first: AtomicU8,
    /// Signalled at each fault. Nobody else has it, and it does not block.
    alarm: Option<Arc<EventFd>>,
}

impl Faults {
    /// No faults yet; `alarm` is to be signalled at each. It must be non-blocking.
    #[must_use]
    pub fn new(alarm: Arc<EventFd>) -> Self {
        Self { alarm: Some(alarm), ..Self::default() }
    }

    /// What the first fault hit, if there was one.
    #[must_use]
    pub fn first(&self) -> Option<Kind> {
        match self.first.load(Ordering::Acquire) {
            0 => None,
            hit if hit == Kind::GuestMemory as u8 => Some(Kind::GuestMemory),
            _ => Some(Kind::DirtyLog),
        }
    }

    /// How many there were.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Notes a fault; returns how many there were before. Async-signal-safe.
    fn note(&self, kind: u8) -> u32 {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let _ = self.first.compare_exchange(0, kind, Ordering::AcqRel, Ordering::Relaxed);
        if let Some(alarm) = &self.alarm {
            // Fails only when the counter is full, and then the alarm has been given.
            let _ = alarm.write(1);
        }
        before
    }
}

/// A mapping in the table. See the module's theory of operation.
struct Slot {
    sequence: AtomicU32,
    start: AtomicUsize,
    /// Bytes; zero if the slot is free.
    len: AtomicUsize,
    /// Size of the mapping's pages.
    page: AtomicUsize,
    kind: AtomicU8,
    faults: AtomicPtr<Faults>,
}

impl Slot {
    const fn free() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            kind: AtomicU8::new(0),
            faults: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Changes the slot. By one thread at a time.
    fn set(&self, change: impl FnOnce(&Self)) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        change(self);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// The mapping, if the slot has one that `address` is in and does not change.
    fn find(&self, address: usize) -> Option<Found> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let found = Found {
            start: self.start.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            page: self.page.load(Ordering::Relaxed),
            kind: self.kind.load(Ordering::Relaxed),
            faults: self.faults.load(Ordering::Relaxed),
        };
        fence(Ordering::SeqCst);
        let settled =
            sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        (settled && address.wrapping_sub(found.start) < found.len).then_some(found)
    }
}

static TABLE: [Slot; SLOTS] = [const { Slot::free() }; SLOTS];
/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Slots below [`USED`] that are free.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Mappings in the table.
#[cfg(any(test, fuzzing))]
pub(crate) fn mappings() -> usize {
    let free = lock(&FREE);
    USED.load(Ordering::Relaxed) - free.len()
}

/// A mapping's entry in the table, as long as it lives.
#[derive(Debug)]
pub struct Registration {
    slot: usize,
    // The handler has a pointer to it.
    _faults: Arc<Faults>,
}

impl Registration {
    /// Enters the mapping of `len` bytes at `start`, which consists of pages of `page` bytes. `None` if there are too many mappings.
    ///
    /// The entry must be dropped before the mapping goes.
    pub fn new(
        start: *mut u8,
        len: usize,
        page: usize,
        kind: Kind,
        faults: &Arc<Faults>,
    ) -> Option<Self> {
        handle_sigbus();
        let mut free = lock(&FREE);
        let slot = match free.pop() {
            Some(slot) => slot,
            None if USED.load(Ordering::Relaxed) < SLOTS => USED.fetch_add(1, Ordering::AcqRel),
            None => return None,
        };
        TABLE[slot].set(|slot| {
            slot.start.store(start.addr(), Ordering::Relaxed);
            slot.len.store(len, Ordering::Relaxed);
            slot.page.store(page, Ordering::Relaxed);
            slot.kind.store(kind as u8, Ordering::Relaxed);
            slot.faults.store(Arc::as_ptr(faults).cast_mut(), Ordering::Relaxed);
        });
        Some(Self { slot, _faults: Arc::clone(faults) })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut free = lock(&FREE);
        TABLE[self.slot].set(|slot| {
            slot.len.store(0, Ordering::Relaxed);
            slot.faults.store(std::ptr::null_mut(), Ordering::Relaxed);
        });
        free.push(self.slot);
    }
}

/// The mapping that an address is in.
struct Found {
    start: usize,
    len: usize,
    page: usize,
    kind: u8,
    faults: *const Faults,
}

impl Found {
    /// Puts anonymous memory in place of the page at `address`, and more; returns `true` if that worked. Async-signal-safe.
    fn mend(&self, address: usize) -> bool {
        // SAFETY: the faulting thread keeps the mapping alive, and so its registration and what that keeps.
        let before = unsafe { &*self.faults }.note(self.kind);
        let end = self.start + self.len;
        let chunk = CHUNK.max(self.page);
        let from = (address / chunk * chunk).max(self.start);
        let to = (from / chunk * chunk + chunk).min(end);
        (before < CHUNKS && replace(from, to)) || replace(self.start, end)
    }
}

/// Maps anonymous memory from `start` to `end`, in place of what is there. Async-signal-safe.
fn replace(start: usize, end: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let at = std::ptr::without_provenance_mut(start);
    // SAFETY: the range is a part of a registered mapping, of which only raw pointers exist; its users expect any bytes there.
    let mapped = unsafe { libc::mmap(at, end - start, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// What handled `SIGBUS` before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
fn handle_sigbus() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: all-zero is a valid sigaction; both calls are given pointers to such; the handler only does what
        // a signal handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut action);
            let _ = PREVIOUS.set(action);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    });
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid siginfo. The errno of this thread is put back as it was:
    // we may be between a system call and the look at its error.
    unsafe {
        let errno = *libc::__errno_location();
        match (*info).si_code {
            // By kill(2): nothing faults again when a handler returns.
            ..=0 => end_process(signal),
            // No access of ours: the kernel has found a page broken, and asks for nothing. Whoever touches it gets a fault of its own.
            // The mapping of the address may be going away, as this thread does not hold it.
            libc::BUS_MCEERR_AO => {}
            libc::BUS_ADRALN => pass_on(signal, info, context),
            _ if mend((*info).si_addr().addr()) => {}
            _ => pass_on(signal, info, context),
        }
        *libc::__errno_location() = errno;
    }
}

/// Mends the mapping that `address` is in; returns `true` if there is one and that worked.
fn mend(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    let found = TABLE[..used].iter().find_map(|slot| slot.find(address));
    found.is_some_and(|found| found.mend(address))
}

/// Lets the previous handler deal with the signal; without one the process ends.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    let previous = PREVIOUS.get().map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    if previous == libc::SIG_DFL || previous == libc::SIG_IGN {
        return end_process(signal);
    }
    // SAFETY: not one of the two special values, so it is a handler; one that expects less ignores the other arguments.
    let handler = unsafe { std::mem::transmute::<usize, Handler>(previous) };
    handler(signal, info, context);
}

/// Ends the process as the signal does by default, when the handler that calls this returns.
fn end_process(signal: i32) {
    // SAFETY: both may be called in a handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use crate::memory::mapping::SharedMapping;
    use crate::testing::memory::memfd;

    const VARIABLE: &str = "FLOODWAY_TEST_SIGBUS";

    /// Faults in a mapping that is not in the table.
    fn fault() {
        let file = memfd(4096);
        // SAFETY: a new mapping, whose only byte that is read is in its first page; that this faults is the point.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            file.set_len(0).unwrap();
            at.cast::<u8>().read_volatile();
        }
    }

    /// Sends this thread a `SIGBUS` with `code` for the page at `address`, as the kernel does.
    fn raise(code: i32, address: *mut u8) {
        // SAFETY: all-zero is a valid siginfo; the address is where the kernel puts it, behind three integers and their padding.
        // A process may send itself any code.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (info.si_signo, info.si_code) = (libc::SIGBUS, code);
            (&raw mut info).byte_add(16).cast::<*mut u8>().write(address);
            assert_eq!(info.si_addr(), address.cast());
            let (process, thread) = (libc::getpid(), libc::gettid());
            let sent = libc::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                process,
                thread,
                libc::SIGBUS,
                &raw const info,
            );
            assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
        }
    }

    #[test]
    fn broken_memory_that_nobody_has_touched_stays_the_front_ends() {
        let faults = Arc::default();
        let mapping =
            SharedMapping::new(&memfd(4096), 0, 4096, Kind::GuestMemory, &faults).unwrap();
        // SAFETY: the first byte of a mapping.
        unsafe { mapping.as_ptr().write_volatile(7) };
        raise(libc::BUS_MCEERR_AO, mapping.as_ptr());
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.as_ptr().read_volatile() }, 7, "still the file's");
        assert_eq!((faults.count(), faults.first()), (0, None));
        // Nor does it end the process if it is nobody's.
        raise(libc::BUS_MCEERR_AO, std::ptr::without_provenance_mut(4096));
        // Who touches it has a fault of its own.
        raise(libc::BUS_MCEERR_AR, mapping.as_ptr());
        assert_eq!((faults.count(), faults.first()), (1, Some(Kind::GuestMemory)));
    }

    #[test]
    fn other_bus_errors_still_end_the_process() {
        // This test runs itself, as the process that ends.
        match std::env::var(VARIABLE).as_deref() {
            Ok("fault") => {
                handle_sigbus();
                return fault();
            }
            Ok(_) => {
                handle_sigbus();
                // SAFETY: takes no pointers.
                unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
                return;
            }
            Err(_) => {}
        }
        for cause in ["fault", "kill"] {
            let name = "memory::sigbus::tests::other_bus_errors_still_end_the_process";
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args(["--exact", name]).env(VARIABLE, cause).output().unwrap();
            assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{cause}: {output:?}");
        }
    }
}
