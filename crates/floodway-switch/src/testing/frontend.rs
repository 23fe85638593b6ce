//! The front-end: what a VMM says to attach its guest.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::message::{self, encode};
use super::{Guest, HANG, TestMemory, wait};
use crate::memory::RegionLayout;
use crate::vhost::features;

/// Why a request failed.
#[derive(Debug)]
pub enum RequestError {
    /// The back-end answered with an error.
    Refused(u64),
    /// The connection is gone or out of step.
    Io(io::Error),
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A connection to the switch. Dropping it is a crash: the socket closes and nothing is said.
pub struct Frontend {
    stream: UnixStream,
    /// Every request is acknowledged.
    acks: bool,
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn state(index: u32, value: u32) -> Vec<u8> {
    [index, value].iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn region(layout: RegionLayout) -> Vec<u8> {
    words(&[layout.gpa, layout.size, layout.frontend_addr, layout.file_offset])
}

fn u64_of(payload: &[u8]) -> io::Result<u64> {
    let bytes = payload.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Frontend {
    /// Speaks over `stream`; nothing is said yet.
    ///
    /// # Panics
    /// The stream is none.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(HANG)).expect("a socket");
        stream.set_write_timeout(Some(HANG)).expect("a socket");
        Self { stream, acks: false }
    }

    /// Connects to a port in server mode, as soon as it listens.
    #[must_use]
    pub fn connect(path: &Path) -> Self {
        Self::new(wait("the port's socket", || UnixStream::connect(path).ok()))
    }

    /// Takes the connection of a port in client mode.
    ///
    /// # Panics
    /// It never comes.
    #[must_use]
    pub fn accept(listener: &UnixListener) -> Self {
        listener.set_nonblocking(true).expect("a socket");
        let (stream, _) = wait("the port to connect", || listener.accept().ok());
        stream.set_nonblocking(false).expect("a socket");
        Self::new(stream)
    }

    /// Connects to a port in server mode and attaches `guest`.
    ///
    /// # Panics
    /// The switch does not take the guest.
    #[must_use]
    pub fn attach(path: &Path, guest: &Guest) -> Self {
        let mut frontend = Self::connect(path);
        frontend.set_up(guest).expect("the switch takes the guest");
        frontend
    }

    /// Negotiates, shares the memory, and starts and enables all queue pairs of `guest`.
    ///
    /// # Errors
    /// The first request that fails.
    pub fn set_up(&mut self, guest: &Guest) -> Result<(), RequestError> {
        self.negotiate(guest.config.features)?;
        self.set_mem_table(&guest.memory)?;
        for index in 0..2 * guest.pairs.len() as u32 {
            self.start_vring(guest, index)?;
        }
        for index in 0..2 * guest.pairs.len() as u32 {
            self.set_vring_enable(index, true)?;
        }
        // Without acknowledgements: once this is answered, the rest has been heard.
        self.get(message::GET_FEATURES).map(|_| ())
    }

    /// Agrees on features.
    ///
    /// # Errors
    /// The back-end refuses.
    pub fn negotiate(&mut self, virtio: u64) -> Result<(), RequestError> {
        self.get(message::GET_FEATURES)?;
        self.request(message::SET_OWNER, &[], &[])?;
        if virtio & features::PROTOCOL_FEATURES != 0 {
            let offered = self.get(message::GET_PROTOCOL_FEATURES)?;
            // All that this front-end knows: MQ, REPLY_ACK, RESET_DEVICE, CONFIGURE_MEM_SLOTS.
            let wanted = 1 | 1 << 3 | 1 << 13 | 1 << 15;
            self.request(message::SET_PROTOCOL_FEATURES, &words(&[offered & wanted]), &[])?;
            self.acks = true;
        }
        self.request(message::SET_FEATURES, &words(&[virtio]), &[])
    }

    /// Describes and starts ring `index` of `guest`.
    ///
    /// # Errors
    /// The back-end refuses.
    pub fn start_vring(&mut self, guest: &Guest, index: u32) -> Result<(), RequestError> {
        let queue = guest.queue(index);
        let at = queue.driver.addresses();
        let num = state(index, u32::from(queue.driver.size()));
        self.request(message::SET_VRING_NUM, &num, &[])?;
        let base = state(index, u32::from(queue.driver.used_idx()));
        self.request(message::SET_VRING_BASE, &base, &[])?;
        let mut addresses = state(index, 0);
        addresses.extend(words(&[at.desc, at.used, at.avail, 0]));
        self.request(message::SET_VRING_ADDR, &addresses, &[])?;
        let ring = words(&[u64::from(index)]);
        self.request(message::SET_VRING_CALL, &ring, &[queue.call.as_raw_fd()])?;
        self.request(message::SET_VRING_KICK, &ring, &[queue.kick.as_raw_fd()])
    }

    /// Shares all of `memory`.
    ///
    /// # Errors
    /// The back-end refuses.
    pub fn set_mem_table(&mut self, memory: &TestMemory) -> Result<(), RequestError> {
        let layouts: Vec<_> = memory.layouts().collect();
        let mut payload = state(layouts.len() as u32, 0);
        layouts.iter().for_each(|&layout| payload.extend(region(layout)));
        let fds = message::fds((0..layouts.len()).map(|i| memory.file(i)));
        self.request(message::SET_MEM_TABLE, &payload, &fds)
    }

    /// Shares the first `size` bytes of `file` as the dirty log.
    ///
    /// # Errors
    /// The back-end refuses.
    pub fn set_log_base(&mut self, file: &std::fs::File, size: u64) -> Result<(), RequestError> {
        let logged = self.get(message::GET_PROTOCOL_FEATURES)?;
        self.request(message::SET_PROTOCOL_FEATURES, &words(&[logged]), &[])?;
        // Answered by itself, asked or not.
        self.send(message::SET_LOG_BASE, 0, &words(&[size, 0]), &[file.as_raw_fd()])?;
        Ok(message::receive(&self.stream, message::SET_LOG_BASE).map(|_| ())?)
    }

    /// Adds region `i` of `memory`.
    ///
    /// # Errors
    /// The back-end refuses.
    ///
    /// # Panics
    /// There is no such region.
    pub fn add_mem_region(&mut self, memory: &TestMemory, i: usize) -> Result<(), RequestError> {
        let layout = memory.layouts().nth(i).expect("a region");
        let payload = [words(&[0]), region(layout)].concat();
        self.request(message::ADD_MEM_REG, &payload, &[memory.file(i).as_raw_fd()])
    }

    /// Removes region `i` of `memory`.
    ///
    /// # Errors
    /// The back-end refuses.
    ///
    /// # Panics
    /// There is no such region.
    pub fn remove_mem_region(&mut self, memory: &TestMemory, i: usize) -> Result<(), RequestError> {
        let layout = memory.layouts().nth(i).expect("a region");
        self.request(message::REM_MEM_REG, &[words(&[0]), region(layout)].concat(), &[])
    }

    /// Enables or disables ring `index`. Nothing without protocol features: rings are enabled then.
    ///
    /// # Errors
    /// The back-end refuses.
    pub fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<(), RequestError> {
        if !self.acks {
            return Ok(());
        }
        self.request(message::SET_VRING_ENABLE, &state(index, u32::from(enable)), &[])
    }

    /// Stops ring `index`; answers the avail index at which it can go on.
    ///
    /// # Errors
    /// The back-end refuses.
    pub fn get_vring_base(&mut self, index: u32) -> Result<u16, RequestError> {
        self.send(message::GET_VRING_BASE, 0, &state(index, 0), &[])?;
        let payload = message::receive(&self.stream, message::GET_VRING_BASE)?;
        Ok((u64_of(&payload)? >> 32) as u16)
    }

    /// Asks for a number.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn get(&mut self, request: u32) -> Result<u64, RequestError> {
        self.send(request, 0, &[], &[])?;
        Ok(u64_of(&message::receive(&self.stream, request)?)?)
    }

    /// Sends a request and waits for its acknowledgement, if the back-end gives any.
    ///
    /// # Errors
    /// The back-end refuses, or the connection is gone.
    pub fn request(
        &mut self,
        request: u32,
        payload: &[u8],
        fds: &[RawFd],
    ) -> Result<(), RequestError> {
        if !self.acks {
            return Ok(self.send(request, 0, payload, fds)?);
        }
        self.send(request, message::NEED_REPLY, payload, fds)?;
        match u64_of(&message::receive(&self.stream, request)?)? {
            0 => Ok(()),
            code => Err(RequestError::Refused(code)),
        }
    }

    fn send(&self, request: u32, flags: u32, payload: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let flags = message::VERSION | flags;
        message::send(&self.stream, &encode(request, flags, payload.len() as u32, payload), fds)
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send_raw(&self, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
        message::send(&self.stream, bytes, fds)
    }

    /// The back-end has taken all that was sent out of the socket.
    #[must_use]
    pub fn is_read(&self) -> bool {
        let mut unread: libc::c_int = 0;
        // SAFETY: the request writes one int.
        let failed =
            unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
        failed == 0 && unread == 0
    }

    /// The back-end has closed the connection.
    ///
    /// # Panics
    /// The socket cannot be switched between blocking and not.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        use std::io::Read;
        self.stream.set_nonblocking(true).expect("a socket");
        let closed = match (&self.stream).read(&mut [0; 512]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        self.stream.set_nonblocking(false).expect("a socket");
        closed
    }
}
