//! A broker's side of a port's channel, for tests that are the broker.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use floodway_process::channel::{Channel, Received};
use floodway_process::message::{FromPort, ToPort};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Bytes of a message's header, the last four of which are the length of the rest.
const HEADER: usize = 12;

/// Passes on what `frontends` say, one after the other, through a port's `channel`, and what they are answered. Returns when no other can come, or the port has gone.
///
/// # Panics
/// The port wants a connection to end.
pub fn pass_on(channel: &Channel<ToPort, FromPort>, frontends: &mpsc::Receiver<UnixStream>) {
    for (session, mut stream) in (1..).zip(frontends) {
        let connected = channel.send(&ToPort::Connected { session, peer: None }, &[]);
        if connected.is_err() || serve(channel, session, &mut stream).is_none() {
            return;
        }
        if channel.send(&ToPort::Disconnected { session }, &[]).is_err() {
            return;
        }
    }
}

/// Serves a front-end until it has gone. `None` if the port has.
fn serve(channel: &Channel<ToPort, FromPort>, session: u32, stream: &mut UnixStream) -> Option<()> {
    for number in 0.. {
        let Ok((bytes, files)) = read_message(stream) else { break };
        let message = ToPort::Message { session, number, replayed: false, bytes };
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        channel.send(&message, &files).ok()?;
        let Ok(Received::Message(FromPort::Handled(handled), _)) = channel.recv() else {
            return None;
        };
        assert!(!handled.hang_up, "{handled:?}");
        if stream.write_all(&handled.reply).is_err() {
            break;
        }
    }
    Some(())
}

fn read_message(stream: &mut UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut bytes, mut files) = (vec![0; HEADER], [0; 32]);
    let mut iovec = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: HEADER }];
    // SAFETY: the iovec describes `bytes`, which lives until the end of the call.
    let received = unsafe { stream.recv_with_fds(&mut iovec, &mut files) };
    let (read, count) = received.map_err(io::Error::from)?;
    // SAFETY: they came with the message and are nobody else's.
    let files = files[..count].iter().map(|&fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
    if read != HEADER {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let len = bytes[8..].iter().rev().fold(0, |len, &byte| len << 8 | usize::from(byte));
    bytes.resize(HEADER + len, 0);
    stream.read_exact(&mut bytes[HEADER..])?;
    Ok((bytes, files))
}
