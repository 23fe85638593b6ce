//! The status as aligned tables for people. Scripts use `--json`.
//!
//! Only what is there is shown: drop reasons that occurred, sections with rows. Counters are exact
//! numbers, so that two looks can be subtracted.

mod moves;
mod networks;
mod programs;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use floodway_switch::api::status::{
    Drops, L2Entry, Notifications, PairTrafficStatus, PortStatus, PredecessorsStatus, Sandbox,
    Status, TrafficStatus, UplinkStatus, WorkerStatus,
};

/// Bold red, and back (ECMA-48 SGR).
const RED: &str = "\x1b[1;31m";
const RESET: &str = "\x1b[0m";
/// Most addresses shown; the forwarding table can hold tens of thousands.
const MAX_ADDRESSES: usize = 64;
/// Most pairs shown; their number grows with the square of the ports'.
const MAX_PAIRS: usize = 64;

/// The whole status, without a final newline. What is dangerous is red if `colours` says so.
#[must_use]
pub fn render(status: &Status, colours: bool) -> String {
    let sections = [
        Some(summary(status)),
        sandbox(status, colours),
        workers(status),
        ports(status),
        queues(status),
        uplinks(status),
        egress(status),
        vcpus(status),
        quarantined(status),
        offloads(status),
        drops(status),
        features(status),
        entries(&status.l2, networks::are_several(status)),
        traffic(status),
    ];
    let shown: Vec<String> = sections.into_iter().flatten().collect();
    shown.join("\n\n")
}

fn summary(status: &Status) -> String {
    let switch = &status.switch;
    format!(
        "floodway {}, pid {}{}, up {}{}{}{}\nrx is to the guest, tx is from the guest; of an uplink, rx is from the network",
        switch.version,
        switch.pid,
        switch.predecessors.as_ref().map(broker).unwrap_or_default(),
        duration(switch.uptime_s),
        switch.predecessors.as_ref().map(predecessors).unwrap_or_default(),
        switch.programs.as_ref().map(programs::lines).unwrap_or_default(),
        switch.moves.as_ref().map(moves::lines).unwrap_or_default(),
    )
}

/// Which process the broker is.
fn broker(status: &PredecessorsStatus) -> String {
    match status.broker {
        0 => " (broker: NONE, start floodway run again)".to_owned(),
        pid => format!(" (broker {pid})"),
    }
}

/// What is missing of the sandbox.
fn sandbox(status: &Status, colours: bool) -> Option<String> {
    match status.switch.sandbox? {
        Sandbox::Full => None,
        Sandbox::Partial => Some("sandbox: partial (this kernel's Landlock is older)".to_owned()),
        Sandbox::Off => {
            let text = "sandbox: OFF, whoever takes the switch over has all rights of its process";
            Some(if colours { format!("{RED}{text}{RESET}") } else { text.to_owned() })
        }
    }
}

/// What became of the data planes before this one.
fn predecessors(status: &PredecessorsStatus) -> String {
    match (&status.last_end, status.count) {
        (_, 0) => ", not restarted yet".to_owned(),
        (Some(end), n) => format!(", restarted {n} times; the last time: {end}"),
        (None, n) => format!(", restarted {n} times"),
    }
}

/// Seconds as `3d 04:05:06`.
pub fn duration(seconds: f64) -> String {
    // A float to integer cast saturates; negative uptimes become zero.
    let s = seconds as u64;
    let clock = format!("{:02}:{:02}:{:02}", s / 3600 % 24, s / 60 % 60, s % 60);
    match s / 86_400 {
        0 => clock,
        days => format!("{days}d {clock}"),
    }
}

/// A table with a header, its first `left` columns aligned to the left and the others to the right.
/// None without rows.
pub fn table<const N: usize>(
    header: [&str; N],
    left: usize,
    rows: Vec<[String; N]>,
) -> Option<String> {
    let rows = rows.into_iter().map(Vec::from).collect();
    aligned(header.map(str::to_owned).into(), left, rows)
}

fn aligned(header: Vec<String>, left: usize, rows: Vec<Vec<String>>) -> Option<String> {
    if rows.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Some(table.trim_fmt())
}

/// A column: its header, and the cell of a row.
pub type Column<'a, T> = (&'static str, &'a dyn Fn(&T) -> String);

