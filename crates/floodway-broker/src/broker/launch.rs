//! How data planes start.

use floodway_process::fault::{self, Point};
use floodway_process::message::ToDataPlane;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Broker, BrokerError, DataPlane, Event, MainChannel, ORDERLY, failed};
use crate::process::Process;
use crate::store::taken::TakenDataPlane;
use crate::upgrade::Candidate;

impl Broker<'_> {
    /// Goes on with a data plane that a broker of before has started. `None` if it ends before it hears of that.
    pub(super) fn adopt(&mut self, taken: TakenDataPlane, restarts: u32) -> Option<DataPlane> {
        let channel = MainChannel::from(taken.channel);
        let process = Process::new(taken.pidfd);
        let mut plane = DataPlane::new(channel, process, restarts, taken.number);
        plane.pulse.on_ready();
        let pid = std::process::id();
        let programs = ToDataPlane::Programs(self.upgrades.state().programs);
        let told = plane.channel.send(&ToDataPlane::Broker { pid }, &[]);
        if let Err(error) = told.and_then(|()| plane.channel.send(&programs, &[])) {
            tracing::error!(%error, "the data plane takes nothing from its next broker");
            return None;
        }
        tracing::info!("took over a data plane that runs");
        (self.on_event)(Event::Ready);
        Some(plane)
    }

    /// Starts a data plane and gives it everything.
    pub(super) fn launch(
        &mut self,
        restarts: u32,
        last_end: Option<&str>,
    ) -> Result<DataPlane, BrokerError> {
        self.change_without_data_plane();
        self.forget_faults();
        let (channel, process) = self.start_process(None)?;
        let plane = DataPlane::new(channel, process, restarts, self.progress.next_number());
        self.upgrades.update(|programs| programs.data_plane = programs.broker.clone());
        self.leave_data_plane(&plane);
        fault::pass(Point::PlaneKept);
        let given = self
            .introduce(&plane.channel, restarts, last_end)
            .and_then(|()| self.equip(&plane, None))
            .and_then(|()| self.resume_moves(&plane));
        if let Err(error) = given {
            // It has ended already; what it ended with is found by whoever watches it.
            tracing::debug!(%error, "the data plane takes nothing");
        }
        Ok(plane)
    }

    /// Starts the process of a data plane, of the program of `candidate` if there is one.
    pub(super) fn start_process(
        &self,
        candidate: Option<&Candidate>,
    ) -> Result<(MainChannel, Process), BrokerError> {
        let (channel, theirs) = MainChannel::pair().map_err(failed("make a channel"))?;
        channel.set_time_limit(Some(ORDERLY)).map_err(failed("limit how long a channel waits"))?;
        let child = (self.start)(theirs.into(), candidate).map_err(failed("start a data plane"))?;
        fault::pass(Point::PlaneStarted);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(std::io::ErrorKind::NotFound).map_err(failed("find the data plane"))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(failed("watch the data plane"))?;
        Ok((channel, Process::new(pidfd)))
    }

    /// What data planes of before have done wrong is of no interest any more.
    pub(super) fn forget_faults(&self) {
        while self.faults.try_recv().is_ok() {}
    }
}
