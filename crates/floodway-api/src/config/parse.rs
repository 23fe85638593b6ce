//! Every key of the file: its type, its range, its default, and what must hold between sections.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use floodway_wire::ethernet::MacAddr;
use toml::de::DeTable;

use super::claims::{Taken, name_of};
use super::error::Fault;
use super::network::{Networks, mtu_of_port};
use super::section::Section;
use super::{
    Config, DEFAULT_CONTROL_SOCKET, L2Config, NetworkConfig, Permissions, PortConfig, SocketMode,
    UplinkConfig, UplinkKind, WorkerConfig,
};
use super::{inbound, limit, meter, migration, offload, permissions, queue, vcpu, watchdog};

/// Keys of each section, in the order in which errors list them.
pub(super) const ROOT_KEYS: &[&str] = &[
    "control",
    "permissions",
    "l2",
    "meter",
    "inbound",
    "migration",
    "vcpu",
    "watchdog",
    "worker",
    "network",
    "port",
    "uplink",
];
pub(super) const L2_KEYS: &[&str] = &["ageing_s"];
pub(super) const WORKER_KEYS: &[&str] = &["core", "poll_us"];
pub(super) const PORT_KEYS: &[&str] = &[
    "name",
    "socket",
    "mode",
    "network",
    "tagged",
    "permissions",
    "mac",
    "ips",
    "allow_router",
    "allow_dhcp_server",
    "allow_mac_takeover",
    "isolate",
    "queue_pairs",
    "mtu",
    "queue_bytes",
    "storm_pps",
    "worker",
    "inbound_weight",
    "limit",
    "offload",
    "vcpu",
];
pub(super) const UPLINK_KEYS: &[&str] = &[
    "name",
    "kind",
    "device",
    "network",
    "tagged",
    "storm_pps",
    "multicast_pps",
    "gateway_macs",
    "worker",
    "queue",
];

/// Bytes of a socket's path: `sun_path` of `sockaddr_un` without the closing NUL.
const MAX_SOCKET_PATH: usize = 107;
/// Bytes of an interface's name: `IFNAMSIZ` without the closing NUL.
const MAX_DEVICE_NAME: usize = libc::IFNAMSIZ - 1;
/// Ports and uplinks together; the forwarding table numbers them with 16 bits.
pub(super) const MAX_PORTS: usize = 4096;
/// Highest core that an affinity mask of the C library can name.
const MAX_CORE: usize = libc::CPU_SETSIZE as usize - 1;

/// The configuration that `text` says.
pub(super) fn document(text: &str) -> Result<Config, Fault> {
    let document = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        Fault::new(span, format!("not valid TOML: {}", error.message()))
    })?;
    let root = Section::root(text, &document);
    root.allow(ROOT_KEYS)?;
    let mut taken = Taken::default();
    let control =
        socket(&root, "control", root.string("control")?.unwrap_or(DEFAULT_CONTROL_SOCKET))?;
    taken.sockets.claim(&root, "control", control.display().to_string())?;
    let permissions = permissions::section(&root, &Permissions::default())?;
    let l2 = l2(&root)?;
    let meter = meter::section(&root)?;
    let vcpu = vcpu::slices(&root)?;
    let watchdog = watchdog::section(&root)?;
    let migration = migration::section(&root)?;
    let workers = workers(&root)?;
    let networks = Networks::of(&root, &mut taken)?;
    let known = Known { workers: workers.len(), permissions: &permissions, networks: &networks };
    let ports = (root.tables("port")?.iter())
        .map(|section| port(section, &known, &mut taken))
        .collect::<Result<Vec<_>, _>>()?;
    let uplinks = (root.tables("uplink")?.iter())
        .map(|section| uplink(section, &known, &mut taken))
        .collect::<Result<Vec<_>, _>>()?;
    check_port_count(ports.len() + uplinks.len())?;
    let inbound = inbound::section(&root, ports.len())?;
    let networks = networks.declared;
    Ok(Config {
        control,
        permissions,
        l2,
        meter,
        inbound,
        migration,
        vcpu,
        watchdog,
        workers,
        networks,
        ports,
        uplinks,
    })
}

/// What ports and uplinks refer to.
struct Known<'a> {
    /// How many there are.
    workers: usize,
    /// What ports' sockets have that say nothing else.
    permissions: &'a Permissions,
    networks: &'a Networks,
}

fn check_port_count(count: usize) -> Result<(), Fault> {
    if count <= MAX_PORTS {
        return Ok(());
    }
    let problem = format!("{count} ports and uplinks are too many; one switch takes {MAX_PORTS}");
    Err(Fault::new(0..0, problem).at("port"))
}

