//! The switch as its operator sees it: what it has, and how it is changed.

use std::sync::Arc;

use super::manager::Manager;
use crate::api::activity::Activity;
use crate::api::capture::{CaptureList, CaptureRequest, CaptureStatus};
use crate::api::control::{
    ControlError, DrainStatus, FlowKey, FlowPage, FlowQuery, FlowStatus, InboundChange,
    InboundStatus, OffloadChange, OffloadSettings, PairPage, PairQuery,
};
use crate::api::diagnosis::Diagnosis;
use crate::api::events::EventQuery;
use crate::api::plan::Plan;
use crate::api::status::{PortStatus, Status};
use crate::api::trace::{Trace, TraceRequest};
use crate::config::Config;
use crate::events::EventReader;
use crate::operator::{CaptureSink, ConfigApi, ControlApi, StatusSource};
use crate::state::shared::Shared;

/// All that an operator can ask of a switch.
pub(super) struct Operated {
    pub(super) shared: Arc<Shared>,
    pub(super) manager: Arc<Manager>,
}

impl StatusSource for Operated {
    fn status(&self) -> Status {
        self.shared.status()
    }

    fn activity(&self) -> Activity {
        self.shared.activity()
    }
}

impl ControlApi for Operated {
    fn flows(&self, query: &FlowQuery) -> Result<FlowPage, ControlError> {
        self.shared.flows(query)
    }

    fn flow(&self, port: &str, key: &FlowKey) -> Result<FlowStatus, ControlError> {
        self.shared.flow(port, key)
    }

    fn port_status(&self, port: &str) -> Result<PortStatus, ControlError> {
        self.shared.port_status(port)
    }

    fn pairs(&self, query: &PairQuery) -> Result<PairPage, ControlError> {
        ControlApi::pairs(&self.shared, query)
    }

    fn offload(&self, port: &str, change: &OffloadChange) -> Result<OffloadSettings, ControlError> {
        let made = || self.shared.offload(port, change);
        if *change == OffloadChange::default() {
            made()
        } else {
            self.manager.between_changes(made)
        }
    }

    fn inbound(&self, change: &InboundChange) -> Result<InboundStatus, ControlError> {
        let made = || ControlApi::inbound(&self.shared, change);
        if *change == InboundChange::default() {
            made()
        } else {
            self.manager.between_changes(made)
        }
    }

    fn capture(
        &self,
        request: &CaptureRequest,
        uid: u32,
        sink: Box<dyn CaptureSink>,
    ) -> Result<u64, ControlError> {
        self.shared.capture(request, uid, sink)
    }

    fn captures(&self) -> CaptureList {
        self.shared.captures()
    }

    fn end_capture(&self, id: u64) -> Result<CaptureStatus, ControlError> {
        self.shared.end_capture(id)
    }

    fn events(&self, query: &EventQuery) -> Result<EventReader, ControlError> {
        ControlApi::events(&self.shared, query)
    }

    fn diagnose(&self, port: &str) -> Result<Diagnosis, ControlError> {
        self.shared.diagnose(port)
    }

    fn trace(&self, request: &TraceRequest) -> Result<Trace, ControlError> {
        self.shared.trace(request)
    }

    fn drain(&self, port: &str, draining: Option<bool>) -> Result<DrainStatus, ControlError> {
        let made = || self.shared.drain(port, draining);
        if draining.is_none() { made() } else { self.manager.between_changes(made) }
    }
}

impl ConfigApi for Operated {
    fn configuration(&self) -> Result<Config, ControlError> {
        Ok(self.manager.configuration())
    }

    fn reconfigure(
        &self,
        edit: &dyn Fn(&Config) -> Result<Config, ControlError>,
        dry_run: bool,
    ) -> Result<Plan, ControlError> {
        self.manager.reconfigure(edit, dry_run)
    }
}
