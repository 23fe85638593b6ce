//! The server's thread.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::net::{TcpListener, UnixListener};
use tokio::runtime;
use tokio::sync::oneshot;

use super::manage;
use super::peer::Peer;
use super::relay::{self, MetricsListener, MetricsSource};
use super::routes;
use super::socket::{BindError, ControlListener, failed};
use crate::host::socket_file::SocketFile;
use crate::operator::{ConfigApi, ControlApi, UpgradeApi};

#[cfg(any(test, feature = "checked-answers"))]
use super::checked::checked;

/// Only tests check answers.
#[cfg(not(any(test, feature = "checked-answers")))]
fn checked(router: axum::Router) -> axum::Router {
    router
}

/// A running control server. Dropping it removes the socket's file, if it is this process's, and stops the thread, and with it lets
/// go of the operator.
#[derive(Debug)]
pub struct ControlServer {
    file: Option<SocketFile>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Answers on `listener` with `operator`, until dropped. Captures are for root and the user of this process.
    ///
    /// # Errors
    /// Threads or descriptors have run out.
    pub fn start(
        listener: ControlListener,
        operator: Arc<dyn ControlApi>,
    ) -> Result<Self, BindError> {
        Self::start_for(listener, operator, rustix::process::geteuid().as_raw())
    }

    /// As [`start`](Self::start), for a switch that belongs to the user `owner`.
    ///
    /// # Errors
    /// Threads or descriptors have run out.
    pub fn start_for(
        listener: ControlListener,
        operator: Arc<dyn ControlApi>,
        owner: u32,
    ) -> Result<Self, BindError> {
        let serve = move |listener| -> Serving {
            let router = checked(routes::router(operator, owner));
            let service = router.into_make_service_with_connect_info::<Peer>();
            Box::pin(axum::serve(listener, service).into_future())
        };
        Self::spawn("control", listener, serve)
    }

    /// Takes changes of a configuration and begins upgrades on `listener`, until dropped: from root and from the user of this process.
    ///
    /// # Errors
    /// Threads or descriptors have run out.
    pub fn start_manage(
        listener: ControlListener,
        configuration: Arc<dyn ConfigApi>,
        upgrades: Arc<dyn UpgradeApi>,
    ) -> Result<Self, BindError> {
        let owner = rustix::process::geteuid().as_raw();
        let serve = move |listener| -> Serving {
            let router = checked(manage::router(&configuration, upgrades, owner));
            let service = router.into_make_service_with_connect_info::<Peer>();
            Box::pin(axum::serve(listener, service).into_future())
        };
        Self::spawn("manage", listener, serve)
    }

    /// Answers `GET /metrics` on `listener` with what `source` says, until dropped.
    ///
    /// # Errors
    /// Threads or descriptors have run out.
    pub fn start_metrics(
        listener: MetricsListener,
        source: MetricsSource,
    ) -> Result<Self, BindError> {
        let router = relay::router(source);
        match listener {
            MetricsListener::Unix(listener) => {
                let serve = move |listener| -> Serving {
                    Box::pin(axum::serve(listener, router).into_future())
                };
                Self::spawn("metrics", listener, serve)
            }
            MetricsListener::Tcp(listener) => {
                let serve = move || -> io::Result<Serving> {
                    listener.set_nonblocking(true)?;
                    let listener = TcpListener::from_std(listener)?;
                    Ok(Box::pin(axum::serve(listener, router).into_future()))
                };
                Self::spawn_with("metrics", Path::new("TCP"), None, serve)
            }
        }
    }

    fn spawn(
        name: &str,
        listener: ControlListener,
        serve: impl FnOnce(UnixListener) -> Serving + Send + 'static,
    ) -> Result<Self, BindError> {
        let ControlListener { listener, path, file } = listener;
        let serve = move || Ok(serve(UnixListener::from_std(listener)?));
        Self::spawn_with(name, &path, file, serve)
    }

    /// `serve` is called where the server's runtime is.
    fn spawn_with(
        name: &str,
        path: &Path,
        file: Option<SocketFile>,
        serve: impl FnOnce() -> io::Result<Serving> + Send + 'static,
    ) -> Result<Self, BindError> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed(path, "start its runtime"))?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&runtime, serve, stopped))
            .map_err(failed(path, "start its thread"))?;
        Ok(Self { file, stop: Some(stop), thread: Some(thread) })
    }
}

/// The server's work, which ends only if it fails.
type Serving = Pin<Box<dyn Future<Output = io::Result<()>>>>;

impl ControlServer {
    /// Lets it end. Requests may be under way until it is dropped.
    pub fn begin_stop(&mut self) {
        // The file goes first: from here on a client finds no switch rather than a dying one.
        drop(self.file.take());
        drop(self.stop.take());
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread panicked");
        }
    }
}

fn run(
    runtime: &runtime::Runtime,
    serve: impl FnOnce() -> io::Result<Serving>,
    stopped: oneshot::Receiver<()>,
) {
    let served = runtime.block_on(async {
        let serving = serve()?;
        // Not axum's graceful shutdown, which waits for clients that keep their connection open.
        tokio::select! {
            served = serving => served,
            _ = stopped => Ok(()),
        }
    });
    if let Err(error) = served {
        tracing::error!(%error, "a control socket failed");
    }
}
