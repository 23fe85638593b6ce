//! A virtio-net header and the pieces of a frame as one scatter-gather list.

use std::io;

use super::SendError;
use crate::frame::iovec::GuestIoVec;

/// Most pieces that one system call takes (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// A list that is built anew for each frame in memory that is kept.
pub(super) struct Gather {
    list: Vec<libc::iovec>,
}

// SAFETY: between calls of `send` the list is empty; its pointers never outlive the borrow of what
// they point to, so none of them crosses to another thread.
unsafe impl Send for Gather {}

impl Gather {
    pub(super) fn new() -> Self {
        Self { list: Vec::with_capacity(64) }
    }

    /// Hands `header` and `frame` to `call`, a system call that sends a list and returns the
    /// number of bytes or -1, and says what became of the frame.
    pub(super) fn send(
        &mut self,
        header: &[u8],
        frame: &[GuestIoVec<'_>],
        call: impl Fn(&[libc::iovec]) -> libc::ssize_t,
    ) -> Result<(), SendError> {
        if frame.len() >= MAX_PIECES {
            let message = format!("frame in {} pieces, at most 1023 can be sent", frame.len());
            return Err(SendError::Failed(io::Error::new(io::ErrorKind::InvalidInput, message)));
        }
        self.list.extend_from_slice(GuestIoVec::as_iovecs(&[GuestIoVec::from_slice(header)]));
        self.list.extend_from_slice(GuestIoVec::as_iovecs(frame));
        let outcome = loop {
            if call(&self.list) >= 0 {
                break Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                break Err(error);
            }
        };
        self.list.clear();
        outcome.map_err(refused)
    }
}

fn refused(error: io::Error) -> SendError {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => SendError::Full,
        Some(libc::ENOBUFS | libc::ENOMEM) => SendError::Refused,
        _ => SendError::Failed(error),
    }
}
