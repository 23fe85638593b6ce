//! Network interfaces, and the reader at their ingress.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

use anyhow::{Context, Result, bail};
use libbpf_rs::{Error, ErrorKind, TC_INGRESS, TcHook, TcHookBuilder};

const CLASS: &str = "/sys/class/net";
/// `ARPHRD_ETHER`
const ETHERNET: &str = "1";
/// Where our filter sits among an interface's others: unlikely to be anybody else's place.
const PRIORITY: u32 = 0xf10d;
const HANDLE: u32 = 1;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
}

impl Interface {
    /// Its Ethernet address; `None` if it has none.
    pub fn address(&self) -> Option<[u8; 6]> {
        let text = attribute(&self.name, "address")?;
        let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16));
        octets.collect::<Result<Vec<_>, _>>().ok()?.try_into().ok()
    }
}

/// All interfaces.
pub fn all() -> Result<Vec<Interface>> {
    let entries = fs::read_dir(CLASS).with_context(|| format!("cannot list {CLASS}"))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut interfaces: Vec<_> = names
        // One that is taken away meanwhile is no error.
        .filter_map(|name| {
            Some(Interface { index: attribute(&name, "ifindex")?.parse().ok()?, name })
        })
        .collect();
    interfaces.sort_by_key(|interface| interface.index);
    Ok(interfaces)
}

/// The interfaces that the operator means: names, or `all` for every Ethernet device (not bridges and tunnels, whose
/// frames have passed a device before).
pub fn select(wanted: &[String]) -> Result<Vec<Interface>> {
    let all = all()?;
    let mut selected: Vec<Interface> = Vec::new();
    for name in wanted {
        let matches: Vec<_> = if name == "all" {
            all.iter().filter(|interface| is_device(&interface.name)).collect()
        } else {
            all.iter().filter(|interface| interface.name == *name).collect()
        };
        match (&matches[..], &name[..]) {
            ([], "all") => bail!("no Ethernet device in {CLASS}: name the interface"),
            ([], name) => bail!("no interface {name}"),
            _ => selected.extend(matches.into_iter().cloned()),
        }
    }
    selected.sort_by_key(|interface| interface.index);
    selected.dedup();
    Ok(selected)
}

fn is_device(name: &str) -> bool {
    attribute(name, "type").as_deref() == Some(ETHERNET)
        && Path::new(CLASS).join(name).join("device").exists()
}

fn attribute(interface: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(CLASS).join(interface).join(name)).ok()?;
    Some(text.trim().to_owned())
}

fn hook(reader: BorrowedFd<'_>, interface: &Interface) -> Result<TcHook> {
    let mut builder = TcHookBuilder::new(reader);
    builder.ifindex(i32::try_from(interface.index)?).handle(HANDLE).priority(PRIORITY);
    Ok(builder.replace(true).hook(TC_INGRESS))
}

/// Puts the reader at the ingress of an interface, in place of one that is there.
pub fn attach(reader: BorrowedFd<'_>, interface: &Interface) -> Result<()> {
    let mut hook = hook(reader, interface)?;
    hook.create().context("cannot create the clsact queueing discipline")?;
    hook.attach().context("cannot attach the classifier")?;
    Ok(())
}

/// Takes the reader away. The `clsact` discipline stays: others may have put filters into it.
pub fn detach(reader: BorrowedFd<'_>, interface: &Interface) -> Result<()> {
    let detached = hook(reader, interface)?.detach();
    match detached {
        Err(error) if !is_absent(&error) => {
            Err(error).with_context(|| format!("cannot detach from {}", interface.name))
        }
        _ => Ok(()),
    }
}

/// Whether the program with this ID reads at an interface.
pub fn is_attached(reader: BorrowedFd<'_>, id: u32, interface: &Interface) -> Result<bool> {
    Ok(hook(reader, interface)?.query().is_ok_and(|attached| attached == id))
}

/// The filter, the discipline, or the interface is not there.
fn is_absent(error: &Error) -> bool {
    // EINVAL: there is no such discipline.
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput)
        || error.to_string().contains("No such device")
}
