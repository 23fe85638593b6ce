//! A client of the control socket, for the command line.
//!
//! A switch of two processes takes changes of its configuration on a socket of its broker's, beside the control socket ([`manage_path`]); one of a single process has
//! no such socket. Such requests go to the broker's socket if a process listens on it, and to the control socket otherwise. A user who may not use the broker's
//! socket can still read the configuration from the control socket.

mod capture;
mod events;
mod route;
mod transport;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{self, Runtime};

use crate::activity::Activity;
use crate::control::{
    DrainRequest, DrainStatus, FlowKey, FlowPage, FlowQuery, FlowStatus, InboundChange,
    InboundStatus, MAX_PAGE, OffloadChange, OffloadSettings, PairPage, PairQuery, PortPage,
    Refusal, UpgradeRequest, UpgradeStatus, UplinkPage, manage_path,
};
use crate::diagnosis::Diagnosis;
use crate::edit::{Document, Kind};
use crate::networks::{Network, NetworkPage, NetworkTable};
use crate::plan::Plan;
use crate::status::{PortStatus, Status, Version};
use crate::trace::{Trace, TraceRequest};
use route::{escape, fields, flow_route, route_of};
use transport::Door;

pub use capture::Next;

/// A switch that is alive answers in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A change waits for workers, and for front-ends that have to go.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens on the socket.
    #[error("floodway is not running or uses another control socket: {} (set --control)", .0.display())]
    NotRunning(PathBuf),
    /// The socket is there, but not for this user.
    #[error("no permission to use control socket {} (run as root, its owner, or a member of its group if its mode lets that)", .0.display())]
    PermissionDenied(PathBuf),
    /// It took longer than so many seconds.
    #[error("no answer on control socket {} within {} s", .0.display(), .1)]
    TimedOut(PathBuf, u64),
    /// The system refused.
    #[error("control socket {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The switch does not do what it was asked, and says why.
    #[error("{0}")]
    Refused(String),
    /// The answer is not that of a switch of this version.
    #[error("control socket {}: {problem}", path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// What is wrong with the answer.
        problem: String,
    },
}

/// Asks a running switch. Each call makes its own connection and blocks for at most 5 s, for a change 60 s.
#[derive(Debug)]
pub struct ControlClient {
    path: PathBuf,
    /// How long an answer may take that waits for no change.
    timeout: Duration,
    /// Where its broker is, if it has one.
    manage: PathBuf,
    runtime: Runtime,
}

