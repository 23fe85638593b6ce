//! Network cards of a VM, and their words on QEMU's command line.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::accel::Accelerator;

/// What is behind a network card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// A vhost-user switch.
    VhostUser {
        /// The socket.
        socket: PathBuf,
        /// Who listens on it.
        role: Role,
    },
    /// A tap interface, made by QEMU if it does not exist.
    Tap {
        /// Its name.
        interface: String,
    },
}

/// QEMU's part on a vhost-user socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// QEMU listens (the switch's port has `mode = "client"`). It waits for the switch once, before
    /// the guest starts; from then on the switch may come and go.
    Server,
    /// QEMU connects, and tries again every second when the connection is lost. The switch must
    /// be there when the VM starts.
    Client,
}

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// What is behind it.
    pub backend: Backend,
    /// Ethernet address, for example `52:54:00:00:00:01`.
    pub mac: String,
    /// Queue pairs, 1 to 16. A tap needs its `multi_queue` flag for more than one.
    pub queue_pairs: u16,
    /// MTU that the guest is told, in bytes; `None` is nothing (the guest then takes 1500).
    pub mtu: Option<u16>,
    /// MSI-X where QEMU can give it to the card; otherwise it interrupts by INTx.
    pub msix: bool,
}

impl Nic {
    /// A card with one queue pair on a vhost-user socket on which QEMU listens.
    #[must_use]
    pub fn vhost_user(socket: impl Into<PathBuf>, mac: impl Into<String>) -> Self {
        let backend = Backend::VhostUser { socket: socket.into(), role: Role::Server };
        Self { backend, mac: mac.into(), queue_pairs: 1, mtu: None, msix: true }
    }

    /// A card with one queue pair on a tap.
    #[must_use]
    pub fn tap(interface: impl Into<String>, mac: impl Into<String>) -> Self {
        let backend = Backend::Tap { interface: interface.into() };
        Self { backend, mac: mac.into(), queue_pairs: 1, mtu: None, msix: true }
    }

    /// The words for card number `index`.
    pub(super) fn arguments(&self, index: usize, accelerator: &Accelerator) -> Result<Vec<String>> {
        let pairs = self.queue_pairs;
        ensure!((1..=16).contains(&pairs), "queue_pairs {pairs}: must be between 1 and 16");
        // QEMU 7.2 crashes when a guest starts a vhost-user card with MSI-X under emulation.
        let (mut words, crashes) = match &self.backend {
            Backend::VhostUser { socket, role } => {
                let words = vhost_user(index, &socket.to_string_lossy(), *role, pairs);
                (words, !accelerator.is_kvm)
            }
            Backend::Tap { interface } => (tap(index, interface, pairs), false),
        };
        let mut device = format!("virtio-net-pci,netdev=net{index},mac={}", self.mac);
        if crashes || !self.msix {
            device += ",vectors=0";
        }
        if pairs > 1 {
            device += ",mq=on";
        }
        if let Some(mtu) = self.mtu {
            device += &format!(",host_mtu={mtu}");
        }
        words.extend(["-device".to_owned(), device]);
        Ok(words)
    }
}

fn vhost_user(index: usize, socket: &str, role: Role, pairs: u16) -> Vec<String> {
    // A comma ends an option's value; two stand for one.
    let path = socket.replace(',', ",,");
    let role = match role {
        Role::Server => "server=on,wait=off",
        Role::Client => "reconnect=1",
    };
    vec![
        "-chardev".to_owned(),
        format!("socket,id=switch{index},path={path},{role}"),
        "-netdev".to_owned(),
        format!("vhost-user,id=net{index},chardev=switch{index},queues={pairs}"),
    ]
}

fn tap(index: usize, interface: &str, pairs: u16) -> Vec<String> {
    let queues = if pairs > 1 { format!(",queues={pairs}") } else { String::new() };
    vec![
        "-netdev".to_owned(),
        format!("tap,id=net{index},ifname={interface},script=no,downscript=no,vhost=off{queues}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_the_card() {
        let tcg = Accelerator { is_kvm: false, reason: String::new() };
        let mut nic = Nic::vhost_user("/run/a,b.sock", "52:54:00:00:00:01");
        (nic.queue_pairs, nic.mtu) = (2, Some(9000));
        let expected = "-chardev socket,id=switch3,path=/run/a,,b.sock,server=on,wait=off \
             -netdev vhost-user,id=net3,chardev=switch3,queues=2 \
             -device virtio-net-pci,netdev=net3,mac=52:54:00:00:00:01,vectors=0,mq=on,host_mtu=9000";
        assert_eq!(nic.arguments(3, &tcg).unwrap().join(" "), expected);
        let kvm = Accelerator { is_kvm: true, ..tcg.clone() };
        let words = nic.arguments(3, &kvm).unwrap().join(" ");
        assert_eq!(words, expected.replace(",vectors=0", ""), "MSI-X");
        let mut tap = Nic::tap("tap0", "52:54:00:00:00:02");
        tap.msix = false;
        assert!(tap.arguments(0, &kvm).unwrap().join(" ").ends_with(",vectors=0"), "INTx");
        tap.msix = true;
        let tap = tap.arguments(0, &tcg).unwrap().join(" ");
        assert!(
            tap.contains("ifname=tap0") && !tap.contains("queues") && !tap.contains("vectors"),
            "{tap}"
        );
        nic.queue_pairs = 17;
        assert!(nic.arguments(0, &tcg).unwrap_err().to_string().starts_with("queue_pairs 17"));
    }
}
