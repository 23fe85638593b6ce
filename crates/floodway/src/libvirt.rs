//! `floodway libvirt-hook`: ports come and go with the domains of libvirt.
//!
//! # Theory of operation
//! libvirt calls `/etc/libvirt/hooks/qemu` with the name of a domain, what happens to it, and its XML on standard input. Before a domain starts
//! (`prepare begin`, also when it is restored or moves in) each of its vhost-user interfaces gets a port, unless a port with that socket is
//! there already; when it has ended (`release end`) those ports go. The port's keys follow from the interface: `socket`, `mode`, `mac`,
//! `queue_pairs` and `mtu`. When libvirtd starts (`reconnect begin`), ports that are missing come back.
//!
//! Only sockets in a directory of Floodway's are looked at. A failure before the start keeps the domain from starting and is in libvirt's error;
//! a failure afterwards is only reported.
//!
//! **Invariant**: only ports that a hook has added are removed: their names are [`PREFIX`], the domain's name and a number.

use std::io::{self, Read};
use std::path::Path;

use anyhow::{anyhow, bail};
use floodway_switch::api::edit::{self, Kind};
use floodway_switch::control::ControlClient;
use roxmltree::{Document, Node};
use serde_json::Value;

use crate::change::change;
use crate::cli::HookArgs;
use crate::save::Edit;

/// What names of ports begin with that are a domain's.
const PREFIX: &str = "libvirt";
/// Longest domain XML that is read.
const MAX_XML: u64 = 16 << 20;

/// Does what libvirt's event asks for, which may be nothing.
///
/// # Errors
/// The domain's XML cannot be read, or a port cannot be had.
pub fn hook(args: &HookArgs) -> anyhow::Result<()> {
    match (&*args.operation, &*args.sub_operation) {
        ("prepare" | "reconnect", "begin") => {
            let mut xml = String::new();
            io::stdin().take(MAX_XML).read_to_string(&mut xml)?;
            add(args, &interfaces(&xml, &args.sockets)?)
        }
        ("release", "end") => remove(args),
        _ => Ok(()),
    }
}

fn add(args: &HookArgs, interfaces: &[edit::Document]) -> anyhow::Result<()> {
    if interfaces.is_empty() {
        return Ok(());
    }
    let known = ControlClient::new(&args.how.control.path)?.ports()?;
    let missing = interfaces
        .iter()
        .enumerate()
        .filter(|(_, keys)| !known.iter().any(|port| port.get("socket") == keys.get("socket")));
    for (number, keys) in missing {
        let name = name(&args.domain, number);
        change(&args.how, Kind::Port, &name, Edit::Replace(keys), |client, dry_run| {
            Ok(client.put(Kind::Port, &name, keys, dry_run)?)
        })?;
    }
    Ok(())
}

fn remove(args: &HookArgs) -> anyhow::Result<()> {
    let known = ControlClient::new(&args.how.control.path)?.ports()?;
    let names = known.iter().filter_map(|port| port.get("name")?.as_str());
    for name in names.filter(|name| is_of(name, &args.domain)) {
        change(&args.how, Kind::Port, name, Edit::Remove, |client, dry_run| {
            Ok(client.delete(Kind::Port, name, dry_run)?)
        })?;
    }
    Ok(())
}

/// The name of the port of a domain's interface.
fn name(domain: &str, number: usize) -> String {
    // With the longest number, 64 characters are the most.
    let domain: String = domain.chars().take(48).map(plain).collect();
    format!("{PREFIX}.{domain}.{number}")
}

fn plain(c: char) -> char {
    if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }
}

fn is_of(name: &str, domain: &str) -> bool {
    let number = name.rsplit('.').next().and_then(|number| number.parse().ok());
    number.is_some_and(|number| self::name(domain, number) == name)
}

/// The keys of ports for the vhost-user interfaces of a domain whose sockets are below a directory that begins with `sockets`.
fn interfaces(xml: &str, sockets: &str) -> anyhow::Result<Vec<edit::Document>> {
    let document = Document::parse(xml).map_err(|error| anyhow!("the domain's XML: {error}"))?;
    let is_interface = |node: &Node<'_, '_>| {
        node.has_tag_name("interface") && node.attribute("type") == Some("vhostuser")
    };
    let all = document.descendants().filter(is_interface).map(|node| keys(node, sockets));
    all.filter_map(Result::transpose).collect()
}

/// The keys of the port for an interface; `None` if it is another switch's.
fn keys(interface: Node<'_, '_>, sockets: &str) -> anyhow::Result<Option<edit::Document>> {
    let attribute = |element: &str, name: &str| {
        interface.children().find(|node| node.has_tag_name(element))?.attribute(name)
    };
    let Some(socket) = attribute("source", "path").filter(|path| path.starts_with(sockets)) else {
        return Ok(None);
    };
    if Path::new(socket).components().any(|part| part.as_os_str() == "..") {
        bail!("the socket {socket} must not lead upwards");
    }
    let mut keys = edit::Document::new();
    keys.insert("socket".into(), socket.into());
    if attribute("source", "mode") == Some("server") {
        keys.insert("mode".into(), "client".into());
    }
    keys.extend(attribute("mac", "address").map(|mac| ("mac".into(), mac.into())));
    for (key, element, name) in [("queue_pairs", "driver", "queues"), ("mtu", "mtu", "size")] {
        if let Some(text) = attribute(element, name) {
            let number: u64 =
                text.parse().map_err(|_| anyhow!("<{element} {name}='{text}'/> is no number"))?;
            keys.insert(key.into(), Value::from(number));
        }
    }
    Ok(Some(keys))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const XML: &str = "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>vm1</name><devices>
        <interface type='vhostuser'><mac address='52:54:00:00:00:01'/>
          <source type='unix' path='/run/floodway/vm1.sock' mode='client'><reconnect enabled='yes' timeout='1'/></source>
          <model type='virtio'/><driver queues='2'/><mtu size='9000'/></interface>
        <interface type='vhostuser'><source type='unix' path='/run/floodway-vmm/b.sock' mode='server'/></interface>
        <interface type='vhostuser'><source type='unix' path='/run/openvswitch/c.sock' mode='client'/></interface>
        <interface type='network'><source network='default'/></interface></devices></domain>";

    #[test]
    fn interfaces_of_floodway_become_ports() {
        let ports: Vec<_> =
            interfaces(XML, "/run/floodway").unwrap().into_iter().map(Value::Object).collect();
        let expected = [
            json!({ "socket": "/run/floodway/vm1.sock", "mac": "52:54:00:00:00:01", "queue_pairs": 2, "mtu": 9000 }),
            json!({ "socket": "/run/floodway-vmm/b.sock", "mode": "client" }),
        ];
        assert_eq!(ports, expected);
        assert!(interfaces("<domain>", "/run/floodway").is_err());
        let upwards = XML.replace("/run/floodway/vm1.sock", "/run/floodway/../vm1.sock");
        assert!(interfaces(&upwards, "/run/floodway").is_err());
    }

    #[test]
    fn ports_are_a_domains_by_their_names() {
        assert_eq!(name("vm 1/ä", 0), "libvirt.vm_1__.0");
        assert!(name(&"x".repeat(100), 4095).len() <= 64);
        assert!(is_of("libvirt.vm1.12", "vm1"));
        for other in ["vm1", "libvirt.vm1", "libvirt.vm1.x.1", "libvirt.vm1.01", "libvirt.vm11.1"] {
            assert!(!is_of(other, "vm1"), "{other}");
        }
    }
}
