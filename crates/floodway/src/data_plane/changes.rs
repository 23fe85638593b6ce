//! Changes of ports and uplinks that the broker sends.
//!
//! # Theory of operation
//! First come the channels of new ports and the devices of new uplinks, then the configuration, which says that these are all. A change waits for workers and for guests, so it is made on a thread of its own:
//! the main thread goes on giving signs of life. The broker sends one change at a time.
//!
//! The answer is sent from there, under the lock that keeps settings from being made meanwhile: a setting that the broker receives before it is part of
//! the change, one that it receives later is not. A change that can be neither made nor refused ends the process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;

use anyhow::{Context, bail};
use floodway_process::message::{FromDataPlane, shorten};
use floodway_switch::state::supply::Bell;
use floodway_switch::switch::{BrokerPort, BrokerUplink};
use floodway_switch::uplink::Device;
use floodway_switch::{Config, Switch};

use super::MainChannel;

/// Ports that belong to the next change, and what it takes to make it.
pub struct Changes {
    switch: Arc<Switch>,
    channel: Arc<MainChannel>,
    /// What errors call the configuration.
    name: PathBuf,
    ports: BTreeMap<usize, BrokerPort>,
    /// Devices of uplinks, by number.
    devices: BTreeMap<usize, Device>,
    /// Why a change was made in part.
    failure: Arc<OnceLock<String>>,
    /// Rung when it was.
    bell: Arc<Bell>,
}

impl Changes {
    /// Changes of `switch`, answered by `channel`; `name` is what errors call the configuration, and `bell` wakes whoever calls [`check`](Self::check).
    pub fn new(
        switch: Arc<Switch>,
        channel: Arc<MainChannel>,
        name: PathBuf,
        bell: Arc<Bell>,
    ) -> Self {
        let (ports, devices, failure) = (BTreeMap::new(), BTreeMap::new(), Arc::default());
        Self { switch, channel, name, ports, devices, failure, bell }
    }

    /// Returns an error if a change was made in part. The process must end then, and the next data plane starts with the whole change.
    ///
    /// # Errors
    /// A change was made in part.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.failure.get() {
            Some(problem) => bail!("a change was made in part: {problem}"),
            None => Ok(()),
        }
    }

    /// Adds a port to the next change, at position `index` of its configuration.
    pub fn add(&mut self, index: u16, port: BrokerPort) {
        self.ports.insert(index.into(), port);
    }

    /// Adds the device of the uplink with number `number` to the next change.
    pub fn add_device(&mut self, number: usize, device: Device) {
        self.devices.insert(number, device);
    }

    /// The device that has come for the uplink with number `number`.
    pub fn take_device(&mut self, number: usize) -> Option<Device> {
        self.devices.remove(&number)
    }

    /// Begins change `number`, to what `text` says; `uplinks` are those that are new, by their positions.
    ///
    /// # Errors
    /// The broker has sent a configuration that is none, or there are no threads left.
    pub fn begin(
        &mut self,
        number: u64,
        text: &str,
        uplinks: BTreeMap<usize, BrokerUplink>,
    ) -> anyhow::Result<()> {
        let wanted = Config::parse(text, &self.name).context("the broker's configuration")?;
        let ports = std::mem::take(&mut self.ports);
        // Whatever else has come belongs to no uplink.
        self.devices.clear();
        let (switch, channel) = (Arc::clone(&self.switch), Arc::clone(&self.channel));
        let (failure, bell) = (Arc::clone(&self.failure), Arc::clone(&self.bell));
        let answer = move |outcome: Result<(), String>| {
            let refusal = outcome.err().map(|problem| shorten(&problem));
            let answer = FromDataPlane::Changed { number, refusal };
            if let Err(error) = channel.send(&answer, &[]) {
                tracing::error!(%error, "the broker hears nothing of a change");
            }
        };
        thread::Builder::new().name("change".to_owned()).spawn(move || {
            if let Err(problem) = switch.follow(wanted, ports, uplinks, answer) {
                failure.get_or_init(|| problem);
                bell.ring();
            }
        })?;
        Ok(())
    }
}
