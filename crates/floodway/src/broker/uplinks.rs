//! Devices of uplinks, opened with this process's rights.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use anyhow::{Context, anyhow};
use floodway_broker::uplink::{self, Uplink, UplinkPlace};
use floodway_process::message;
use floodway_switch::Config;
use floodway_switch::config::{UplinkConfig, UplinkKind};
use floodway_switch::uplink::Device;

/// Places of the uplinks of `config`, all of them new.
///
/// # Errors
/// A device cannot be used.
pub fn open_all(config: &Config) -> anyhow::Result<Vec<UplinkPlace>> {
    let place = |(number, uplink)| Ok(UplinkPlace { number, uplink: open(uplink)? });
    (0..).zip(&config.uplinks).map(place).collect()
}

/// Places of the uplinks of `wanted` after `known`, those of `running`: those called `new` get the first numbers of `free`. One that is new, and has the device of
/// one that is not, or not as it was, takes that over, open as it is.
///
/// # Errors
/// A device cannot be used, or there are no numbers left.
pub fn next(
    (running, known): (&Config, &[UplinkPlace]),
    wanted: &Config,
    new: &BTreeSet<&str>,
    free: &mut VecDeque<u16>,
) -> anyhow::Result<Vec<UplinkPlace>> {
    let known: Vec<_> = running.uplinks.iter().zip(known).collect();
    let place = |config: &UplinkConfig| {
        if !new.contains(&*config.name)
            && let Some((_, place)) = known.iter().find(|(before, _)| before.name == config.name)
        {
            return Ok((*place).clone());
        }
        let number = free.pop_front().context(
            "no number is left for an uplink, nor for one in the place of another; restart the switch",
        )?;
        let is_same =
            |before: &UplinkConfig| (before.kind, &before.device) == (config.kind, &config.device);
        let uplink = match known.iter().find(|(before, _)| is_same(before)) {
            Some((_, place)) => Arc::clone(&place.uplink),
            None => open(config)?,
        };
        Ok(UplinkPlace { number, uplink })
    };
    wanted.uplinks.iter().map(place).collect()
}

/// Opens the uplink of `config`.
///
/// # Errors
/// Its device cannot be used.
fn open(config: &UplinkConfig) -> anyhow::Result<Arc<Mutex<Uplink>>> {
    let uplink = Uplink::open(&config.name, opener(config));
    let uplink = uplink.map_err(|error| anyhow!("uplink \"{}\": {error}", config.name))?;
    Ok(Arc::new(Mutex::new(uplink)))
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