impl ControlClient {
    /// A client of the socket at `path`; nothing is connected yet.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new(path: &Path) -> Result<Self, ClientError> {
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime =
            runtime.map_err(|source| ClientError::Io { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), timeout: TIMEOUT, manage: manage_path(path), runtime })
    }

    /// This client with another time than 5 s for an answer that waits for no change.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The status of the switch.
    ///
    /// # Errors
    /// There is no answer, or not one of this version.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get("/v1/status")
    }

    /// What the switch does now: less than its status, for who asks again and again.
    ///
    /// # Errors
    /// There is no answer, or not one of this version.
    pub fn activity(&self) -> Result<Activity, ClientError> {
        self.get("/v1/activity")
    }

    /// The version of the switch.
    ///
    /// # Errors
    /// There is no answer, or not one of this version.
    pub fn version(&self) -> Result<Version, ClientError> {
        self.get("/v1/version")
    }

    /// A page of flows.
    ///
    /// # Errors
    /// There is no answer, or no such port.
    pub fn flows(&self, query: &FlowQuery) -> Result<FlowPage, ClientError> {
        self.get(&format!("/v1/flows?{}", fields(query)))
    }

    /// One connection of a port; none if there is no such connection, or not any more.
    ///
    /// # Errors
    /// There is no answer.
    pub fn flow(&self, port: &str, key: &FlowKey) -> Result<Option<FlowStatus>, ClientError> {
        let route = flow_route(port, key);
        let (code, body) =
            self.answer(Door::Control, &Method::GET, &route, Bytes::new(), self.timeout)?;
        match code {
            StatusCode::OK => self.decode(&route, &body).map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            code => Err(self.failure(&route, code, &body)),
        }
    }

    /// The status of one port.
    ///
    /// # Errors
    /// There is no answer, or no such port.
    pub fn port_status(&self, port: &str) -> Result<PortStatus, ClientError> {
        self.get(&format!("{}/status", route_of(Kind::Port, port)))
    }

    /// A page of pairs of guests and destinations.
    ///
    /// # Errors
    /// There is no answer, or no such port.
    pub fn pairs(&self, query: &PairQuery) -> Result<PairPage, ClientError> {
        self.get(&format!("/v1/pairs?{}", fields(query)))
    }

    /// The offload settings of a port.
    ///
    /// # Errors
    /// There is no answer, or no such port.
    pub fn offload(&self, port: &str) -> Result<OffloadSettings, ClientError> {
        self.get(&format!("/v1/ports/{}/offload", escape(port)))
    }

    /// Changes offload settings of a port; answers all of them.
    ///
    /// # Errors
    /// There is no answer, no such port, or a setting is refused.
    pub fn set_offload(
        &self,
        port: &str,
        change: &OffloadChange,
    ) -> Result<OffloadSettings, ClientError> {
        self.send(&Method::PUT, &format!("/v1/ports/{}/offload", escape(port)), change)
    }

    /// The configuration that runs, as TOML.
    ///
    /// # Errors
    /// There is no answer.
    pub fn config(&self) -> Result<String, ClientError> {
        let body = self.configured("/v1/config")?;
        String::from_utf8(body.to_vec()).map_err(|error| self.bad_answer(error.to_string()))
    }

    /// Makes the switch what the configuration `text` says, or with `dry_run` only says what that would change.
    ///
    /// # Errors
    /// There is no answer, or the switch cannot be so; then nothing is changed, unless the error says so.
    pub fn apply(&self, text: &str, dry_run: bool) -> Result<Plan, ClientError> {
        self.change(&Method::PUT, "/v1/config", dry_run, text.to_owned().into())
    }

    /// The ports' keys, as in a file.
    ///
    /// # Errors
    /// There is no answer.
    pub fn ports(&self) -> Result<Vec<Document>, ClientError> {
        self.pages("/v1/ports", Self::configured, |page: PortPage| (page.ports, page.next))
    }

    /// The uplinks' keys, as in a file.
    ///
    /// # Errors
    /// There is no answer.
    pub fn uplinks(&self) -> Result<Vec<Document>, ClientError> {
        self.pages("/v1/uplinks", Self::configured, |page: UplinkPage| (page.uplinks, page.next))
    }

    /// All that a list has, page by page.
    fn pages<P: DeserializeOwned, T>(
        &self,
        route: &str,
        get: fn(&Self, &str) -> Result<Bytes, ClientError>,
        parts: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, ClientError> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let route = format!("{route}?limit={MAX_PAGE}{cursor}");
            let page = self.decode(&route, &get(self, &route)?)?;
            let (part, next) = parts(page);
            all.extend(part);
            let Some(next) = next else { return Ok(all) };
            cursor = format!("&cursor={}", escape(&next));
        }
    }

    /// All networks, page by page.
    ///
    /// # Errors
    /// There is no answer, or not one of this version.
    pub fn networks(&self) -> Result<Vec<Network>, ClientError> {
        self.pages("/v1/networks", Self::get_bytes, |page: NetworkPage| (page.networks, page.next))
    }

    /// A network and its forwarding table.
    ///
    /// # Errors
    /// There is no answer, or no such network.
    pub fn network(&self, name: &str) -> Result<NetworkTable, ClientError> {
        self.get(&format!("/v1/networks/{}", escape(name)))
    }

    /// The keys of a port.
    ///
    /// # Errors
    /// There is no answer, or no such port.
    pub fn port(&self, name: &str) -> Result<Document, ClientError> {
        self.keys(Kind::Port, name)
    }

    /// The keys of an uplink.
    ///
    /// # Errors
    /// There is no answer, or no such uplink.
    pub fn uplink(&self, name: &str) -> Result<Document, ClientError> {
        self.keys(Kind::Uplink, name)
    }

    fn keys(&self, kind: Kind, name: &str) -> Result<Document, ClientError> {
        let route = route_of(kind, name);
        self.decode(&route, &self.configured(&route)?)
    }

    /// Adds a network, port or uplink, or replaces one, and returns what that changes.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn put(
        &self,
        kind: Kind,
        name: &str,
        keys: &Document,
        dry_run: bool,
    ) -> Result<Plan, ClientError> {
        self.change(&Method::PUT, &route_of(kind, name), dry_run, self.encode(keys)?)
    }

    /// Changes keys of a network, port or uplink, and returns what that changes.
    ///
    /// # Errors
    /// As [`apply`](Self::apply); there is no such thing.
    pub fn patch(
        &self,
        kind: Kind,
        name: &str,
        keys: &Document,
        dry_run: bool,
    ) -> Result<Plan, ClientError> {
        self.change(&Method::PATCH, &route_of(kind, name), dry_run, self.encode(keys)?)
    }

    /// Removes a network, port or uplink, and returns what that changes.
    ///
    /// # Errors
    /// As [`apply`](Self::apply); there is no such thing.
    pub fn delete(&self, kind: Kind, name: &str, dry_run: bool) -> Result<Plan, ClientError> {
        self.change(&Method::DELETE, &route_of(kind, name), dry_run, Bytes::new())
    }

    fn change(
        &self,
        method: &Method,
        route: &str,
        dry_run: bool,
        body: Bytes,
    ) -> Result<Plan, ClientError> {
        let route = format!("{route}?dry_run={dry_run}");
        self.decode(&route, &self.request(Door::Manage, method, &route, body, CHANGE_TIMEOUT)?)
    }

    /// The answer to a question about the configuration, which may have to wait for a change.
    fn configured(&self, route: &str) -> Result<Bytes, ClientError> {
        self.request(Door::Configuration, &Method::GET, route, Bytes::new(), CHANGE_TIMEOUT)
    }

    /// How the link into the host is divided.
    ///
    /// # Errors
    /// There is no answer.
    pub fn inbound(&self) -> Result<InboundStatus, ClientError> {
        self.get("/v1/inbound")
    }

    /// Changes how the link into the host is divided.
    ///
    /// # Errors
    /// There is no answer, or a setting is refused.
    pub fn set_inbound(&self, change: &InboundChange) -> Result<InboundStatus, ClientError> {
        self.send(&Method::PUT, "/v1/inbound", change)
    }

    /// What is known of a port's connection, and what is wrong with it.
    ///
    /// # Errors
    /// There is no answer, or no such port.
    pub fn diagnosis(&self, port: &str) -> Result<Diagnosis, ClientError> {
        self.get(&format!("/v1/ports/{}/diagnosis", escape(port)))
    }

    /// What would become of a frame; nothing is changed.
    ///
    /// # Errors
    /// There is no answer, no such port or uplink, or the frame cannot be made.
    pub fn trace(&self, request: &TraceRequest) -> Result<Trace, ClientError> {
        self.send(&Method::POST, "/v1/trace", request)
    }

    /// How far the drain of a port is.
    ///
    /// # Errors
    /// There is no answer, or no such port.
    pub fn drain_status(&self, port: &str) -> Result<DrainStatus, ClientError> {
        self.get(&format!("/v1/ports/{}/drain", escape(port)))
    }

    /// Begins or ends the drain of a port.
    ///
    /// # Errors
    /// There is no answer, or no such port.
    pub fn drain(&self, port: &str, draining: bool) -> Result<DrainStatus, ClientError> {
        let route = format!("/v1/ports/{}/drain", escape(port));
        self.send(&Method::POST, &route, &DrainRequest { draining })
    }

    /// Begins an upgrade to a program.
    ///
    /// # Errors
    /// There is no answer, or the program cannot take the place of the one that runs; then nothing is changed.
    pub fn upgrade(&self, request: &UpgradeRequest) -> Result<UpgradeStatus, ClientError> {
        let (route, body) = ("/v1/upgrade", self.encode(request)?);
        let answer = self.request(Door::Broker, &Method::POST, route, body, CHANGE_TIMEOUT)?;
        self.decode(route, &answer)
    }

    /// How upgrades stand.
    ///
    /// # Errors
    /// There is no answer, as for a moment while the broker's program is replaced.
    pub fn upgrades(&self) -> Result<UpgradeStatus, ClientError> {
        let route = "/v1/upgrade";
        let answer = self.request(Door::Broker, &Method::GET, route, Bytes::new(), self.timeout)?;
        self.decode(route, &answer)
    }

    fn get<T: DeserializeOwned>(&self, route: &str) -> Result<T, ClientError> {
        self.decode(route, &self.get_bytes(route)?)
    }

    fn send<T: DeserializeOwned>(
        &self,
        method: &Method,
        route: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = self.encode(body)?;
        self.decode(route, &self.request(Door::Control, method, route, body, self.timeout)?)
    }

    fn encode(&self, body: &impl Serialize) -> Result<Bytes, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.bad_answer(error.to_string()))?;
        Ok(body.into())
    }

    fn decode<T: DeserializeOwned>(&self, route: &str, body: &Bytes) -> Result<T, ClientError> {
        serde_json::from_slice(body).map_err(|error| {
            self.bad_answer(format!("{route} is not of this version of floodway: {error}"))
        })
    }

    /// The body of the answer to `GET route`.
    ///
    /// # Errors
    /// There is no answer, or it is not a success.
    pub fn get_bytes(&self, route: &str) -> Result<Bytes, ClientError> {
        self.request(Door::Control, &Method::GET, route, Bytes::new(), self.timeout)
    }

    /// What an answer says that is not a success.
    fn failure(&self, route: &str, code: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<Refusal>(body) {
            Ok(body) => ClientError::Refused(body.error),
            Err(_) => self.bad_answer(format!("{route} answers {code}")),
        }
    }

    fn bad_answer(&self, problem: String) -> ClientError {
        ClientError::Answer { path: self.path.clone(), problem }
    }
}
