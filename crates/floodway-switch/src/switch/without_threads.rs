//! A switch without sockets and threads: for tests and benches, which are its worker.

use std::sync::Arc;

use super::{Held, StartError, open};
use crate::config::Config;
use crate::state::port::Port;
use crate::state::shared::Shared;
#[cfg(test)]
use crate::state::supply::DeviceSupply;
use crate::sync::waker::Waker;

impl Shared {
    /// The port that is number `index` of the configuration.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn port_at(&self, index: usize) -> Arc<Port> {
        Arc::clone(&self.ports().list()[index])
    }

    /// The switch of `config` without sockets and threads: for benches, which are its worker.
    ///
    /// # Errors
    /// As [`Switch::start`](super::Switch::start).
    pub fn without_threads(config: &Config) -> Result<Arc<Self>, StartError> {
        Self::without_threads_with(config, &Held::default())
    }

    /// As [`without_threads`](Self::without_threads), with uplinks that have no devices yet.
    ///
    /// # Errors
    /// As [`Switch::start`](super::Switch::start).
    #[cfg(test)]
    pub(crate) fn without_devices(config: &Config) -> Result<Arc<Self>, StartError> {
        let bell = Arc::new(crate::state::supply::Bell::new().expect("descriptors left"));
        let supply = |_| Arc::new(DeviceSupply::new(None, Arc::clone(&bell)));
        let devices = Some(config.uplinks.iter().map(supply).collect());
        Self::without_threads_with(config, &Held { devices, ..Held::default() })
    }

    fn without_threads_with(config: &Config, held: &Held) -> Result<Arc<Self>, StartError> {
        let failed = |index| move |source| StartError::Worker { index, source };
        let wakers = (0..config.workers.len())
            .map(|index| Waker::new().map(Arc::new).map_err(failed(index)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut receivers: Vec<_> = wakers.iter().map(|_| Vec::new()).collect();
        let shared = Arc::new(open(config, &wakers, &mut receivers, held)?.shared);
        shared.configure_inbound(&config.inbound);
        Ok(shared)
    }
}
