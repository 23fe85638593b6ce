//! `floodway metrics`: prints the metrics, or serves them to who may see and not touch.

use std::io::{self, Write};
use std::sync::Arc;

use floodway_switch::control::{
    ClientError, ControlClient, ControlServer, MetricsListener, MetricsSource,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::MetricsArgs;
use crate::serving::{bind, listen, say};

/// Prints the metrics once; serves them until a signal if there is an address or a socket to do so.
///
/// # Errors
/// The switch does not answer, or the socket or address cannot be had.
pub fn metrics(args: &MetricsArgs) -> anyhow::Result<()> {
    let source = source(args);
    if args.socket.is_none() && args.listen.is_none() {
        return Ok(io::stdout().write_all(&source()?)?);
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let mut servers = Vec::new();
    if let Some(path) = &args.socket {
        let listener = MetricsListener::Unix(bind(path)?);
        servers.push(ControlServer::start_metrics(listener, Arc::clone(&source))?);
        say(&format!("serving metrics on {}", path.display()))?;
    }
    if let Some(address) = args.listen {
        let listener = listen(address)?;
        let address = listener.local_addr()?;
        servers.push(ControlServer::start_metrics(MetricsListener::Tcp(listener), source)?);
        say(&format!("serving metrics on http://{address}/metrics"))?;
    }
    signals.forever().next();
    Ok(())
}

/// Asks the control socket, each time anew.
fn source(args: &MetricsArgs) -> MetricsSource {
    let control = args.control.path.clone();
    let route = if args.pairs { "/metrics?pairs=true" } else { "/metrics" };
    Arc::new(move || -> Result<Vec<u8>, ClientError> {
        Ok(ControlClient::new(&control)?.get_bytes(route)?.to_vec())
    })
}
