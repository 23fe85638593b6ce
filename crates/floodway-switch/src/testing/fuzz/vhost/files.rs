//! What the front-end has to share: memory, notifications, and much that is neither.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use vmm_sys_util::epoll::Epoll;
use vmm_sys_util::eventfd::EventFd;

use crate::testing::memory::memfd;

/// Size of a page.
pub const PAGE: u64 = 4096;
/// Pages of each memory file.
pub const PAGES: u64 = 64;
/// Memory files that guest and front-end write. The last one may shrink.
pub const MEMORIES: usize = 3;
/// Entries of a ring as [`Files::post`] lays it out.
const RING: u16 = 16;

/// What is no memory, or none that may be mapped. Nothing that happens to it matters.
struct Strange {
    _reader: PipeReader,
    writer: PipeWriter,
    stream: UnixStream,
    epoll: Epoll,
    /// `None` where the system does not have it.
    files: Vec<Option<File>>,
}

impl Strange {
    fn new() -> Self {
        let (reader, mut writer) = pipe().expect("descriptors left");
        // Full: a write would block.
        writer.write_all(&[0; 1 << 16]).expect("room in a pipe");
        let (stream, _) = UnixStream::pair().expect("descriptors left");
        let epoll = Epoll::new().expect("descriptors left");
        let files = ["/dev/null", "/dev/zero", "/", "/proc/self/exe", "/proc/self/environ"];
        let files = files.map(|path| File::open(path).ok()).into();
        Self { _reader: reader, writer, stream, epoll, files }
    }
}

/// The descriptors that an input may send, by number.
pub struct Files {
    memories: [File; MEMORIES],
    /// One page: a dirty log.
    log: File,
    events: [EventFd; 2],
    /// As large as a counter gets: a write blocks.
    full: EventFd,
    /// The next entry of each ring that [`Files::post`] fills.
    next: [u16; 4],
}

thread_local! {
    static STRANGE: Strange = Strange::new();
}

impl Files {
    /// New files, all bytes zero.
    pub fn new() -> Self {
        let event = |flags| EventFd::new(flags).expect("descriptors left");
        let full = event(0);
        full.write(u64::MAX - 1).expect("room in an eventfd");
        Self {
            memories: std::array::from_fn(|_| memfd(PAGES * PAGE)),
            log: memfd(PAGE),
            events: [event(libc::EFD_NONBLOCK), event(0)],
            full,
            next: [0; 4],
        }
    }

    /// Opens what is kept from one input to the next.
    pub fn prepare() {
        STRANGE.with(|_| ());
    }

    /// The descriptor with number `n`; every byte names one.
    pub fn descriptor(&self, n: u8) -> RawFd {
        STRANGE.with(|strange| match n % 16 {
            n @ 0..=2 => self.memories[usize::from(n)].as_raw_fd(),
            3 => self.log.as_raw_fd(),
            n @ 4..=5 => self.events[usize::from(n - 4)].as_raw_fd(),
            6 => self.full.as_raw_fd(),
            7 => strange.writer.as_raw_fd(),
            8 => strange.stream.as_raw_fd(),
            9 => strange.epoll.as_raw_fd(),
            n => strange
                .files
                .get(usize::from(n - 10))
                .and_then(Option::as_ref)
                .map_or_else(|| self.log.as_raw_fd(), AsRawFd::as_raw_fd),
        })
    }

    /// Writes into memory file `n`. One that has shrunk grows again.
    pub fn write(&self, n: u8, at: u64, bytes: &[u8]) {
        let file = &self.memories[usize::from(n) % MEMORIES];
        file.write_all_at(bytes, at % (PAGES * PAGE - 16)).expect("a memory file");
    }

    /// The memory file that may shrink loses all its pages.
    pub fn shrink(&self) {
        self.memories[MEMORIES - 1].set_len(0).expect("a memory file");
    }

    /// Offers a descriptor on ring `n`, as a driver would whose rings lie in the first memory file: of ring `n` the descriptor table in page
    /// 3 n, the avail ring in the next one, the used ring in the one after that.
    pub fn post(&mut self, n: u8, addr: u64, len: u32, flags: u16) {
        let (ring, base) = (usize::from(n % 4), u64::from(n % 4) * 3 * PAGE);
        let slot = self.next[ring] % RING;
        self.next[ring] = self.next[ring].wrapping_add(1);
        let next = (slot + 1) % RING;
        let descriptor = [
            &addr.to_le_bytes()[..],
            &len.to_le_bytes(),
            &flags.to_le_bytes(),
            &next.to_le_bytes(),
        ];
        self.write(0, base + 16 * u64::from(slot), &descriptor.concat());
        self.write(0, base + PAGE + 4 + 2 * u64::from(slot), &slot.to_le_bytes());
        self.write(0, base + PAGE + 2, &self.next[ring].to_le_bytes());
    }
}