fn l2(root: &Section<'_, '_>) -> Result<L2Config, Fault> {
    let default = L2Config::default();
    let Some(section) = root.table("l2")? else {
        return Ok(default);
    };
    section.allow(L2_KEYS)?;
    let ageing = section.integer("ageing_s", 1..=1_000_000)?.map(Duration::from_secs);
    Ok(L2Config { ageing: ageing.unwrap_or(default.ageing) })
}

fn workers(root: &Section<'_, '_>) -> Result<Vec<WorkerConfig>, Fault> {
    let mut workers = Vec::new();
    for section in root.tables("worker")? {
        section.allow(WORKER_KEYS)?;
        let poll = section.integer("poll_us", 0..=1_000_000)?.map(Duration::from_micros);
        workers.push(WorkerConfig {
            core: section.integer("core", 0..=MAX_CORE)?,
            poll: poll.unwrap_or(WorkerConfig::default().poll),
        });
    }
    if workers.is_empty() {
        workers.push(WorkerConfig::default());
    }
    Ok(workers)
}

fn port(
    section: &Section<'_, '_>,
    known: &Known<'_>,
    taken: &mut Taken,
) -> Result<PortConfig, Fault> {
    section.allow(PORT_KEYS)?;
    let name = name(section, "vm1", taken)?;
    let example = format!("/run/floodway/{name}.sock");
    let socket = socket(section, "socket", section.required("socket", &example)?)?;
    taken.sockets.claim(section, "socket", socket.display().to_string())?;
    let modes = SocketMode::ALL.map(|mode| (mode.name(), mode));
    let (network, tagged) = known.networks.carried(section)?;
    let (mac, ips) = (mac(section, &vids(network.as_ref(), &tagged), taken)?, ips(section)?);
    let mtu = mtu_of_port(section, network.iter().chain(&tagged))?;
    // What checks addresses keeps guests from posing as routers and servers, too.
    let unguarded = ips.is_empty();
    let default = PortConfig::new(name, socket);
    let mode = section.choice("mode", &modes)?.unwrap_or_default();
    Ok(PortConfig {
        mode,
        network,
        tagged,
        permissions: port_permissions(section, mode, known.permissions)?,
        allow_router: section.boolean("allow_router")?.unwrap_or(unguarded),
        allow_dhcp_server: section.boolean("allow_dhcp_server")?.unwrap_or(unguarded),
        allow_mac_takeover: allow_mac_takeover(section, mac)?,
        isolate: section.boolean("isolate")?.unwrap_or(default.isolate),
        mac,
        ips,
        queue_pairs: section.integer("queue_pairs", 1..=16)?.unwrap_or(default.queue_pairs),
        mtu,
        queue_bytes: (section.integer("queue_bytes", 128 << 10..=1 << 30)?)
            .unwrap_or(default.queue_bytes),
        storm_pps: section.integer("storm_pps", 0..=u32::MAX)?.unwrap_or(default.storm_pps),
        worker: worker(section, known.workers)?,
        inbound_weight: (section.integer("inbound_weight", inbound::WEIGHT)?)
            .unwrap_or(default.inbound_weight),
        limit: limit::section(section)?,
        offload: offload::section(section)?,
        vcpu: vcpu::section(section)?,
        ..default
    })
}

fn uplink(
    section: &Section<'_, '_>,
    known: &Known<'_>,
    taken: &mut Taken,
) -> Result<UplinkConfig, Fault> {
    section.allow(UPLINK_KEYS)?;
    let name = name(section, "up0", taken)?;
    let kinds = UplinkKind::ALL.map(|kind| (kind.name(), kind));
    let missing = || section.fault("kind", "missing; add kind = \"tap\" or kind = \"packet\"");
    let kind = section.choice("kind", &kinds)?.ok_or_else(missing)?;
    let device = section.required("device", "fw0")?;
    if !is_device_name(device) {
        let problem = format!(
            "must be an interface name: 1 to {MAX_DEVICE_NAME} bytes without spaces, \"/\", \":\" or \"%\""
        );
        return Err(section.fault("device", problem));
    }
    taken.devices.claim(section, "device", device.to_owned())?;
    let default = UplinkConfig::new(name, kind, device);
    let (network, tagged) = known.networks.carried(section)?;
    Ok(UplinkConfig {
        storm_pps: section.integer("storm_pps", 0..=u32::MAX)?.unwrap_or(default.storm_pps),
        multicast_pps: (section.integer("multicast_pps", 0..=u32::MAX)?)
            .unwrap_or(default.multicast_pps),
        gateway_macs: gateway_macs(section, &vids(network.as_ref(), &tagged), taken)?,
        network,
        tagged,
        worker: worker(section, known.workers)?,
        queue: queue::section(section)?,
        ..default
    })
}

