//! Server and client over a real socket, with a status of our own making.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{BindError, ClientError, ControlClient, ControlListener, ControlServer};
use crate::stats::{DropReason, Traffic};
use crate::status::{
    L2Entry, PortState, PortStatus, QueuePairStatus, Status, StatusSource, SwitchStatus,
    TrafficStatus, UplinkStatus, WorkerStatus, drops,
};

struct Fixed(Status);

impl StatusSource for Fixed {
    fn status(&self) -> Status {
        self.0.clone()
    }
}

fn sample() -> Status {
    let traffic = Traffic::default();
    traffic.count(1500);
    traffic.count_drop(DropReason::Storm, 7);
    let mut queue = QueuePairStatus::default();
    queue.rx.traffic = TrafficStatus::from(&traffic);
    queue.rx.pending_bytes = 4096;
    queue.tx.notifications.sent = 5;
    let undelivered = Traffic::default();
    undelivered.count_drop(DropReason::PortDown, 2);
    Status {
        switch: SwitchStatus { version: "1.2.3".into(), pid: 42, uptime_s: 1.5 },
        workers: vec![WorkerStatus { index: 0, polls: 9, awake: 0.25, ..Default::default() }],
        ports: vec![PortStatus {
            name: "vm1".into(),
            state: PortState::Running,
            queues: vec![queue],
            undelivered: drops(&undelivered),
            ..Default::default()
        }],
        uplinks: vec![UplinkStatus { name: "up0".into(), ..Default::default() }],
        l2: vec![L2Entry { mac: "52:54:00:00:00:01".into(), port: "vm1".into(), age_s: None }],
    }
}

fn start(path: &Path) -> Result<ControlServer, BindError> {
    ControlServer::start(ControlListener::bind(path)?, Arc::new(Fixed(sample())))
}

fn socket() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run/control.sock");
    (directory, path)
}

#[test]
fn the_client_reads_what_the_source_says() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let client = ControlClient::new(&path).unwrap();
    assert_eq!(client.status().unwrap(), sample());
    assert_eq!(client.version().unwrap().version, env!("CARGO_PKG_VERSION"));
}

#[test]
fn metrics_are_the_same_counters() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let client = ControlClient::new(&path).unwrap();
    let text = String::from_utf8(client.get_bytes("/metrics").unwrap().to_vec()).unwrap();
    let samples = [
        "floodway_build_info{version=\"1.2.3\"} 1.0",
        "floodway_uptime_seconds 1.5",
        "floodway_worker_polls_total{worker=\"0\"} 9",
        "floodway_worker_awake_ratio{worker=\"0\"} 0.25",
        "floodway_port_running{port=\"vm1\"} 1.0",
        "floodway_port_pending_bytes{port=\"vm1\",queue=\"0\"} 4096.0",
        "floodway_bytes_total{port=\"vm1\",queue=\"0\",direction=\"rx\"} 1500",
        "floodway_bytes_total{uplink=\"up0\",direction=\"tx\"} 0",
        "floodway_drops_total{port=\"vm1\",queue=\"0\",direction=\"rx\",reason=\"storm\"} 7",
        "floodway_drops_total{port=\"vm1\",queue=\"none\",direction=\"rx\",reason=\"port_down\"} 2",
        "floodway_notifications_total{port=\"vm1\",queue=\"0\",direction=\"tx\"} 5",
        "# TYPE floodway_packets counter",
        "# EOF",
    ];
    for sample in samples {
        assert!(text.lines().any(|line| line == sample), "no {sample:?} in\n{text}");
    }
}

#[test]
fn unknown_routes_are_named() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let client = ControlClient::new(&path).unwrap();
    let message = client.get_bytes("/v1/flows").unwrap_err().to_string();
    assert!(message.contains("no route /v1/flows; there are /v1/status"), "{message}");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"POST /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.ends_with("{\"error\":\"/v1/status only answers to GET\"}"), "{answer}");
}

#[test]
fn socket_and_directory_have_their_modes() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o660);
    // The process's umask may take bits away, never add any.
    assert_eq!(mode(path.parent().unwrap()) & !0o755, 0);
}

#[test]
fn a_live_switch_is_not_replaced() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let error = start(&path).unwrap_err();
    assert!(matches!(error, BindError::AlreadyRunning(_)), "{error}");
    assert!(error.to_string().starts_with("floodway is already running on control socket /"));
    assert_eq!(ControlClient::new(&path).unwrap().status().unwrap(), sample());
}

#[test]
fn a_dead_switch_is_replaced() {
    let (_directory, path) = socket();
    fs::create_dir(path.parent().unwrap()).unwrap();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let client = ControlClient::new(&path).unwrap();
    assert!(matches!(client.status(), Err(ClientError::NotRunning(_))));
    let _server = start(&path).unwrap();
    assert_eq!(client.status().unwrap(), sample());
}

#[test]
fn a_listener_that_never_served_leaves_nothing() {
    let (_directory, path) = socket();
    let listener = ControlListener::bind(&path).unwrap();
    assert!(matches!(ControlListener::bind(&path), Err(BindError::AlreadyRunning(_))));
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let (_directory, path) = socket();
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, "precious").unwrap();
    assert!(matches!(start(&path), Err(BindError::NotASocket(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_stop_removes_the_socket_and_waits_for_no_client() {
    let (_directory, path) = socket();
    let server = start(&path).unwrap();
    let mut idle = UnixStream::connect(&path).unwrap();
    drop(server);
    assert!(!path.exists());
    assert_eq!(idle.read(&mut [0; 1]).unwrap_or(0), 0);
    let error = ControlClient::new(&path).unwrap().status().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "floodway is not running or uses another control socket: {} (set --control)",
            path.display()
        )
    );
}
