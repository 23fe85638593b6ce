//! Documents of events, and what the book says of them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use strum::VariantNames;

use super::*;

/// One of each kind. The test below makes whoever adds a kind think of this list.
fn samples() -> Vec<EventKind> {
    let port = || "vm1".to_owned();
    let reason = || "why".to_owned();
    let changes = || "~ port vm1".to_owned();
    let direction = Direction::Tx;
    vec![
        EventKind::SwitchStarted { version: "1".into(), ports: 1, uplinks: 2 },
        EventKind::DataPlaneRestarted { restarts: 1, reason: Some(reason()) },
        EventKind::SwitchUpgraded {
            from: "1".into(),
            to: "2".into(),
            pause_us: 7_300,
            online: 9,
            carried: 8,
        },
        EventKind::UpgradeFailed { reason: reason() },
        EventKind::ConfigApplied { changes: changes() },
        EventKind::ConfigFailed { changes: changes(), reason: reason() },
        EventKind::PortConnected { port: port(), pid: Some(7) },
        EventKind::PortDisconnected { port: port(), reason: None },
        EventKind::PortRefused { port: port(), reason: reason() },
        EventKind::PortUnreachable { port: port(), reason: reason() },
        EventKind::PortQuarantined { port: port(), cause: "crash".into(), reason: reason() },
        EventKind::GuestStarted { port: port() },
        EventKind::GuestStopped { port: port() },
        EventKind::GuestMigrated { port: port() },
        EventKind::RingBroken { port: port(), pair: 0, direction },
        EventKind::AddressRefused { port: port(), address: IpAddr::V6(Ipv6Addr::LOCALHOST) },
        EventKind::OffloadChanged {
            port: port(),
            transmit: true,
            receive: false,
            changes: changes(),
        },
        EventKind::ConnectionsLeft { port: port(), host: "b:1".into(), online: 3, carried: 2 },
        EventKind::ConnectionsArrived { port: port(), host: "a".into(), online: 3, carried: 2 },
        EventKind::ConnectionsLeftBehind {
            port: port(),
            host: String::new(),
            inward: false,
            reason: reason(),
        },
        EventKind::DrainBegan { port: port() },
        EventKind::DrainEnded { port: port() },
        EventKind::OffloadRestored { port: port(), connections: 1 },
        EventKind::OffloadLost { port: port(), connections: 1 },
        EventKind::OffloadDamaged { port: port(), records: 1 },
        EventKind::InboundChanged { changes: changes() },
        EventKind::CaptureBegan { port: port(), capture: 1, uid: 0 },
        EventKind::CaptureEnded { port: port(), capture: 1, frames: 2, lost: 3, reason: reason() },
        EventKind::DropsBegan { port: port(), direction, reason: "storm".into() },
        EventKind::DropsEnded { port: port(), direction, reason: "storm".into(), frames: 9 },
        EventKind::UplinkDown { uplink: "up".into(), device: "eth0".into(), reason: reason() },
        EventKind::UplinkUp { uplink: "up".into(), device: "eth0".into() },
        EventKind::WorkerStalled { worker: 0, waits_in: "0".into() },
        EventKind::WorkerResumed { worker: 0, stood_ms: 1500 },
        EventKind::Lost { count: Some(3) },
    ]
}

fn event(kind: EventKind) -> Event {
    Event {
        id: EventId { history: 5, number: 6 },
        time: "2026-01-01T00:00:00.000Z".into(),
        severity: kind.severity(),
        text: kind.to_string(),
        kind,
        suppressed: 0,
    }
}

#[test]
fn every_kind_survives_its_document_and_says_something() {
    for kind in samples() {
        let event = event(kind);
        let document = serde_json::to_value(&event).unwrap();
        assert_eq!(document["event"], event.kind.name());
        assert_eq!(document["id"], "5-6");
        assert_eq!(document.get("suppressed"), None);
        let name = document.get("port").or_else(|| document.get("uplink"));
        assert_eq!(name.and_then(|name| name.as_str()), event.kind.port());
        assert!(!event.text.is_empty(), "{document}");
        assert_eq!(serde_json::from_value::<Event>(document).unwrap(), event);
    }
}

/// The names of kinds in the table of the operator's guide.
#[test]
fn the_guide_has_every_kind_and_no_other() {
    let guide = include_str!("../../../../docs/src/guide/events.md");
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let said: BTreeSet<_> = rows.map(|(name, _)| name).collect();
    let kinds = samples();
    let known: BTreeSet<_> = kinds.iter().map(EventKind::name).collect();
    assert_eq!(said, known);
    // The list above has each kind once.
    assert_eq!(known, EventKind::VARIANTS.iter().copied().collect());
    assert_eq!(kinds.len(), known.len());
}

#[test]
fn numbers_are_read_as_they_are_written() {
    let id = EventId { history: 1_763_954_272_123, number: 17 };
    assert_eq!(id.to_string().parse(), Ok(id));
    for wrong in ["", "17", "1-", "-1", "1-2-3", "+1-2", "1-+2", "a-b", "1-99999999999999999999"] {
        let error = wrong.parse::<EventId>().unwrap_err().to_string();
        assert!(error.contains("like 1763954272123-17"), "{error}");
    }
    let (before, after) = (EventId { history: 1, number: 9 }, EventId { history: 2, number: 1 });
    assert!(before < after);
}