/// As [`table`], column by column.
pub fn columns<T>(rows: &[T], left: usize, columns: &[Column<'_, T>]) -> Option<String> {
    let header = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let row = |row: &T| columns.iter().map(|(_, cell)| cell(row)).collect();
    aligned(header, left, rows.iter().map(row).collect())
}

fn workers(status: &Status) -> Option<String> {
    let core =
        |worker: &WorkerStatus| worker.core.map_or_else(|| "any".to_owned(), |c| c.to_string());
    let table: [Column<'_, WorkerStatus>; 7] = [
        ("WORKER", &|w| w.index.to_string()),
        ("CORE", &core),
        ("AWAKE", &|w| percent(w.awake)),
        ("POLLS", &|w| w.polls.to_string()),
        ("BUSY POLLS", &|w| w.busy_polls.to_string()),
        ("SLEEPS", &|w| w.sleeps.to_string()),
        ("STALLS", &|w| w.stalls.to_string()),
    ];
    columns(&status.workers, 1, &table)
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

fn ports(status: &Status) -> Option<String> {
    let mut table: Vec<Column<'_, PortStatus>> = vec![
        ("PORT", &|p| p.name.clone()),
        ("STATE", &|p| p.state.name().to_owned()),
        ("MAC", &|p| p.mac.clone().unwrap_or_else(|| "any".to_owned())),
        ("WORKER", &|p| p.worker.to_string()),
        ("WORK", &|p| percent(p.work.share)),
        ("QUEUES", &|p| format!("{}/{}", p.queue_pairs_enabled, p.queue_pairs_offered)),
        ("RX FRAMES", &|p| p.rx().packets.to_string()),
        ("RX BYTES", &|p| p.rx().bytes.to_string()),
        ("RX DROPS", &|p| p.rx().dropped().to_string()),
        ("WAITING", &|p| p.pending().0.to_string()),
        ("TX FRAMES", &|p| p.tx().packets.to_string()),
        ("TX BYTES", &|p| p.tx().bytes.to_string()),
        ("TX DROPS", &|p| p.tx().dropped().to_string()),
    ];
    if networks::are_several(status) {
        table.insert(3, ("NETWORK", &networks::of_port));
    }
    columns(&status.ports, table.len() - 10, &table)
}

/// Queues one by one, without those that were never used.
fn queues(status: &Status) -> Option<String> {
    let header = [
        "QUEUE",
        "DIRECTION",
        "FRAMES",
        "BYTES",
        "GSO PACKETS",
        "DROPS",
        "WAITING",
        "WAITING BYTES",
        "NOTIFIED",
        "SUPPRESSED",
    ];
    let mut rows = Vec::new();
    for port in &status.ports {
        for (index, queue) in port.queues.iter().enumerate() {
            let (rx, tx) = (&queue.rx, &queue.tx);
            let name = format!("{}/{index}", port.name);
            if rx.pending_frames > 0 || is_used(&rx.traffic, rx.notifications) {
                let waiting = [rx.pending_frames.to_string(), rx.pending_bytes.to_string()];
                rows.push(queue_row(&name, "rx", &rx.traffic, waiting, rx.notifications));
            }
            if is_used(&tx.traffic, tx.notifications) {
                let waiting = ["-".to_owned(), "-".to_owned()];
                rows.push(queue_row(&name, "tx", &tx.traffic, waiting, tx.notifications));
            }
        }
    }
    table(header, 2, rows)
}

fn is_used(traffic: &TrafficStatus, notifications: Notifications) -> bool {
    traffic.packets > 0 || traffic.dropped() > 0 || notifications != Notifications::default()
}

fn queue_row(
    name: &str,
    direction: &str,
    traffic: &TrafficStatus,
    [frames, bytes]: [String; 2],
    notifications: Notifications,
) -> [String; 10] {
    [
        name.to_owned(),
        direction.to_owned(),
        traffic.packets.to_string(),
        traffic.bytes.to_string(),
        traffic.gso_packets.to_string(),
        traffic.dropped().to_string(),
        frames,
        bytes,
        notifications.sent.to_string(),
        notifications.suppressed.to_string(),
    ]
}

/// A table of the uplinks; `None` if there are none.
pub fn uplinks(status: &Status) -> Option<String> {
    let mut table: Vec<Column<'_, UplinkStatus>> = vec![
        ("UPLINK", &|u| u.name.clone()),
        ("DEVICE", &|u| u.device.clone()),
        ("WORKER", &|u| u.worker.to_string()),
        ("WORK", &|u| percent(u.work.share)),
        ("RX FRAMES", &|u| u.rx.packets.to_string()),
        ("RX BYTES", &|u| u.rx.bytes.to_string()),
        ("RX DROPS", &|u| u.rx.dropped().to_string()),
        ("TX FRAMES", &|u| u.tx.packets.to_string()),
        ("TX BYTES", &|u| u.tx.bytes.to_string()),
        ("TX DROPS", &|u| u.tx.dropped().to_string()),
    ];
    if networks::are_several(status) {
        table.insert(2, ("NETWORK", &networks::of_uplink));
    }
    columns(&status.uplinks, table.len() - 8, &table)
}

