//! Devices of uplinks, opened with this process's rights.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use anyhow::anyhow;
use floodway_broker::uplink::{self, Uplink};
use floodway_process::message;
use floodway_switch::config::{UplinkConfig, UplinkKind};
use floodway_switch::uplink::Device;

/// Opens the uplink of `config`.
///
/// # Errors
/// Its device cannot be used.
pub fn open(config: &UplinkConfig) -> anyhow::Result<Uplink> {
    Uplink::open(&config.name, opener(config))
        .map_err(|error| anyhow!("uplink \"{}\": {error}", config.name))
}

/// The uplink of `config`, with a device that a broker of before has opened, if it had one: bits per second and descriptors.
pub fn resume(config: &UplinkConfig, device: Option<(Option<u64>, Vec<OwnedFd>)>) -> Uplink {
    let kind = config.kind;
    let device = device
        .and_then(|(link_rate, descriptors)| Device::from_descriptors(kind, descriptors, link_rate))
        .map(|device| Box::new(Held { kind, device }) as Box<dyn uplink::Device>);
    Uplink::resume(&config.name, opener(config), device)
}

fn opener(config: &UplinkConfig) -> uplink::Opener {
    let (kind, name) = (config.kind, config.device.clone());
    Box::new(move || match Device::open(kind, &name) {
        Ok(device) => Ok(Box::new(Held { kind, device }) as Box<dyn uplink::Device>),
        Err(error) => Err(io::Error::other(error)),
    })
}

/// A device that the broker keeps.
struct Held {
    kind: UplinkKind,
    device: Device,
}

impl uplink::Device for Held {
    fn kind(&self) -> message::UplinkKind {
        match self.kind {
            UplinkKind::Tap => message::UplinkKind::Tap,
            UplinkKind::Packet => message::UplinkKind::Packet,
        }
    }

    fn link_rate(&self) -> Option<u64> {
        self.device.link_rate()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.device.descriptors()
    }

    fn is_gone(&self) -> bool {
        self.device.is_gone()
    }
}
