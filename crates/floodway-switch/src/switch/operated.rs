//! The switch as its operator sees it: what it has, and how it is changed.

use std::sync::Arc;

use super::manager::Manager;
use crate::api::diagnosis::Diagnosis;
use crate::api::operate::{
    DrainStatus, FlowPage, FlowQuery, InboundChange, InboundStatus, OffloadChange, OffloadSettings,
    OperateError, PairPage, PairQuery,
};
use crate::api::plan::Plan;
use crate::api::status::Status;
use crate::config::Config;
use crate::operator::{Operator, StatusSource};
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
}

impl Operator for Operated {
    fn flows(&self, query: &FlowQuery) -> Result<FlowPage, OperateError> {
        self.shared.flows(query)
    }

    fn pairs(&self, query: &PairQuery) -> Result<PairPage, OperateError> {
        Operator::pairs(&self.shared, query)
    }

    fn offload(&self, port: &str, change: &OffloadChange) -> Result<OffloadSettings, OperateError> {
        self.shared.offload(port, change)
    }

    fn inbound(&self, change: &InboundChange) -> Result<InboundStatus, OperateError> {
        Operator::inbound(&self.shared, change)
    }

    fn diagnose(&self, port: &str) -> Result<Diagnosis, OperateError> {
        self.shared.diagnose(port)
    }

    fn drain(&self, port: &str, draining: Option<bool>) -> Result<DrainStatus, OperateError> {
        self.shared.drain(port, draining)
    }

    fn configuration(&self) -> Result<Config, OperateError> {
        Ok(self.manager.configuration())
    }

    fn reconfigure(
        &self,
        edit: &dyn Fn(&Config) -> Result<Config, OperateError>,
        dry_run: bool,
    ) -> Result<Plan, OperateError> {
        self.manager.reconfigure(edit, dry_run)
    }
}
