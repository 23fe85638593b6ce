//! What a front-end can do: descriptors, memory, messages, sockets.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use floodway_switch::testing::driver::F_WRITE;
use floodway_switch::testing::frames::numbered;
use floodway_switch::testing::memory::memfd;
use floodway_switch::testing::{TestMemory, message};
use floodway_switch::vhost::features;
use floodway_wire::vnet::VnetHdr;
use vmm_sys_util::eventfd::EventFd;

use super::super::testbed::{ACCOMPLICE, ATTACKER, Testbed};
use super::super::vm::{Spec, Vm, ask, truncate};
use super::guest::{SMALL, small_frames};
use super::{Attack, Flood};

/// Most that an eventfd counts: any further write blocks.
const FULL: u64 = u64::MAX - 1;

/// Two VMs that send each other frames, and ask for an interrupt for each by an eventfd that is full.
pub struct BlockedCall {
    flood: Flood,
    /// One of each ring of the attacker.
    calls: Vec<EventFd>,
}

impl BlockedCall {
    pub fn stage(bed: &Testbed) -> Result<Self> {
        // Without the event index a flag asks for every interrupt.
        let spec = Spec::default();
        let spec = Spec { features: spec.features & !features::EVENT_IDX, ..spec };
        let mut attacker = bed.boot(ATTACKER, &spec)?;
        attacker.fill(&VnetHdr::default(), &numbered(ATTACKER, ACCOMPLICE, 0, SMALL));
        let mut accomplice = bed.boot(ACCOMPLICE, &Spec::default())?;
        accomplice.fill(&VnetHdr::default(), &numbered(ACCOMPLICE, ATTACKER, 0, SMALL));
        let mut calls = Vec::new();
        for ring in 0..2_u64 {
            let call = EventFd::new(0).context("no eventfd")?;
            let number = ring.to_ne_bytes();
            let taken =
                attacker.frontend.request(message::SET_VRING_CALL, &number, &[call.as_raw_fd()]);
            ask(taken, "SET_VRING_CALL")?;
            calls.push(call);
        }
        attacker.rx(0).driver.set_avail_flags(0);
        attacker.tx(0).driver.set_avail_flags(0);
        Ok(Self { flood: Flood::new(vec![attacker, accomplice], 2), calls })
    }

    /// Lets an eventfd count as far as it can. The switch's descriptor blocks as this one does, so this one may not block only meanwhile.
    fn fill(call: &EventFd) -> Result<()> {
        set_flags(call, libc::O_NONBLOCK)?;
        let mut filled = call.write(FULL);
        // The switch may have counted in between.
        for _ in 0..100 {
            if filled.is_ok() {
                break;
            }
            let _ = call.read();
            filled = call.write(FULL);
        }
        set_flags(call, 0)?;
        filled.context("an eventfd does not take its value")
    }

    /// Empties the eventfds, so that who waits to write goes on.
    fn drain(&self) {
        for call in &self.calls {
            if is_readable(call) {
                let _ = call.read();
            }
        }
    }
}

fn set_flags(event: &EventFd, flags: i32) -> Result<()> {
    // SAFETY: a descriptor of ours; takes no pointers.
    let result = unsafe { libc::fcntl(event.as_raw_fd(), libc::F_SETFL, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()).context("F_SETFL") }
}

fn is_readable(event: &EventFd) -> bool {
    let mut poll = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer leads to one pollfd.
    (unsafe { libc::poll(&raw mut poll, 1, 0) }) == 1
}

impl Attack for BlockedCall {
    fn resume(&mut self) -> Result<()> {
        self.calls.iter().try_for_each(Self::fill)
    }

    fn attack(&mut self) -> Result<()> {
        self.flood.attack()
    }

    fn rest(&mut self) -> Result<bool> {
        self.drain();
        self.flood.rest()
    }
}

impl Drop for BlockedCall {
    fn drop(&mut self) {
        self.drain();
    }
}