/// What is before the uplinks' devices.
fn egress(status: &Status) -> Option<String> {
    let number = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let device = |u: &UplinkStatus| {
        format!("{}/{}", number(u.egress.device_bytes), number(u.egress.device_limit))
    };
    let meter = |u: &UplinkStatus| u.egress.meter.unwrap_or_default();
    let table: [Column<'_, UplinkStatus>; 12] = [
        ("LEAVING BY", &|u| u.name.clone()),
        ("DISCIPLINE", &|u| u.egress.discipline.clone()),
        ("SEGMENT", &|u| on_off(u.egress.segment).to_owned()),
        ("METER", &|u| on_off(u.egress.meter.is_some()).to_owned()),
        ("WAITING HIGH", &|u| u.egress.high.packets.to_string()),
        ("WAITING LOW", &|u| u.egress.low.packets.to_string()),
        ("QUEUED", &|u| u.egress.queued.to_string()),
        ("MARKED", &|u| u.egress.marked.to_string()),
        ("DEVICE BYTES", &device),
        ("PAIRS", &|u| meter(u).pairs.to_string()),
        ("HIGH FRAMES", &|u| meter(u).high_packets.to_string()),
        ("LOW FRAMES", &|u| meter(u).low_packets.to_string()),
    ];
    columns(&status.uplinks, 4, &table)
}

/// Ports whose front-ends were cut off, now or before.
fn quarantined(status: &Status) -> Option<String> {
    let row = |port: &PortStatus| {
        let times = port.quarantines.values().sum::<u64>();
        if times == 0 && port.quarantine.is_none() {
            return None;
        }
        let reason = port.quarantine.clone().unwrap_or_else(|| "over".to_owned());
        Some([port.name.clone(), reason, times.to_string()])
    };
    table(["QUARANTINED", "REASON", "TIMES"], 2, status.ports.iter().filter_map(row).collect())
}

/// Ports whose vCPU threads are looked after.
fn vcpus(status: &Status) -> Option<String> {
    let header = ["VCPUS OF", "POLICY", "PROBLEM", "SLICE", "THREADS"];
    let row = |port: &PortStatus| {
        let vcpu = port.vcpu.as_ref()?;
        Some([
            port.name.clone(),
            vcpu.policy.clone(),
            vcpu.problem.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{} us", vcpu.slice_us),
            vcpu.threads.to_string(),
        ])
    };
    table(header, 3, status.ports.iter().filter_map(row).collect())
}

/// Ports that use TCP offload, or did.
fn offloads(status: &Status) -> Option<String> {
    let header = [
        "OFFLOAD",
        "TRANSMIT",
        "RECEIVE",
        "FLOWS",
        "ONLINE",
        "BUDGET USED",
        "OWED",
        "STORED BYTES",
    ];
    let row = |port: &PortStatus| {
        let offload = &port.offload;
        let transmit = match (offload.transmit, offload.draining, offload.mode.as_str()) {
            (true, true, _) => "draining",
            (true, false, mode @ ("agentless" | "auto")) => mode,
            (on, ..) => on_off(on),
        };
        [
            port.name.clone(),
            transmit.to_owned(),
            on_off(offload.receive).to_owned(),
            offload.flows.to_string(),
            offload.online.to_string(),
            offload.budget_used.to_string(),
            offload.owed.to_string(),
            offload.stored_bytes.to_string(),
        ]
    };
    let used = |port: &&PortStatus| {
        let offload = &port.offload;
        offload.transmit || offload.receive || offload.flows > 0 || offload.draining
    };
    table(header, 3, status.ports.iter().filter(used).map(row).collect())
}

