//! Why an uplink could not be opened.

use std::io;

/// Why a device cannot be used as an uplink, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not a name that an interface can have.
    #[error(
        "device \"{device}\" is no interface name; \
         use 1 to 15 bytes without blanks, '/', ':' and '%'"
    )]
    BadName {
        /// As configured.
        device: String,
    },
    /// There is no such interface.
    #[error(
        "interface \"{device}\" does not exist; create it, correct `device`, \
         or use kind = \"tap\" to have one created"
    )]
    Missing {
        /// As configured.
        device: String,
    },
    /// The kernel has no TUN/TAP driver, or it is not visible here.
    #[error(
        "cannot open tap \"{device}\": /dev/net/tun is missing; \
         load the driver with `modprobe tun`, or pass the device into the container"
    )]
    NoTunDriver {
        /// As configured.
        device: String,
    },
    /// The process lacks a capability.
    #[error("no permission to open \"{device}\"; run as root or with {capability}")]
    Permission {
        /// As configured.
        device: String,
        /// What is missing.
        capability: &'static str,
    },
    /// Somebody else has the TAP device open.
    #[error(
        "tap \"{device}\" is in use by another process; stop that process or choose another `device`"
    )]
    Busy {
        /// As configured.
        device: String,
    },
    /// The name belongs to something else.
    #[error(
        "interface \"{device}\" exists and is no single-queue tap; \
         choose another `device`, or remove it with `ip link delete dev {device}`"
    )]
    NotTap {
        /// As configured.
        device: String,
    },
    /// Frames of the interface have no Ethernet header.
    #[error("interface \"{device}\" is no Ethernet interface; choose another `device`")]
    NotEthernet {
        /// As configured.
        device: String,
    },
    /// The interface is administratively down.
    #[error("interface \"{device}\" is down; run `ip link set dev {device} up`")]
    Down {
        /// As configured.
        device: String,
    },
    /// A system call failed for another reason.
    #[error("cannot set up \"{device}\": {call}: {source}")]
    System {
        /// As configured.
        device: String,
        /// What was asked of the kernel.
        call: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

impl OpenError {
    /// The error for `call`, which failed for want of `capability` or for another reason.
    pub(super) fn from_call(
        device: &str,
        call: &'static str,
        capability: &'static str,
        source: io::Error,
    ) -> Self {
        let device = device.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Permission { device, capability },
            Some(libc::ENODEV) => Self::Missing { device },
            _ => Self::System { device, call, source },
        }
    }
}
