//! What can be asked of a running switch, whoever it is that answers: the switch, or a stand-in of tests.

use super::capture::CaptureSink;
use crate::api::activity::Activity;
use crate::api::capture::{CaptureList, CaptureRequest, CaptureStatus};
use crate::api::control::{
    ControlError, DrainStatus, FlowKey, FlowPage, FlowQuery, FlowStatus, InboundChange,
    InboundStatus, OffloadChange, OffloadSettings, PairPage, PairQuery, UpgradeRequest,
    UpgradeStatus,
};
use crate::api::diagnosis::Diagnosis;
use crate::api::events::EventQuery;
use crate::api::plan::Plan;
use crate::api::status::{PortStatus, Status};
use crate::api::trace::{Trace, TraceRequest};
use crate::config::Config;
use crate::events::EventReader;

/// Something that knows its status: the running switch.
pub trait StatusSource: Send + Sync {
    /// The status now.
    fn status(&self) -> Status;

    /// What is shown again and again of it.
    fn activity(&self) -> Activity;
}

/// Something whose configuration can be changed: the running switch, or its broker.
pub trait ConfigApi: Send + Sync {
    /// The configuration that runs.
    ///
    /// # Errors
    /// This is no switch that has one.
    fn configuration(&self) -> Result<Config, ControlError> {
        Err(ControlError::HasBroker)
    }

    /// Makes what runs what `edit` makes of the configuration, or only says what that would change (`dry_run`). `edit` has to be
    /// quick: other changes wait for it.
    ///
    /// # Errors
    /// Those of `edit`, and what keeps the switch from being so. Nothing is changed then, unless the error says so.
    fn reconfigure(
        &self,
        edit: &dyn Fn(&Config) -> Result<Config, ControlError>,
        dry_run: bool,
    ) -> Result<Plan, ControlError> {
        let (_, _) = (edit, dry_run);
        Err(ControlError::HasBroker)
    }
}

/// A broker, whose switch can be upgraded.
pub trait UpgradeApi: Send + Sync {
    /// Checks a program and begins an upgrade to it. Returns how upgrades stand then.
    ///
    /// # Errors
    /// The program cannot take the place of the one that runs, or it cannot begin now. Nothing is changed.
    fn upgrade(&self, request: &UpgradeRequest) -> Result<UpgradeStatus, ControlError>;

    /// How upgrades stand.
    fn upgrades(&self) -> UpgradeStatus;
}

/// Something that can be operated: the running switch.
pub trait ControlApi: StatusSource + ConfigApi {
    /// A page of flows.
    ///
    /// # Errors
    /// There is no such port, or the cursor is none.
    fn flows(&self, query: &FlowQuery) -> Result<FlowPage, ControlError>;

    /// One connection of a port.
    ///
    /// # Errors
    /// There is no such port, or it has no such connection.
    fn flow(&self, port: &str, key: &FlowKey) -> Result<FlowStatus, ControlError>;

    /// The status of one port.
    ///
    /// # Errors
    /// There is no such port.
    fn port_status(&self, port: &str) -> Result<PortStatus, ControlError>;

    /// A page of pairs of guests and destinations, with their classes.
    ///
    /// # Errors
    /// As [`flows`](Self::flows).
    fn pairs(&self, query: &PairQuery) -> Result<PairPage, ControlError>;

    /// The offload settings of a port, after `change`.
    ///
    /// # Errors
    /// There is no such port, or a setting is out of its range; then nothing is changed.
    fn offload(&self, port: &str, change: &OffloadChange) -> Result<OffloadSettings, ControlError>;

    /// How the link into the host is divided, after `change`.
    ///
    /// # Errors
    /// A setting is out of its range; then nothing is changed.
    fn inbound(&self, change: &InboundChange) -> Result<InboundStatus, ControlError>;

    /// Begins a capture for the user `uid`, whose file goes to `sink`. Returns its number.
    ///
    /// # Errors
    /// There is no such port or uplink, the request or its filter is not valid, or too many captures run.
    fn capture(
        &self,
        request: &CaptureRequest,
        uid: u32,
        sink: Box<dyn CaptureSink>,
    ) -> Result<u64, ControlError>;

    /// Captures that run, and the last ones that have ended.
    fn captures(&self) -> CaptureList;

    /// Asks a capture to end.
    ///
    /// # Errors
    /// There is none with this number.
    fn end_capture(&self, id: u64) -> Result<CaptureStatus, ControlError>;

    /// A reader of events.
    ///
    /// # Errors
    /// There is and was no such port or uplink, the query names an event that has not happened, or there are too many readers.
    fn events(&self, query: &EventQuery) -> Result<EventReader, ControlError>;

    /// What is known of a port's connection, and what is wrong with it.
    ///
    /// # Errors
    /// There is no such port.
    fn diagnose(&self, port: &str) -> Result<Diagnosis, ControlError>;

    /// What would become of a frame. Nothing is changed.
    ///
    /// # Errors
    /// There is no such port or uplink, or the frame cannot be made.
    fn trace(&self, request: &TraceRequest) -> Result<Trace, ControlError>;

    /// How far the drain of a port is, after it was begun or ended if `draining` says so.
    ///
    /// # Errors
    /// There is no such port.
    fn drain(&self, port: &str, draining: Option<bool>) -> Result<DrainStatus, ControlError>;
}