/// A setting in words.
#[must_use]
pub fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Reasons that occurred.
fn drops(status: &Status) -> Option<String> {
    let mut rows = Vec::new();
    let mut add = |name: &str, direction: &str, drops: &Drops| {
        let occurred = drops.iter().filter(|&(_, &n)| n > 0);
        rows.extend(occurred.map(|(reason, n)| {
            [name.to_owned(), direction.to_owned(), reason.clone(), n.to_string()]
        }));
    };
    for port in &status.ports {
        add(&port.name, "rx", &port.rx().drops);
        add(&port.name, "tx", &port.tx().drops);
    }
    for uplink in &status.uplinks {
        add(&uplink.name, "rx", &uplink.rx.drops);
        add(&uplink.name, "tx", &uplink.tx.drops);
    }
    table(["DROPPED AT", "DIRECTION", "REASON", "FRAMES"], 3, rows)
}

/// What each running guest negotiated.
fn features(status: &Status) -> Option<String> {
    let running = status.ports.iter().filter(|port| !port.features.is_empty());
    let row = |port: &PortStatus| [port.name.clone(), port.features.join(" ")];
    table(["PORT", "FEATURES"], 2, running.map(row).collect())
}

/// Who has sent to whom, from guest to guest or by an uplink.
fn traffic(status: &Status) -> Option<String> {
    let row = |pair: &PairTrafficStatus| {
        [
            pair.from.clone(),
            pair.to.clone(),
            pair.by.name().to_owned(),
            pair.packets.to_string(),
            pair.bytes.to_string(),
        ]
    };
    let shown = status.traffic.iter().take(MAX_PAIRS).map(row).collect();
    let mut text = table(["FROM", "TO", "BY", "FRAMES", "BYTES"], 3, shown)?;
    let hidden = status.traffic.len().saturating_sub(MAX_PAIRS);
    if hidden > 0 {
        text += &format!("\n... and {hidden} more, which --json shows");
    }
    Some(text)
}

