//! `floodway web`: a page that shows what the running switch does, for who may see and not touch.
//!
//! # Theory of operation
//! It is a process of its own, as `floodway metrics` is. What browsers send is parsed here; it asks the control socket with GET and nothing else, and of a request no more goes
//! into these questions than the name of a port, and two addresses that were read as such.
//!
//! Three threads share the [`board`]. The [`collector`] asks the switch once a second, as `floodway top` does, and writes down the figures of each port, so that a page that
//! is opened shows the last three minutes at once. A second thread follows the switch's events. The third one is the server: a page opens one stream of server-sent
//! events ([`stream`]), which begins with what is on the board and goes on with what is added to it.
//!
//! Ports and connections are looked at more closely only while a page shows them: the histograms, the diagnosis and the connections of a port, and the samples of
//! a connection. Without a page, the switch is asked for its [`Activity`](floodway_switch::api::activity::Activity) once a second, and its events are read.
//!
//! Invariants, most of them of [`guard`]:
//! - Nothing is changed: there are routes for GET only, here and towards the switch.
//! - On an address, who does not know the [`token`] gets the page's own files, which say nothing about the switch. On a Unix socket its permissions decide.
//! - `Host` names this machine in every request, so that another site's name that is made to lead here (DNS rebinding) leads nowhere.
//! - Pages, connections, and what is kept for them are bounded. A page that does not read what it is sent is let go, and connects again.

mod assets;
mod board;
mod collector;
mod flow_page;
mod guard;
mod listen;
mod overview;
mod port_page;
mod series;
mod server;
mod stream;
mod token;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::WebArgs;
use crate::serving::{bind, listen, say};
use board::Board;
use server::Place;
use token::Token;

/// Where it is served if nobody says where: beside the metrics.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9469);

/// Serves the page until a signal comes.
///
/// # Errors
/// The socket or the address cannot be had, or the system has no threads, descriptors or random numbers left.
pub fn web(args: &WebArgs) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let board = Arc::new(Board::default());
    // The file is removed when this is dropped.
    let socket = args.socket.as_deref().map(bind).transpose()?;
    let address = args.listen.or_else(|| socket.is_none().then_some(ADDRESS));
    let listener = address.map(listen).transpose()?;
    collector::start(&args.control.path, &board)?;
    if let Some(listener) = &socket {
        server::start(Place::unix(listener)?, Arc::clone(&board))?;
    }
    if let Some(path) = &args.socket {
        say(&format!("the page is on {}, for who may connect to it", path.display()))?;
    }
    if let Some(listener) = listener {
        let (address, token) = (listener.local_addr()?, Token::random()?);
        // Behind a number sign it is never sent to a server, and in no log.
        let url = format!("http://{address}/#token={}", token.text());
        server::start(Place::Tcp(listener, token), board)?;
        say(&format!("the page is at {url}"))?;
    }
    signals.forever().next();
    Ok(())
}
