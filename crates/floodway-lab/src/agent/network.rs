//! Network interfaces of a guest, set up with the stock `ip` and `ethtool` in it.

use anyhow::Result;

use super::{Agent, CALL_TIMEOUT};

/// How an interface is to be. What is `None` or empty stays as it is.
#[derive(Debug, Clone, Default)]
pub struct Interface {
    /// Name in the guest: `eth0` is the first of the VM's NICs.
    pub name: String,
    /// Ethernet address, for example `52:54:00:00:00:01`.
    pub mac: Option<String>,
    /// Largest IP packet, in bytes.
    pub mtu: Option<u32>,
    /// Addresses with prefix length, for example `10.0.0.2/24` or `fd00::2/64`.
    pub addresses: Vec<String>,
    /// Offloads by ethtool's names, for example `("tso", false)`.
    pub offloads: Vec<(String, bool)>,
    /// Queue pairs in use.
    pub queue_pairs: Option<u16>,
}

impl Agent {
    /// Sets an interface up and brings its link up.
    ///
    /// # Errors
    /// When `ip` or `ethtool` refuses; the error quotes it.
    pub fn configure_interface(&self, interface: &Interface) -> Result<()> {
        self.exec_stdin(&["ip", "-batch", "-"], batch(interface).as_bytes(), CALL_TIMEOUT)?;
        let name = &interface.name[..];
        if let Some(pairs) = interface.queue_pairs {
            self.exec(&["ethtool", "-L", name, "combined", &pairs.to_string()])?;
        }
        if !interface.offloads.is_empty() {
            let mut argv = vec!["ethtool", "-K", name];
            for (offload, on) in &interface.offloads {
                argv.extend([&offload[..], if *on { "on" } else { "off" }]);
            }
            self.exec(&argv)?;
        }
        Ok(())
    }
}

/// Commands for `ip -batch`.
fn batch(interface: &Interface) -> String {
    let name = &interface.name;
    let mut lines = Vec::new();
    if let Some(mac) = &interface.mac {
        // Not every driver takes a new address while the link is up.
        lines.push(format!("link set {name} down"));
        lines.push(format!("link set {name} address {mac}"));
    }
    lines.extend(interface.mtu.map(|mtu| format!("link set {name} mtu {mtu}")));
    lines.push(format!("link set {name} up"));
    for address in &interface.addresses {
        // Duplicate detection would leave an IPv6 address unusable for its first second.
        let nodad = if address.contains(':') { " nodad" } else { "" };
        lines.push(format!("address replace {address} dev {name}{nodad}"));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_sets_what_is_given_and_nothing_else() {
        let eth0 = Interface { name: "eth0".into(), ..Interface::default() };
        assert_eq!(batch(&eth0), "link set eth0 up\n");
        let full = Interface {
            mac: Some("52:54:00:00:00:01".into()),
            mtu: Some(9000),
            addresses: vec!["10.0.0.2/24".into(), "fd00::2/64".into()],
            ..eth0
        };
        let expected = "link set eth0 down\nlink set eth0 address 52:54:00:00:00:01\nlink set eth0 mtu 9000\n\
                        link set eth0 up\naddress replace 10.0.0.2/24 dev eth0\n\
                        address replace fd00::2/64 dev eth0 nodad\n";
        assert_eq!(batch(&full), expected);
    }
}