fn name(section: &Section<'_, '_>, example: &str, taken: &mut Taken) -> Result<String, Fault> {
    let name = name_of(section, example)?;
    taken.names.claim(section, "name", name.clone())?;
    Ok(name)
}

fn socket(section: &Section<'_, '_>, key: &str, path: &str) -> Result<PathBuf, Fault> {
    if path.is_empty() || path.contains('\0') || Path::new(path).file_name().is_none() {
        return Err(section.fault(key, "must be the path of a socket file"));
    }
    if path.len() > MAX_SOCKET_PATH {
        let problem = format!(
            "is {} bytes long; the system takes at most {MAX_SOCKET_PATH}, choose a shorter path",
            path.len()
        );
        return Err(section.fault(key, problem));
    }
    Ok(PathBuf::from(path))
}

/// The VLAN identifiers of all networks of a port or uplink; 0 is that of a network without one.
fn vids(untagged: Option<&NetworkConfig>, tagged: &[NetworkConfig]) -> Vec<u16> {
    untagged.into_iter().chain(tagged).map(|network| network.vid).collect()
}

fn mac(
    section: &Section<'_, '_>,
    vids: &[u16],
    taken: &mut Taken,
) -> Result<Option<MacAddr>, Fault> {
    let must = "must be six hexadecimal octets like \"52:54:00:00:00:01\"";
    let Some(mac) = section.parsed::<MacAddr>("mac", must)? else {
        return Ok(None);
    };
    if mac.is_multicast() || mac == MacAddr::default() {
        let problem =
            "must be a unicast address; its first octet must be even, as in \"52:54:00:00:00:01\"";
        return Err(section.fault("mac", problem));
    }
    for vid in vids {
        taken.macs.claim(section, "mac", in_network(*vid, mac))?;
    }
    Ok(Some(mac))
}

/// An address is unique in its network.
fn in_network(vid: u16, mac: MacAddr) -> String {
    format!("{mac} in {vid}")
}

fn gateway_macs(
    section: &Section<'_, '_>,
    vids: &[u16],
    taken: &mut Taken,
) -> Result<Vec<MacAddr>, Fault> {
    let must = "must be a unicast MAC address like \"52:54:00:00:00:01\"";
    let is_unicast = |mac: &MacAddr| !mac.is_multicast() && !mac.is_zero();
    let macs = section.parsed_list("gateway_macs", must, is_unicast)?.unwrap_or_default();
    for (mac, vid) in macs.iter().flat_map(|mac| vids.iter().map(move |vid| (mac, vid))) {
        taken.macs.claim(section, "gateway_macs", in_network(*vid, *mac))?;
    }
    Ok(macs)
}

/// A guest with a configured address has no other to take.
fn allow_mac_takeover(section: &Section<'_, '_>, mac: Option<MacAddr>) -> Result<bool, Fault> {
    let allowed = section.boolean("allow_mac_takeover")?.unwrap_or(false);
    if allowed && mac.is_some() {
        let problem =
            "has no effect with mac, which is the guest's only address; remove one of them";
        return Err(section.fault("allow_mac_takeover", problem));
    }
    Ok(allowed)
}

/// Only sockets that the switch makes have permissions of its choice.
fn port_permissions(
    section: &Section<'_, '_>,
    mode: SocketMode,
    for_all: &Permissions,
) -> Result<Permissions, Fault> {
    if mode == SocketMode::Client && section.table("permissions")?.is_some() {
        let problem =
            "the VMM makes the socket, so [port.permissions] has no effect; remove one of them";
        return Err(section.fault("mode", problem));
    }
    permissions::section(section, for_all)
}

fn ips(section: &Section<'_, '_>) -> Result<Vec<IpAddr>, Fault> {
    let must = "must be a unicast IPv4 or IPv6 address like \"10.0.0.2\" or \"fd00::2\", without prefix length";
    let ips = section.parsed_list("ips", must, is_unicast)?;
    Ok(ips.unwrap_or_default())
}

fn worker(section: &Section<'_, '_>, workers: usize) -> Result<usize, Fault> {
    let Some(index) = section.integer("worker", 0..=usize::MAX >> 1)? else {
        return Ok(0);
    };
    if index < workers {
        return Ok(index);
    }
    let have = match workers {
        1 => "there is only worker 0".to_owned(),
        n => format!("the workers are 0 to {}", n - 1),
    };
    Err(section.fault("worker", format!("{have}; name one of them or add a [[worker]] section")))
}

/// What the kernel takes for a name (`dev_valid_name`), without "%", which makes a pattern of a TAP's.
fn is_device_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || "/:%".contains(c);
    (1..=MAX_DEVICE_NAME).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.contains(forbidden)
}

fn is_unicast(ip: &IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(broadcast || ip.is_multicast() || ip.is_unspecified())
}