/// How long a VM is well-behaved before its memory goes.
const INTACT: Duration = Duration::from_millis(40);

/// A VM whose memory goes while frames are on their way from and to it. It comes back for each slice.
pub struct ShrunkMemory<'a> {
    bed: &'a Testbed,
    attacker: Option<Vm>,
    accomplice: Flood,
    resumed: Instant,
}

impl<'a> ShrunkMemory<'a> {
    pub fn stage(bed: &'a Testbed) -> Result<Self> {
        let mut accomplice = bed.boot(ACCOMPLICE, &Spec::default())?;
        accomplice.fill(&VnetHdr::default(), &numbered(ACCOMPLICE, ATTACKER, 0, SMALL));
        let accomplice = Flood::new(vec![accomplice], 1);
        Ok(Self { bed, attacker: None, accomplice, resumed: Instant::now() })
    }
}

impl Attack for ShrunkMemory<'_> {
    fn resume(&mut self) -> Result<()> {
        let mut attacker = self.bed.boot(ATTACKER, &Spec::default())?;
        attacker.fill(&VnetHdr::default(), &numbered(ATTACKER, ACCOMPLICE, 0, SMALL));
        self.attacker = Some(attacker);
        self.resumed = Instant::now();
        Ok(())
    }

    fn attack(&mut self) -> Result<()> {
        self.accomplice.attack()?;
        let Some(attacker) = &mut self.attacker else { return Ok(()) };
        attacker.transmit(0, true);
        attacker.discard(0, |_| ());
        if self.resumed.elapsed() >= INTACT {
            // Not to be touched from here on, in this process neither.
            truncate(&attacker.memory)?;
            self.attacker = None;
        }
        Ok(())
    }

    fn rest(&mut self) -> Result<bool> {
        self.attacker = None;
        self.accomplice.rest()
    }
}

/// Bytes of a receive descriptor that is as long as one can be.
const HUGE: u32 = u32::MAX;
/// The region that it lies in.
const HUGE_REGION: u64 = 1 << 32;
const PAGE: u64 = 4096;

/// A VM in the middle of a migration, with receive buffers of 4 GiB, to which another one sends.
pub struct DirtyLog {
    flood: Flood,
    /// Lives as long as the switch may write to it.
    _log: File,
}

impl DirtyLog {
    pub fn stage(bed: &Testbed) -> Result<Self> {
        let spec = Spec { spare: HUGE_REGION, ..Spec::default() };
        let mut receiver = bed.boot(ATTACKER, &spec)?;
        let at = receiver.spare_at;
        let rx = receiver.rx(0);
        (0..rx.driver.size()).for_each(|slot| rx.set(slot, at, HUGE, F_WRITE));
        let bytes = (spec.end() / PAGE).div_ceil(8).next_multiple_of(PAGE);
        let log = memfd(bytes);
        ask(receiver.frontend.set_log_base(&log, bytes), "SET_LOG_BASE")?;
        let logging = (receiver.features | features::LOG_ALL).to_ne_bytes();
        ask(receiver.frontend.request(message::SET_FEATURES, &logging, &[]), "LOG_ALL")?;
        let mut sender = bed.boot(ACCOMPLICE, &Spec::default())?;
        sender.fill(&VnetHdr::default(), &numbered(ACCOMPLICE, ATTACKER, 0, SMALL));
        Ok(Self { flood: Flood::new(vec![sender, receiver], 1), _log: log })
    }
}

impl Attack for DirtyLog {
    fn attack(&mut self) -> Result<()> {
        self.flood.attack()
    }

    fn rest(&mut self) -> Result<bool> {
        self.flood.rest()
    }
}

/// What is sent to a QMP client that reads, now and then.
const CHATTER: [u8; 4096] = [b' '; 4096];
/// Turns until the next time.
const CHATTER_TURNS: u32 = 100;

/// A VMM that takes the switch's questions about vCPU threads and never ends its answer, beside a VM that sends.
pub struct SilentQmp {
    listener: UnixListener,
    connections: Vec<UnixStream>,
    flood: Flood,
    turn: u32,
}

