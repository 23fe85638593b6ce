//! A listener with limits, for clients that anybody on this machine can start.
//!
//! Connections beyond [`MOST_CONNECTIONS`] wait in the kernel until others have gone. One to which nothing was written for [`SILENCE`] is closed, whatever it has sent
//! meanwhile: it has asked for nothing, or takes no answer. Streams are written to more often.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Connections at one time: a browser opens at most six for a page.
pub const MOST_CONNECTIONS: usize = 128;
/// Longest time without an answer.
pub const SILENCE: Duration = Duration::from_secs(30);

/// See the module.
pub struct Limited<L> {
    listener: L,
    room: Arc<Semaphore>,
    silence: Duration,
}

impl<L: Listener> Limited<L> {
    /// `listener` with at most `most` connections, to each of which something is written at least every `silence`.
    #[must_use]
    pub fn new(listener: L, most: usize, silence: Duration) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(most)), silence }
    }
}

impl<L: Listener> Listener for Limited<L> {
    type Io = Bounded<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let permit = Arc::clone(&self.room).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let (io, address) = self.listener.accept().await;
        let silence = self.silence;
        let end = Box::pin(sleep(silence));
        (Bounded { io, silence, end, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that counts, and does not last for ever.
pub struct Bounded<T> {
    io: T,
    silence: Duration,
    /// When it ends if nothing is written until then.
    end: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl<T: AsyncRead + Unpin> AsyncRead for Bounded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Bounded<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(context, bytes));
        let end = Instant::now() + self.silence;
        self.end.as_mut().reset(end);
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use tokio::net::UnixListener;
    use tokio::runtime;

    use super::*;

    /// Runs `test` with a listener, and what connects to it.
    fn with_listener<T: Future>(
        most: usize,
        silence: Duration,
        test: impl FnOnce(Limited<UnixListener>, Box<dyn Fn() -> UnixStream>) -> T,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = Limited::new(UnixListener::bind(&path).unwrap(), most, silence);
            test(listener, Box::new(move || UnixStream::connect(&path).unwrap())).await
        });
    }

    #[test]
    fn connections_beyond_the_limit_wait_for_room() {
        with_listener(1, SILENCE, |mut listener, connect| async move {
            let _clients = [connect(), connect()];
            let first = listener.accept().await;
            tokio::select! {
                biased;
                _ = listener.accept() => panic!("there is no room"),
                () = std::future::ready(()) => {}
            }
            drop(first);
            listener.accept().await;
        });
    }

    #[test]
    fn a_connection_that_asks_for_nothing_ends_whatever_it_sends() {
        with_listener(1, Duration::from_millis(20), |mut listener, connect| async move {
            let mut client = connect();
            let (mut connection, _) = listener.accept().await;
            let error = loop {
                // It goes on and on.
                client.write_all(b"x").unwrap();
                let mut bytes = [0; 16];
                let mut buffer = ReadBuf::new(&mut bytes);
                let read =
                    poll_fn(|context| Pin::new(&mut connection).poll_read(context, &mut buffer));
                if let Err(error) = read.await {
                    break error;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }
}
