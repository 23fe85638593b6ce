//! What is installed and what it sees.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapHandle};
use rustix::system::uname;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::interfaces::{self, Interface};
use super::object::{self, COUNTERS, HEARTBEATS, MANAGED};
use super::record::Record;
use super::{Settings, congestion, kernel, loss_probes};

/// In the order of `enum counter` in `bpf/notices.h`.
const COUNTER_NAMES: [&str; 10] = [
    "heartbeat_notices",
    "managed_notices",
    "offline_notices",
    "malformed_notices",
    "flows_gone_online",
    "flows_gone_offline",
    "unauthentic_notices",
    "flows_named_in_syn_acks",
    "unauthentic_names",
    "older_connections",
];
const NANOSECONDS_PER_MS: u64 = 1_000_000;

/// What `status` says.
#[derive(Debug, Serialize)]
struct Status {
    /// `uname -r`
    kernel: String,
    /// The congestion control is known to the kernel.
    registered: bool,
    /// The default of new sockets.
    default: String,
    /// Tail loss probes of the kernel (`net.ipv4.tcp_early_retrans`); 0 while they are switched off.
    loss_probes: String,
    /// Settings of the installation.
    settings: Option<Settings>,
    /// The interfaces on which notices are read.
    interfaces: Vec<InterfaceStatus>,
    /// Names in SYN-ACKs are read.
    reads_names: bool,
    /// Flows that are named under the epoch of their interface's latest heartbeat.
    managed_flows: usize,
    /// Events since the installation.
    counters: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Serialize)]
struct InterfaceStatus {
    name: String,
    /// The latest heartbeat.
    heartbeat: Option<Heartbeat>,
}

/// `struct heartbeat` of `bpf/notices.h`, seen from now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Heartbeat {
    epoch: u32,
    age_ms: u64,
    lifetime_ms: u64,
    /// Younger than its lifetime: flows can be online.
    valid: bool,
}

/// Prints the status.
///
/// # Errors
/// When the kernel cannot be asked, for example for lack of rights.
pub fn print(json: bool) -> Result<()> {
    kernel::check()?;
    object::capture_messages();
    let status = read().map_err(object::explain)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{}", render(&status));
    }
    Ok(())
}

fn read() -> Result<Status> {
    let heartbeats = object::pinned_map(HEARTBEATS)?;
    Ok(Status {
        kernel: uname().release().to_string_lossy().into_owned(),
        registered: congestion::is_registered()?,
        default: congestion::default()?,
        loss_probes: loss_probes::setting()?,
        settings: Record::read()?.map(|record| record.settings),
        interfaces: read_interfaces(heartbeats.as_ref())?,
        reads_names: object::reads_names(),
        managed_flows: count_managed(heartbeats.as_ref())?,
        counters: read_counters()?,
    })
}

fn read_interfaces(heartbeats: Option<&MapHandle>) -> Result<Vec<InterfaceStatus>> {
    let Some((reader, id)) = object::pinned_reader()? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for Interface { name, index } in interfaces::all()? {
        let interface = Interface { name, index };
        if interfaces::is_attached(reader.as_fd(), id, &interface)? {
            let heartbeat = read_heartbeat(heartbeats, index)?;
            found.push(InterfaceStatus { name: interface.name, heartbeat });
        }
    }
    Ok(found)
}

fn read_heartbeat(heartbeats: Option<&MapHandle>, index: u32) -> Result<Option<Heartbeat>> {
    let Some(heartbeats) = heartbeats else { return Ok(None) };
    let value = object::look_up(heartbeats, &index.to_ne_bytes())?;
    let now = clock_gettime(ClockId::Monotonic);
    let now_ns = u64::try_from(now.tv_sec)? * 1_000_000_000 + u64::try_from(now.tv_nsec)?;
    value.map(|value| Heartbeat::decode(&value, now_ns)).transpose()
}

