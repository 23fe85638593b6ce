//! Asks the switch and the kernel.

use std::io;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use floodway_switch::api::control::{FlowQuery, MAX_PAGE};
use floodway_switch::control::{ClientError, ControlClient};

use super::Happened;
use super::sample::{Flows, Sample};
use super::wait::Threads;

/// What is asked for, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Time between two looks.
    pub interval: Duration,
    /// The port whose connections are wanted.
    pub flows_of: Option<String>,
}

/// Asks the switch and the kernel.
pub struct Sampler {
    client: ControlClient,
    threads: Threads,
    start: Instant,
}

impl Sampler {
    /// One that asks the switch whose control socket is at `path`.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new(path: &Path) -> Result<Self, ClientError> {
        let client = ControlClient::new(path)?;
        Ok(Self { client, threads: Threads::new("/proc"), start: Instant::now() })
    }

    /// Looks once. Connections are left out if the port is not there or has no transmit or receive offload.
    ///
    /// # Errors
    /// The switch does not answer.
    pub fn look(&mut self, flows_of: Option<&str>) -> Result<Sample, ClientError> {
        let activity = self.client.activity()?;
        let is_offloaded = |name: &&str| {
            let port = activity.ports.iter().find(|port| port.name == *name);
            port.is_some_and(|port| port.offload.transmit || port.offload.receive)
        };
        let flows = flows_of.filter(is_offloaded).and_then(|port| self.flows(port));
        let clock = self.start.elapsed();
        let threads = self.threads.look(activity.ports.iter().filter_map(|p| p.front_end_pid));
        Ok(Sample { activity, clock, threads, flows })
    }

    fn flows(&self, port: &str) -> Option<Flows> {
        let (port, limit) = (Some(port.to_owned()), Some(MAX_PAGE));
        let query = FlowQuery { port, limit, cursor: None };
        // The port may have been removed in between.
        let page = self.client.flows(&query).ok()?;
        Some(Flows::of(&query.port?, &page.flows, page.next.is_some()))
    }

    /// Looks at each interval in a thread of its own, until nobody wants to know. What is sent to the channel returned is asked for from then on.
    ///
    /// # Errors
    /// There is no thread left.
    pub(super) fn spawn(self, wish: Wish, tell: Sender<Happened>) -> io::Result<Sender<Wish>> {
        let (ask, asked) = mpsc::channel();
        let run = move || {
            let _last_word = LastWord(tell.clone());
            self.run(wish, &tell, &asked);
        };
        thread::Builder::new().name("sampler".to_owned()).spawn(run)?;
        Ok(ask)
    }

    fn run(mut self, mut wish: Wish, tell: &Sender<Happened>, asked: &mpsc::Receiver<Wish>) {
        loop {
            let looked_at = Instant::now();
            let answer = self.look(wish.flows_of.as_deref());
            let answer = answer.map(Box::new).map_err(|error| error.to_string());
            if tell.send(Happened::Answer(answer)).is_err() {
                return;
            }
            loop {
                let wait = wish.interval.saturating_sub(looked_at.elapsed());
                match asked.recv_timeout(wait) {
                    Ok(other) => wish = other,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        }
    }
}

/// Says that the thread has ended, which it does by itself only in a panic.
struct LastWord(Sender<Happened>);

impl Drop for LastWord {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(Happened::Failed("the switch is not asked any more".to_owned()));
        }
    }
}
