//! The control socket: HTTP/1.1 over a Unix stream socket.
//!
//! # Theory of operation
//! The goal is that operators, scripts and Prometheus can ask a running switch, without a way to
//! slow its workers down. The server has one thread with a runtime of its own; it asks
//! an [`ControlApi`](crate::operator::ControlApi) and answers:
//!
//! | route | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`](crate::api::status::Status) as JSON |
//! | `GET /v1/activity` | [`Activity`](crate::api::activity::Activity) as JSON: what is shown every second |
//! | `GET /v1/version` | [`Version`] as JSON |
//! | `GET /v1/flows?port=&limit=&cursor=` | [`FlowPage`](crate::api::control::FlowPage) as JSON |
//! | `GET /v1/ports?limit=&cursor=` | [`PortPage`](crate::api::control::PortPage) as JSON |
//! | `GET /v1/ports/NAME` | the port's keys, as in `[[port]]`, with an entity tag |
//! | `PUT /v1/ports/NAME` | a port with these keys and no others; [`Plan`](crate::api::plan::Plan) as JSON |
//! | `PATCH /v1/ports/NAME` | other values for these keys, `null` for the default; the same |
//! | `DELETE /v1/ports/NAME` | no such port; the same |
//! | `GET /v1/config` | the configuration that runs, as TOML, with an entity tag |
//! | `PUT /v1/config` | another one, as TOML; [`Plan`](crate::api::plan::Plan) as JSON |
//! | `GET /v1/ports/NAME/offload` | [`OffloadSettings`](crate::api::control::OffloadSettings) as JSON |
//! | `PUT /v1/ports/NAME/offload` | the same, after an [`OffloadChange`](crate::api::control::OffloadChange) |
//! | `GET /v1/ports/NAME/drain` | [`DrainStatus`](crate::api::control::DrainStatus) as JSON |
//! | `POST /v1/ports/NAME/drain` | the same, after a [`DrainRequest`](crate::api::control::DrainRequest) |
//! | `POST /v1/trace` | [`Trace`](crate::api::trace::Trace) as JSON: what would become of a frame, after a [`TraceRequest`](crate::api::trace::TraceRequest); nothing is changed |
//! | `GET /v1/events?port=&since=&follow=` | [`Event`](crate::api::events::Event)s as they happen, as server-sent events |
//! | `GET /v1/inbound` | [`InboundStatus`](crate::api::control::InboundStatus) as JSON |
//! | `PUT /v1/inbound` | the same, after an [`InboundChange`](crate::api::control::InboundChange) |
//! | `GET /v1/captures` | [`CaptureList`](crate::api::capture::CaptureList) as JSON |
//! | `POST /v1/captures` | a pcapng file that grows, after a [`CaptureRequest`](crate::api::capture::CaptureRequest); for root and the switch's user (403) |
//! | `DELETE /v1/captures/ID` | ends a capture, whose file is completed; for the same |
//! | `GET /metrics?pairs=` | the same counters as text for Prometheus, OpenMetrics if it accepts that; with `pairs=true` also who has sent to whom |
//!
//! With `?dry_run=true` a change is checked and its plan returned, and nothing is done. With `If-Match` it is done only if the entity tag still
//! holds (412 otherwise). A change that cannot be made changes nothing.
//!
//! The manage socket of a broker has, beside those routes:
//!
//! | route | answer |
//! |---|---|
//! | `GET /v1/upgrade` | [`UpgradeStatus`](crate::api::control::UpgradeStatus) as JSON |
//! | `POST /v1/upgrade` | the same, when an upgrade has begun, after an [`UpgradeRequest`](crate::api::control::UpgradeRequest) |
//!
//! Behind a broker the routes that change ports or the configuration are refused (409): the broker answers them, and reads of the same, on a socket
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
mod events;
mod failure;
mod manage;
mod metrics;
mod peer;
mod relay;
mod routes;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod upgrade;

pub use crate::api::client::{ClientError, ControlClient, Next};
pub use crate::api::status::Version;
pub use relay::{MetricsListener, MetricsSource};
pub use server::ControlServer;
pub use socket::{BindError, ControlListener};
