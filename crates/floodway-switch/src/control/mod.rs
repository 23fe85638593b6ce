//! The control socket: HTTP/1.1 over a Unix stream socket.
//!
//! # Theory of operation
//! The goal is that operators, scripts and Prometheus can ask a running switch, without a way to
//! slow its workers down. The server has one thread with a runtime of its own; it asks
//! a [`ControlApi`](crate::operator::ControlApi) and answers.
//!
//! [`OPERATIONS`](crate::api::openapi::OPERATIONS) lists what it answers, with the types of all documents; `GET /v1/openapi.json` says the same to programs.
//!
//! With `?dry_run=true` a change is checked and its plan returned, and nothing is done. With `If-Match` it is done only if the entity tag still
//! holds (412 otherwise). A change that cannot be made changes nothing.
//!
//! Behind a broker the routes that change the configuration are refused (409): the broker answers them, and reads of the same, on a socket
//! of its own (`manage`).
//!
//! Who may see and not touch has `GET /metrics` from another process (`relay`).
//!
//! Errors are JSON too: `{"error": "..."}`. Any HTTP client will do:
//! `curl --unix-socket /run/floodway/control.sock http://floodway/v1/status`.
//!
//! Invariants: one live process per socket path (a second one is refused, a dead one's file is
//! replaced, a file that is no socket is never touched); the socket's mode is 0660, so its
//! directory's and file's owner and group decide who may ask; a stop never waits for clients.

mod captures;
mod changes;
#[cfg(any(test, feature = "checked-answers"))]
mod checked;
mod events;
mod extract;
mod failure;
mod manage;
mod metrics;
mod peer;
mod relay;
mod routes;
mod server;
mod socket;
mod table;
#[cfg(test)]
mod tests;
mod upgrade;

pub use crate::api::client::{ClientError, ControlClient, Next};
pub use crate::api::status::Version;
pub use relay::{MetricsListener, MetricsSource};
pub use server::ControlServer;
pub use socket::{BindError, ControlListener};
