//! Questions and requests about a network interface by its name (netdevice(7)).

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::OpenError;

/// The name of a network interface, in the form that the kernel's requests take.
pub(super) struct Interface {
    request: libc::ifreq,
    control: OwnedFd,
}

impl Interface {
    /// Looks at nothing but the name yet.
    pub(super) fn named(device: &str) -> Result<Self, OpenError> {
        let forbidden = |b: u8| !b.is_ascii_graphic() || matches!(b, b'/' | b':' | b'%');
        let bad = device.is_empty()
            || device.len() >= libc::IFNAMSIZ
            || matches!(device, "." | "..")
            || device.bytes().any(forbidden);
        if bad {
            return Err(OpenError::BadName { device: device.to_owned() });
        }
        // SAFETY: all zeros is a valid `ifreq`: an empty name and numbers that are zero.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from.cast_signed();
        }
        let control = control_socket().map_err(|source| OpenError::System {
            device: device.to_owned(),
            call: "socket(AF_INET)",
            source,
        })?;
        Ok(Self { request, control })
    }

    /// The interface's number. `ENODEV` if there is none of that name.
    pub(super) fn index(&self) -> io::Result<c_int> {
        let answer = self.ask(self.control.as_fd(), libc::SIOCGIFINDEX, self.request)?;
        // SAFETY: SIOCGIFINDEX fills in this member.
        Ok(unsafe { answer.ifr_ifru.ifru_ifindex })
    }

    /// Its frames have Ethernet headers.
    pub(super) fn is_ethernet(&self) -> io::Result<bool> {
        let answer = self.ask(self.control.as_fd(), libc::SIOCGIFHWADDR, self.request)?;
        // SAFETY: SIOCGIFHWADDR fills in this member.
        Ok(unsafe { answer.ifr_ifru.ifru_hwaddr.sa_family } == libc::ARPHRD_ETHER)
    }

    /// It is administratively up.
    pub(super) fn is_up(&self) -> io::Result<bool> {
        Ok(i32::from(self.flags()?) & libc::IFF_UP != 0)
    }

    /// Sets it administratively up.
    pub(super) fn set_up(&self) -> io::Result<()> {
        let mut request = self.request;
        request.ifr_ifru.ifru_flags = self.flags()? | libc::IFF_UP as i16;
        self.ask(self.control.as_fd(), libc::SIOCSIFFLAGS, request).map(|_| ())
    }

    /// Attaches `tun`, an open `/dev/net/tun`, to the interface of this name, which is created if
    /// there is none.
    pub(super) fn attach_tun(&self, tun: BorrowedFd<'_>, flags: c_int) -> io::Result<()> {
        let mut request = self.request;
        request.ifr_ifru.ifru_flags = (flags as u16).cast_signed();
        self.ask(tun, libc::TUNSETIFF, request).map(|_| ())
    }

    fn flags(&self) -> io::Result<i16> {
        let answer = self.ask(self.control.as_fd(), libc::SIOCGIFFLAGS, self.request)?;
        // SAFETY: SIOCGIFFLAGS fills in this member.
        Ok(unsafe { answer.ifr_ifru.ifru_flags })
    }

    fn ask(
        &self,
        fd: BorrowedFd<'_>,
        code: libc::Ioctl,
        mut request: libc::ifreq,
    ) -> io::Result<libc::ifreq> {
        // SAFETY: all the codes above take a pointer to an `ifreq`, which the kernel reads and
        // writes during the call only.
        match unsafe { libc::ioctl(fd.as_raw_fd(), code, &raw mut request) } {
            0.. => Ok(request),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    match unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) } {
        // SAFETY: a descriptor that was just opened and that nobody else knows.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
