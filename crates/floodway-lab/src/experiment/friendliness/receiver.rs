//! The receiving end: a listener for each sender, and how many bytes have come.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::net::Namespace;
use crate::transfer;

/// How long a sender may take until it connects.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
const CHUNK: usize = 256 << 10;

/// One connection's receiver.
#[derive(Debug)]
pub(super) struct Receiver {
    listener: TcpListener,
    bytes: Arc<AtomicU64>,
    reading: Option<(TcpStream, JoinHandle<()>)>,
}

impl Receiver {
    /// Listens in a namespace, on a port that its kernel chooses.
    ///
    /// # Errors
    /// When the namespace is gone.
    pub fn open(namespace: &Namespace) -> Result<Self> {
        let any: SocketAddr = ([0, 0, 0, 0], 0).into();
        let listener = transfer::inside(namespace, || TcpListener::bind(any))??;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, bytes: Arc::default(), reading: None })
    }

    /// # Errors
    /// When the kernel does not say.
    pub fn port(&self) -> Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Bytes that have come.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits for the sender and reads all that comes, on a thread of its own.
    ///
    /// # Errors
    /// When nobody connects.
    pub fn accept(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let socket = loop {
            match self.listener.accept() {
                Ok((socket, _)) => break socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ensure!(Instant::now() < deadline, "no sender has connected in {PATIENCE:?}");
                    thread::sleep(POLL);
                }
                Err(error) => return Err(error).context("no sender can connect"),
            }
        };
        socket.set_nonblocking(false)?;
        let (mut reader, bytes) = (socket.try_clone()?, Arc::clone(&self.bytes));
        let thread = thread::Builder::new().name("receiver".into()).spawn(move || {
            let mut buffer = vec![0; CHUNK];
            while let Ok(len) = reader.read(&mut buffer)
                && len > 0
            {
                bytes.fetch_add(len as u64, Ordering::Relaxed);
            }
        })?;
        self.reading = Some((socket, thread));
        Ok(())
    }
}

impl Drop for Receiver {
    /// Ends the connection: a sender that goes on is answered by a reset.
    fn drop(&mut self) {
        if let Some((socket, thread)) = self.reading.take() {
            // It fails if the sender was faster.
            let _ = socket.shutdown(Shutdown::Both);
            // A reader has nothing to report.
            let _ = thread.join();
        }
    }
}