impl Heartbeat {
    fn decode(value: &[u8], now_ns: u64) -> Result<Self> {
        let word = |at: usize| -> Result<u64> {
            let bytes = value.get(at..).and_then(<[u8]>::first_chunk);
            Ok(u64::from_ne_bytes(*bytes.context("a short value in the map of heartbeats")?))
        };
        let (arrival_ns, lifetime_ns) = (word(0)?, word(8)?);
        let epoch = value.get(16..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
        let age_ns = now_ns.saturating_sub(arrival_ns);
        Ok(Self {
            epoch: u32::from_be_bytes(epoch),
            age_ms: age_ns / NANOSECONDS_PER_MS,
            lifetime_ms: lifetime_ns / NANOSECONDS_PER_MS,
            valid: age_ns < lifetime_ns,
        })
    }
}

/// Entries of `managed` whose epoch is that of their interface.
fn count_managed(heartbeats: Option<&MapHandle>) -> Result<usize> {
    let (Some(managed), Some(heartbeats)) = (object::pinned_map(MANAGED)?, heartbeats) else {
        return Ok(0);
    };
    let mut count = 0;
    for key in managed.keys() {
        // An entry can go between the two calls.
        let Some(value) = object::look_up(&managed, &key)? else { continue };
        let Some((epoch, ifindex)) = value.split_at_checked(4) else { continue };
        let heartbeat = object::look_up(heartbeats, ifindex)?;
        count +=
            usize::from(heartbeat.is_some_and(|heartbeat| heartbeat.get(16..20) == Some(epoch)));
    }
    Ok(count)
}

fn read_counters() -> Result<BTreeMap<&'static str, u64>> {
    let Some(counters) = object::pinned_map(COUNTERS)? else { return Ok(BTreeMap::new()) };
    (0u32..)
        .zip(COUNTER_NAMES)
        .map(|(index, name)| Ok((name, object::sum(&counters, index)?)))
        .collect()
}

fn render(status: &Status) -> String {
    let mut lines = vec![
        format!("kernel: {}", status.kernel),
        format!("registered: {}", if status.registered { "yes" } else { "no" }),
        format!("default congestion control: {}", status.default),
        format!("tail loss probes (tcp_early_retrans): {}", status.loss_probes),
    ];
    if let Some(settings) = &status.settings {
        let window = settings.initial_window.map_or("kernel's".to_owned(), |n| n.to_string());
        let algorithm = format!("{:?}", settings.algorithm).to_lowercase();
        let plain = if settings.plain { ", plain" } else { "" };
        lines.push(format!("algorithm: {algorithm}, initial window: {window}{plain}"));
    }
    for interface in &status.interfaces {
        let heartbeat =
            interface.heartbeat.as_ref().map_or("no heartbeat yet".to_owned(), |heartbeat| {
                let valid = if heartbeat.valid { "" } else { ", expired" };
                let Heartbeat { epoch, age_ms, lifetime_ms, .. } = heartbeat;
                format!("heartbeat of epoch {epoch}, {age_ms} ms old of {lifetime_ms}{valid}")
            });
        lines.push(format!("{}: {heartbeat}", interface.name));
    }
    lines.push(format!(
        "names in SYN-ACKs are read: {}",
        if status.reads_names { "yes" } else { "no" }
    ));
    lines.push(format!("managed flows: {}", status.managed_flows));
    lines.extend(status.counters.iter().map(|(name, value)| format!("{name}: {value}")));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat(arrival_ns: u64, lifetime_ns: u64) -> Vec<u8> {
        let words = [arrival_ns.to_ne_bytes(), lifetime_ns.to_ne_bytes()].concat();
        [&words[..], &7u32.to_be_bytes(), &[0; 4]].concat()
    }

    #[test]
    fn a_heartbeat_ends_with_its_lifetime() {
        let value = heartbeat(5_000_000, 300_000_000);
        let at = |now_ns| Heartbeat::decode(&value, now_ns).unwrap();
        let young = at(304_999_999);
        assert_eq!((young.epoch, young.age_ms, young.lifetime_ms), (7, 299, 300));
        assert!(young.valid && !at(305_000_000).valid);
        // The map is read after the clock: it can be ahead.
        assert_eq!(at(0).age_ms, 0);
        assert!(Heartbeat::decode(&value[..10], 0).is_err());
    }

    #[test]
    fn nothing_installed_is_said_in_words() {
        let status = Status {
            kernel: "6.1".into(),
            registered: false,
            default: "cubic".into(),
            loss_probes: "3".into(),
            settings: None,
            interfaces: Vec::new(),
            reads_names: false,
            managed_flows: 0,
            counters: BTreeMap::new(),
        };
        let text = render(&status);
        assert!(text.contains("registered: no\n") && text.contains("control: cubic\n"), "{text}");
        assert!(text.contains("(tcp_early_retrans): 3\n"), "{text}");
    }
}