impl SilentQmp {
    pub fn stage(bed: &Testbed) -> Result<Self> {
        let listener = bed.qmp().context("no QMP socket")?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, connections: Vec::new(), flood: small_frames(bed, 1)?, turn: 0 })
    }

    fn chat(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.connections.push(stream);
            }
        }
        self.connections.retain_mut(|stream| {
            let closed = matches!(stream.read(&mut [0; 256]), Ok(0));
            let _ = stream.write(&CHATTER);
            !closed
        });
    }
}

impl Attack for SilentQmp {
    fn attack(&mut self) -> Result<()> {
        self.turn += 1;
        if self.turn.is_multiple_of(CHATTER_TURNS) {
            self.chat();
        }
        self.flood.attack()
    }

    fn rest(&mut self) -> Result<bool> {
        self.connections.clear();
        self.flood.rest()
    }
}

/// Time between two connections: 2000 a second.
const CONNECT_PERIOD: Duration = Duration::from_micros(500);
/// What the switch is given to get through those that wait.
const BACKLOG_TIME: Duration = Duration::from_millis(100);

/// A front-end that never stays, beside a VM that would have used its port.
pub struct Reconnects {
    socket: PathBuf,
    memory: std::sync::Arc<TestMemory>,
    next: Instant,
    /// The one before, which is closed when the next one is made.
    last: Option<UnixStream>,
}

impl Reconnects {
    pub fn stage(bed: &Testbed) -> Result<Self> {
        let socket = bed.socket(ATTACKER);
        let deadline = Instant::now() + Duration::from_secs(20);
        while connect(&socket).is_err() {
            ensure!(Instant::now() < deadline, "nobody listens on {}", socket.display());
            std::thread::sleep(Duration::from_millis(10));
        }
        let memory = TestMemory::new(&[(0, 64 << 20)]);
        Ok(Self { socket, memory, next: Instant::now(), last: None })
    }

    /// All that a front-end says up to its memory, without waiting for answers.
    fn speak(&self, stream: &UnixStream) -> io::Result<()> {
        let features = Spec::default().features & !features::PROTOCOL_FEATURES;
        let layout = self.memory.layouts().next().expect("a region");
        let region = [layout.gpa, layout.size, layout.frontend_addr, layout.file_offset];
        let table: Vec<u8> =
            [1_u64].iter().chain(&region).flat_map(|word| word.to_ne_bytes()).collect();
        let send = |request, payload: &[u8], fds: &[i32]| {
            let size = payload.len() as u32;
            message::send(stream, &message::encode(request, message::VERSION, size, payload), fds)
        };
        send(message::SET_OWNER, &[], &[])?;
        send(message::SET_FEATURES, &features.to_ne_bytes(), &[])?;
        send(message::SET_MEM_TABLE, &table, &[self.memory.file(0).as_raw_fd()])
    }
}

impl Attack for Reconnects {
    fn attack(&mut self) -> Result<()> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + CONNECT_PERIOD;
        // A full backlog, or a connection that was closed already, is the switch's right.
        if let Ok(stream) = connect(&self.socket) {
            let _ = self.speak(&stream);
            self.last = Some(stream);
        }
        Ok(())
    }

    fn rest(&mut self) -> Result<bool> {
        self.last = None;
        Ok(self.next.elapsed() >= BACKLOG_TIME)
    }
}

/// Connects without waiting for room in the backlog.
fn connect(path: &Path) -> io::Result<UnixStream> {
    // SAFETY: takes no pointers.
    let fd = unsafe {
        libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: zeros are a sockaddr_un without a path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = path.as_os_str().as_bytes();
    // One byte of zero behind it.
    if path.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    for (to, &from) in address.sun_path.iter_mut().zip(path) {
        *to = from as libc::c_char;
    }
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and the length are those of `address`.
    if unsafe { libc::connect(fd, (&raw const address).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stream)
}
