//! An uplink's device, open: what both of its halves are made of.
//!
//! Whoever has the rights opens it ([`Device::open`]); whoever moves frames makes halves of it ([`Device::halves`]). These may be two processes:
//! a broker that keeps the device and a data plane that has duplicates of its descriptors, and another data plane after that. What the kernel has queued for the
//! device belongs to the open file, so it is there for the next one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Halves, OpenError, packet, tap};
use crate::config::UplinkKind;

/// Descriptors of an open device.
#[derive(Debug)]
enum Descriptors {
    /// A TAP device, both ways.
    Tap(OwnedFd),
    /// A packet socket that receives, and one that sends.
    Packet { receiving: OwnedFd, sending: OwnedFd },
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    descriptors: Descriptors,
    link_rate: Option<u64>,
}

impl Device {
    /// Opens the interface named `device`.
    ///
    /// # Errors
    /// The device cannot be used; the error names it and says what to do.
    pub fn open(kind: UplinkKind, device: &str) -> Result<Self, OpenError> {
        Ok(match kind {
            // The kernel invents a rate for TAP devices.
            UplinkKind::Tap => {
                Self { descriptors: Descriptors::Tap(tap::open_device(device)?), link_rate: None }
            }
            UplinkKind::Packet => {
                let (receiving, sending) = packet::open_device(device)?;
                let descriptors = Descriptors::Packet { receiving, sending };
                Self { descriptors, link_rate: link_rate(device) }
            }
        })
    }

    /// The device that a broker has opened, and whose descriptors have arrived in the order of [`Device::descriptors`]; `None` if they are
    /// too few or too many.
    #[must_use]
    pub fn from_descriptors(
        kind: UplinkKind,
        descriptors: Vec<OwnedFd>,
        link_rate: Option<u64>,
    ) -> Option<Self> {
        let mut arrived = descriptors.into_iter();
        let descriptors = match (kind, arrived.next(), arrived.next(), arrived.next()) {
            (UplinkKind::Tap, Some(tap), None, None) => Descriptors::Tap(tap),
            (UplinkKind::Packet, Some(receiving), Some(sending), None) => {
                Descriptors::Packet { receiving, sending }
            }
            _ => return None,
        };
        Some(Self { descriptors, link_rate })
    }

    /// The descriptors, for another process: one of a TAP device; of an interface one that receives and one that sends.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.descriptors {
            Descriptors::Tap(tap) => vec![tap.as_fd()],
            Descriptors::Packet { receiving, sending } => vec![receiving.as_fd(), sending.as_fd()],
        }
    }

    /// The same device, by descriptors of its own.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub fn try_clone(&self) -> io::Result<Self> {
        let descriptors = match &self.descriptors {
            Descriptors::Tap(tap) => Descriptors::Tap(tap.try_clone()?),
            Descriptors::Packet { receiving, sending } => Descriptors::Packet {
                receiving: receiving.try_clone()?,
                sending: sending.try_clone()?,
            },
        };
        Ok(Self { descriptors, link_rate: self.link_rate })
    }

    /// Bits per second, if the kernel said so when the device was opened.
    #[must_use]
    pub fn link_rate(&self) -> Option<u64> {
        self.link_rate
    }

    /// Returns `true` if the interface behind the device has been removed, although nobody may have been told: the kernel reports it once, to whoever
    /// reads next.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match &self.descriptors {
            // It tells everybody who reads.
            Descriptors::Tap(_) => false,
            Descriptors::Packet { receiving, .. } => !packet::is_bound(receiving),
        }
    }

    /// Makes both halves of the device, which is named `device` in their errors.
    #[must_use]
    pub fn halves(self, device: &str) -> Halves {
        match self.descriptors {
            Descriptors::Tap(tap) => {
                let (receiver, sender) = tap::halves(tap, device);
                (Box::new(receiver), Box::new(sender))
            }
            Descriptors::Packet { receiving, sending } => {
                let (receiver, sender) = packet::halves(receiving, sending, device);
                (Box::new(receiver), Box::new(sender))
            }
        }
    }
}

/// What the kernel says of the interface's link in bits per second; `None` for one that has no speed or does not say it.
fn link_rate(device: &str) -> Option<u64> {
    let speed = std::fs::read_to_string(format!("/sys/class/net/{device}/speed")).ok()?;
    let mbit = speed.trim().parse::<u64>().ok().filter(|&mbit| mbit > 0)?;
    Some(mbit * 1_000_000)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_device_has_the_descriptors_of_its_kind() {
        let some = |n: usize| -> Vec<OwnedFd> {
            (0..n).map(|_| File::open("/dev/null").unwrap().into()).collect()
        };
        for (kind, right) in [(UplinkKind::Tap, 1), (UplinkKind::Packet, 2)] {
            for n in 0..4 {
                let device = Device::from_descriptors(kind, some(n), Some(7));
                assert_eq!(device.is_some(), n == right, "{kind:?} with {n} descriptors");
                let Some(device) = device else { continue };
                assert_eq!((device.descriptors().len(), device.link_rate()), (n, Some(7)));
            }
        }
    }
}
