//! Reading from a TCP socket, with the time when the kernel got the bytes.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{SystemTime, UNIX_EPOCH};

/// Room for the control message of a timestamp.
const CONTROL: usize = 64;

/// Control messages must be aligned like their header.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// Asks for receive timestamps. A listening socket hands this on to those that it accepts.
///
/// # Errors
/// When the kernel refuses.
pub fn ask_for_timestamps(socket: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and length are those of `on`, which lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes that are in a socket's send queue, sent or not, and not acknowledged.
///
/// # Errors
/// When the socket is no more.
pub fn unacknowledged(socket: &TcpStream) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ) writes one int, which `bytes` is.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { Ok(u64::from(bytes.unsigned_abs())) } else { Err(io::Error::last_os_error()) }
}

/// Reads what is there. Returns its length (0 is the end of the stream), and when the last of
/// it came, in nanoseconds of `CLOCK_REALTIME`: by the kernel's timestamp, or by the clock now when
/// there is none.
///
/// # Errors
/// `WouldBlock` when a non-blocking socket has nothing; else what the connection died of.
pub fn receive(socket: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, u64)> {
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; CONTROL]);
    // SAFETY: a msghdr is plain data, for which zeros are "nothing".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CONTROL;
    // SAFETY: the message points to `piece`, `buffer` and `control`, which live through the call.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
    Ok((len, timestamp(&message).unwrap_or_else(now)))
}

fn timestamp(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel filled `message` in; the macros stay inside its control buffer.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so it points to a whole header inside the control buffer.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_TIMESTAMPNS {
            // SAFETY: a message of this kind carries a timespec, at any alignment.
            let time: libc::timespec =
                unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
            let (seconds, nanoseconds) =
                (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
            return Some(seconds * 1_000_000_000 + nanoseconds);
        }
        // SAFETY: as for the first header.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn now() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn bytes_come_with_the_time_of_their_arrival() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        ask_for_timestamps(&listener).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let before = now();
        client.write_all(b"abc").unwrap();
        let mut buffer = [0; 16];
        // Wait for the bytes without taking them, then read late.
        server.peek(&mut buffer).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let late = now();
        let (len, time) = receive(&server, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"abc");
        // The kernel switches timestamps on a moment after the first socket asks for them, and
        // gives the time of reading until then.
        assert!(before <= time && time <= late.max(now()), "{before} {time} {late}");
        assert_eq!(unacknowledged(&client).unwrap(), 0);
        drop(client);
        assert_eq!(receive(&server, &mut buffer).unwrap().0, 0);
    }
}