/// Addresses of a forwarding table, with their networks if those are to be shown.
pub fn entries(l2: &[L2Entry], with_networks: bool) -> Option<String> {
    let age = |entry: &L2Entry| {
        entry.age_s.map_or_else(|| "static".to_owned(), |age| format!("{age:.0} s"))
    };
    let mut table: Vec<Column<'_, L2Entry>> =
        vec![("ADDRESS", &|e| e.mac.clone()), ("BEHIND", &|e| e.port.clone()), ("AGE", &age)];
    if with_networks {
        table.insert(2, ("NETWORK", &|e| e.network.clone()));
    }
    let shown = &l2[..l2.len().min(MAX_ADDRESSES)];
    let mut text = columns(shown, table.len() - 1, &table)?;
    let hidden = l2.len().saturating_sub(MAX_ADDRESSES);
    if hidden > 0 {
        text += &format!("\n... and {hidden} more, which --json shows");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use floodway_switch::api::status::{
        ClassStatus, EgressStatus, MeterStatus, OffloadStatus, PortState, QueuePairStatus,
        RemovedStatus, RxQueueStatus, SwitchStatus, TxQueueStatus, VcpuStatus, Way, WorkStatus,
    };

    use super::*;
    use floodway_switch::api::histogram::Histogram;

    fn pair(from: &str, to: &str, by: Way, packets: u64) -> PairTrafficStatus {
        PairTrafficStatus { from: from.into(), to: to.into(), by, packets, bytes: 100 * packets }
    }

    fn traffic(packets: u64, bytes: u64, drops: &[(&str, u64)]) -> TrafficStatus {
        let drops = drops.iter().map(|&(reason, n)| (reason.to_owned(), n)).collect();
        TrafficStatus { packets, bytes, gso_packets: packets / 2, drops }
    }

    fn running_port() -> PortStatus {
        let drops = [("queue_full", 3), ("storm", 0)];
        let rx = RxQueueStatus {
            traffic: traffic(1_000, 1_500_000, &drops),
            notifications: Notifications { sent: 40, suppressed: 960 },
            pending_frames: 2,
            pending_bytes: 3_028,
            delay: Histogram::default(),
        };
        let tx = TxQueueStatus {
            traffic: traffic(12, 720, &[("spoofed_mac", 1)]),
            ..Default::default()
        };
        let unused = RxQueueStatus { traffic: traffic(0, 0, &drops[1..]), ..Default::default() };
        PortStatus {
            name: "vm1".into(),
            worker: 0,
            state: PortState::Running,
            network: "default".into(),
            tagged: Vec::new(),
            mac: Some("52:54:00:00:00:01".into()),
            features: vec!["CSUM".into(), "MRG_RXBUF".into()],
            queue_pairs_offered: 2,
            queue_pairs_enabled: 1,
            queues: vec![
                QueuePairStatus { rx, tx },
                QueuePairStatus { rx: unused, ..Default::default() },
            ],
            undelivered: Drops::from([("port_down".to_owned(), 4)]),
            work: WorkStatus { seconds: 1.5, share: 0.625 },
            offload: OffloadStatus {
                transmit: true,
                flows: 12,
                online: 11,
                budget_used: 70_000,
                stored_bytes: 65_536,
                ..Default::default()
            },
            vcpu: Some(VcpuStatus {
                policy: "latency".into(),
                slice_us: 500,
                threads: 2,
                problem: None,
            }),
            quarantine: None,
            quarantines: [("guest_memory".to_owned(), 0)].into(),
        }
    }

    fn address(mac: &str, port: &str, age_s: Option<f64>) -> L2Entry {
        L2Entry { mac: mac.into(), port: port.into(), network: "default".into(), age_s }
    }

    #[test]
    fn a_switch_with_everything() {
        let down = PortStatus {
            name: "database-2".into(),
            queue_pairs_offered: 1,
            quarantine: Some("its guest memory has gone".into()),
            quarantines: [("dirty_log".to_owned(), 1), ("guest_memory".to_owned(), 2)].into(),
            ..Default::default()
        };
        let status = Status {
            removed: RemovedStatus::default(),
            switch: SwitchStatus {
                version: "1.2.3".into(),
                pid: 42,
                uptime_s: 93_784.5,
                sandbox: Some(Sandbox::Full),
                ..SwitchStatus::default()
            },
            workers: vec![
                WorkerStatus {
                    polls: 123_456,
                    busy_polls: 99,
                    awake: 0.0349,
                    core: Some(1),
                    ..Default::default()
                },
                WorkerStatus { index: 1, ..Default::default() },
            ],
            ports: vec![running_port(), down],
            uplinks: vec![UplinkStatus {
                name: "up0".into(),
                device: "eth0".into(),
                network: "default".into(),
                tagged: Vec::new(),
                worker: 1,
                work: WorkStatus::default(),
                rx: traffic(7, 700, &[]),
                tx: traffic(0, 0, &[("uplink_full", 5)]),
                egress: EgressStatus {
                    discipline: "fq_codel".into(),
                    segment: true,
                    low: ClassStatus { packets: 12, bytes: 18_000 },
                    queued: 345,
                    device_limit: Some(30_280),
                    device_bytes: Some(3_028),
                    meter: Some(MeterStatus { pairs: 3, high_packets: 9, ..Default::default() }),
                    ..Default::default()
                },
            }],
            l2: vec![
                address("52:54:00:00:00:01", "vm1", None),
                address("02:00:00:00:00:99", "up0", Some(12.8)),
            ],
            traffic: vec![
                pair("vm1", "database-2", Way::Channel, 1_000),
                pair("up0", "vm1", Way::Uplink, 7),
            ],
        };
        insta::assert_snapshot!(render(&status, false));
    }

    #[test]
    fn a_sandbox_that_is_off_is_red() {
        let shown = |sandbox, colours| {
            let switch = SwitchStatus { sandbox: Some(sandbox), ..Default::default() };
            render(&Status { switch, ..Default::default() }, colours)
        };
        assert!(shown(Sandbox::Off, true).contains("\n\x1b[1;31msandbox: OFF, "));
        assert!(shown(Sandbox::Off, false).contains("\nsandbox: OFF, "));
        assert!(shown(Sandbox::Partial, true).contains("\nsandbox: partial"));
        assert!(!shown(Sandbox::Full, true).contains("sandbox"));
    }

    #[test]
    fn empty_sections_are_left_out() {
        let text = render(&Status::default(), true);
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn a_long_forwarding_table_is_cut_and_says_so() {
        let status =
            Status { l2: vec![L2Entry::default(); MAX_ADDRESSES + 3], ..Default::default() };
        let text = render(&status, true);
        assert!(text.ends_with("\n... and 3 more, which --json shows"), "{text}");
    }

    #[test]
    fn durations_are_read_like_a_clock() {
        assert_eq!(duration(0.9), "00:00:00");
        assert_eq!(duration(3_661.0), "01:01:01");
        assert_eq!(duration(3.0 * 86_400.0 + 59.0), "3d 00:00:59");
    }
}
