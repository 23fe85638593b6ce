//! Connections from the senders' namespace into the VMs, each of which always has more to send.
//!
//! One thread of the lab sends on each connection, and one sink in each VM reads them all. A program for each connection, as iperf3,
//! would keep an emulated guest busy for seconds before the first byte. A connection that ends is reset, so that what its sender has
//! buffered does not go on.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use floodway_guest::transfer::Header;

use super::schedule::{Group, Schedule};
use crate::agent::Listening;
use crate::experiment::transfer::tcp::Place;
use crate::net::Namespace;
use crate::transfer;
use crate::vm::Vm;

/// Congestion control of the senders: that of the paper's kernels, and of most hosts.
pub(super) const CONGESTION: &str = "cubic";
/// How long a connection may take to stand on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// How late a sender whose buffer is full sees that its time is over.
const LATE: Duration = Duration::from_millis(20);
/// Bytes of a write.
const CHUNK: usize = 64 << 10;
/// More than any run transfers.
const ENDLESS: u64 = 1 << 60;

/// What a group of connections did.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    pub group: Group,
    /// Bytes that the receiver acknowledged on each connection.
    pub bytes: Vec<f64>,
}

/// A sink in each VM that has connections.
#[derive(Debug)]
pub(super) struct Sinks<'a>(Vec<Option<(&'a Vm, Listening)>>);

impl<'a> Sinks<'a> {
    pub fn open(guests: &'a [Vm], addresses: &[String], schedule: &Schedule) -> Result<Self> {
        let sinks = guests.iter().zip(addresses).enumerate().map(|(vm, (guest, address))| {
            if !schedule.0.iter().any(|group| group.vm == vm) {
                return Ok(None);
            }
            let any_port: SocketAddr = format!("{address}:0").parse()?;
            Ok(Some((guest, guest.agent().transfer_listen(any_port)?)))
        });
        Ok(Self(sinks.collect::<Result<_>>()?))
    }

    fn address(&self, vm: usize) -> Result<SocketAddr> {
        let sink = self.0.get(vm).and_then(Option::as_ref);
        sink.map(|(_, sink)| sink.address).context("a VM without a sink")
    }

    pub fn close(self) -> Result<()> {
        self.0.iter().flatten().try_for_each(|(guest, sink)| guest.agent().transfer_close(sink))
    }
}

/// Sends all connections from `namespace`, from now until the end of the schedule, while `watch` runs here.
pub(super) fn run<T>(
    namespace: &Namespace,
    sinks: &Sinks<'_>,
    schedule: &Schedule,
    watch: impl FnOnce() -> Result<T>,
) -> Result<(Vec<Transfer>, T)> {
    let start = Instant::now();
    thread::scope(|scope| {
        let mut senders = Vec::new();
        for &group in &schedule.0 {
            let address = sinks.address(group.vm)?;
            let one = move |id| scope.spawn(move || send(namespace, address, group, id, start));
            let first = senders.len() as u64;
            senders.extend((0..group.count).map(|n| (group, one(first + u64::from(n)))));
        }
        let watched = watch();
        let mut transfers: Vec<Transfer> = Vec::new();
        for (group, sender) in senders {
            let sent = sender.join().map_err(|_| anyhow::anyhow!("a sender panicked"))?;
            let sent = sent.with_context(|| format!("a connection to VM {}", group.vm + 1))?;
            match transfers.last_mut().filter(|last| last.group == group) {
                Some(last) => last.bytes.push(sent as f64),
                None => transfers.push(Transfer { group, bytes: vec![sent as f64] }),
            }
        }
        Ok((transfers, watched?))
    })
}

/// Sends for the time of a group; answers how many bytes were acknowledged.
fn send(
    namespace: &Namespace,
    address: SocketAddr,
    group: Group,
    id: u64,
    start: Instant,
) -> Result<u64> {
    let at = |seconds: u32| start + Duration::from_secs(seconds.into());
    thread::sleep(at(group.begin).saturating_duration_since(Instant::now()));
    let connect = || TcpStream::connect_timeout(&address, PATIENCE);
    let mut socket = transfer::inside(namespace, connect)??;
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, CONGESTION.as_bytes())
        .with_context(|| format!("congestion control {CONGESTION}"))?;
    socket.set_write_timeout(Some(LATE))?;
    let header = Header { id, bytes: ENDLESS, reply_bytes: 1, seed: 0 }.encode();
    socket.write_all(&header)?;
    let (chunk, mut written) = (vec![0; CHUNK], header.len() as u64);
    while Instant::now() < at(group.end) {
        match socket.write(&chunk) {
            Ok(len) => written += len as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let left = unacknowledged(&socket)?;
    reset(&socket)?;
    Ok(written.saturating_sub(left))
}

/// Bytes that were written and are not acknowledged.
fn unacknowledged(socket: &TcpStream) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as the socket is borrowed, and the kernel writes one int.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(u64::try_from(bytes).unwrap_or_default()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the socket end with a reset when it is closed.
pub(in crate::experiment) fn reset(socket: &TcpStream) -> io::Result<()> {
    // A `struct linger`: on, for no time.
    let linger = [1_i32, 0].map(i32::to_ne_bytes).concat();
    set_option(socket, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

pub(in crate::experiment) fn set_option(
    socket: &TcpStream,
    level: i32,
    option: i32,
    value: &[u8],
) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as the socket is borrowed, and the pointer leads to `len` bytes.
    let rc =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Counts of a namespace's kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Segments that were sent again.
    pub retransmits: u64,
}

impl Counts {
    pub fn read(namespace: &Namespace) -> Result<Self> {
        let read = |file: &str, protocol: &str, name: &str| {
            let text = Place::Host(namespace).run(&["cat", file])?;
            counter(&text, protocol, name).with_context(|| format!("{file} has no {name}"))
        };
        Ok(Self {
            timeouts: read("/proc/net/netstat", "TcpExt:", "TCPTimeouts")?,
            retransmits: read("/proc/net/snmp", "Tcp:", "RetransSegs")?,
        })
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            timeouts: self.timeouts.saturating_sub(before.timeouts),
            retransmits: self.retransmits.saturating_sub(before.retransmits),
        }
    }
}

/// A counter of `/proc/net/netstat`: a line of names, and one of values, for each protocol.
pub(in crate::experiment) fn counter(text: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(found, _)| *found == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn netstat_has_names_above_values() {
        let text = "TcpExt: A TCPTimeouts B\nTcpExt: 1 22 3\nIpExt: TCPTimeouts\nIpExt: 9\n";
        assert_eq!(counter(text, "TcpExt:", "TCPTimeouts"), Some(22));
        assert_eq!(counter(text, "TcpExt:", "C"), None);
    }

    #[test]
    fn what_is_buffered_does_not_count_and_does_not_go_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        // More than the receiver's window takes: the rest stays here.
        let chunk = vec![0; CHUNK];
        while sender.write(&chunk).is_ok() {}
        assert!(unacknowledged(&sender).unwrap() > 0);
        reset(&sender).unwrap();
        drop(sender);
        let error = io::copy(&mut receiver, &mut io::sink()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}
