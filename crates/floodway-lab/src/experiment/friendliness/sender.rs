//! A Linux host's flow: an application that always has more to send, and what its kernel says of the connection.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Look;
use crate::experiment::inbound::traffic::{counter, reset, set_option};
use crate::net::Namespace;
use crate::transfer;

/// How long the connection may take to stand.
const PATIENCE: Duration = Duration::from_secs(30);
/// How late a sender whose buffer is full sees that it is to end.
const LATE: Duration = Duration::from_millis(20);
const CHUNK: usize = 64 << 10;

/// A flow from a namespace of the host.
#[derive(Debug)]
pub(super) struct LinuxSender {
    socket: TcpStream,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LinuxSender {
    /// Connects and begins to send.
    ///
    /// # Errors
    /// When nobody listens there, or the kernel does not have the congestion control.
    pub fn start(namespace: &Namespace, to: SocketAddr, congestion: &str) -> Result<Self> {
        let connect = || TcpStream::connect_timeout(&to, PATIENCE);
        let socket = transfer::inside(namespace, connect)??;
        set_option(&socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, congestion.as_bytes())
            .with_context(|| format!("congestion control {congestion}"))?;
        socket.set_write_timeout(Some(LATE))?;
        let (mut writer, stop) = (socket.try_clone()?, Arc::<AtomicBool>::default());
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("sender".into()).spawn(move || {
            let chunk = vec![0; CHUNK];
            while !stopped.load(Ordering::Relaxed) {
                match writer.write(&chunk) {
                    Err(error)
                        if !matches!(
                            error.kind(),
                            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                        ) =>
                    {
                        break;
                    }
                    _ => {}
                }
            }
        })?;
        Ok(Self { socket, stop, thread: Some(thread) })
    }

    /// Adds what the kernel says of the connection (TCP_INFO).
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn look(&self, look: &mut Look) -> Result<()> {
        let info = tcp_info(&self.socket)?;
        look.srtt_ms = f64::from(info.tcpi_rtt) / 1e3;
        look.cwnd = f64::from(info.tcpi_snd_cwnd);
        look.retransmissions = info.tcpi_total_retrans.into();
        Ok(())
    }
}

impl Drop for LinuxSender {
    /// Ends with a reset, so that what is buffered does not go on.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A sender has nothing to report.
            let _ = thread.join();
        }
        // Without it the buffered bytes go on for a while, which the next group would see: the receiver resets them.
        let _ = reset(&self.socket);
    }
}

fn tcp_info(socket: &TcpStream) -> Result<libc::tcp_info> {
    // SAFETY: the structure consists of integers, for which zeros are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    let pointer = (&raw mut info).cast();
    // SAFETY: the descriptor is open as long as the socket is borrowed, and the kernel writes at most `len` bytes.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            pointer,
            &raw mut len,
        )
    };
    ensure!(rc == 0, "TCP_INFO: {}", std::io::Error::last_os_error());
    Ok(info)
}

/// Timeouts and fast recoveries of all connections of a namespace so far.
///
/// # Errors
/// When its kernel's counters cannot be read.
pub(super) fn counts(namespace: &Namespace) -> Result<[u64; 2]> {
    // The calling thread's namespace, not the process's.
    let read = || fs::read_to_string("/proc/thread-self/net/netstat");
    let text = transfer::inside(namespace, read)??;
    let of = |name: &str| counter(&text, "TcpExt:", name).with_context(|| format!("no {name}"));
    Ok([of("TCPTimeouts")?, of("TCPSackRecovery")? + of("TCPRenoRecovery")?])
}

/// What `ss -tin` says of a guest's connection: `rtt:20.1/0.5`, `cwnd:10`, `retrans:0/12`.
pub(super) fn look_of_ss(text: &str, look: &mut Look) {
    let field = |name: &str| {
        let mut words = text.split_whitespace().rev();
        words.find_map(|word| word.strip_prefix(name)).map(str::to_owned)
    };
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<f64>().ok());
    let rtt = field("rtt:");
    look.srtt_ms = number(rtt.as_deref().and_then(|rtt| rtt.split('/').next())).unwrap_or(0.0);
    look.cwnd = number(field("cwnd:").as_deref()).unwrap_or(0.0);
    let again = field("retrans:");
    let again = number(again.as_deref().and_then(|again| again.split('/').nth(1)));
    look.retransmissions = again.unwrap_or(0.0) as u64;
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn ss_names_round_trip_window_and_retransmissions() {
        let text = "ESTAB 0 0 198.18.1.11:40000 198.18.100.2:5001\n\t cubic wscale:7,7 rto:224 rtt:21.52/0.9 mss:1448 pmtu:1500 \
                    cwnd:14 ssthresh:12 bytes_retrans:5792 segs_out:99 retrans:1/4 minrtt:20.1\n";
        let mut look = Look::default();
        look_of_ss(text, &mut look);
        assert_eq!((look.srtt_ms, look.cwnd, look.retransmissions), (21.52, 14.0, 4));
        look_of_ss("", &mut look);
        assert_eq!(look, Look::default());
    }

    #[test]
    fn the_kernel_tells_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = tcp_info(&socket).unwrap();
        assert!(info.tcpi_snd_cwnd >= 1 && info.tcpi_rtt > 0);
    }
}
