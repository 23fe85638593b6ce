//! Server and client over a real socket, with a status of our own making.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use floodway_core::histogram::DurationHistogram;

use super::failure::Source;
use super::routes::routes;
use super::{BindError, ClientError, ControlClient, ControlListener, ControlServer, manage};
use crate::api::activity::{Activity, PortActivity};
use crate::api::capture::{CaptureList, CaptureRequest, CaptureStatus};
use crate::api::control::{
    ControlError, DrainStatus, FlowKey, FlowPage, FlowQuery, FlowStatus, InboundChange,
    InboundPort, InboundStatus, OffloadChange, OffloadSettings, PairPage, PairQuery, PairStatus,
    UpgradeRequest, UpgradeStatus,
};
use crate::api::diagnosis::Diagnosis;
use crate::api::events::EventQuery;
use crate::api::histogram::BatchSizes;
use crate::api::status::{
    ClassStatus, EgressStatus, L2Entry, MeterStatus, OffloadStatus, PairTrafficStatus, PortState,
    PortStatus, QueuePairStatus, RemovedStatus, Status, SwitchStatus, TrafficStatus, UplinkStatus,
    Way, WorkStatus, WorkerStatus,
};
use crate::api::trace::{Trace, TraceRequest};
use crate::config::inbound::CAPACITY_MBIT;
use crate::config::offload::{BUDGET, check};
use crate::events::{EventReader, Events};
use crate::operator::{CaptureSink, ConfigApi, ControlApi, StatusSource, UpgradeApi, drops};
use crate::stats::{DropReason, Traffic};

mod events;

struct Fixed {
    status: Status,
    events: Arc<Events>,
}

impl Fixed {
    fn new(status: Status) -> Self {
        Self { status, events: Arc::default() }
    }
}

impl StatusSource for Fixed {
    fn status(&self) -> Status {
        self.status.clone()
    }

    fn activity(&self) -> Activity {
        let ports = self.status.ports.iter().map(|port| PortActivity {
            name: port.name.clone(),
            state: port.state,
            ..PortActivity::default()
        });
        let ports = ports.collect();
        Activity { switch: self.status.switch.clone(), ports, ..Activity::default() }
    }
}

impl ConfigApi for Fixed {}

impl UpgradeApi for Fixed {
    fn upgrade(&self, _: &UpgradeRequest) -> Result<UpgradeStatus, ControlError> {
        Ok(self.upgrades())
    }

    fn upgrades(&self) -> UpgradeStatus {
        UpgradeStatus::default()
    }
}

/// Answers with what it was asked, where the documents have room for it.
impl ControlApi for Fixed {
    fn flows(&self, query: &FlowQuery) -> Result<FlowPage, ControlError> {
        let port = query.port.clone().unwrap_or_default();
        let cwnd = query.limit.unwrap_or(0) as u32;
        let flow = FlowStatus { port, cwnd, srtt_us: Some(90), ..FlowStatus::default() };
        Ok(FlowPage { flows: vec![flow], next: query.cursor.clone() })
    }

    fn flow(&self, port: &str, key: &FlowKey) -> Result<FlowStatus, ControlError> {
        let FlowKey { guest, peer, vlan } = *key;
        let port = port.to_owned();
        if peer.port() == 1 {
            return Err(ControlError::UnknownFlow { port, guest, peer });
        }
        let (guest, peer) = (guest.to_string(), peer.to_string());
        Ok(FlowStatus { port, guest, peer, vlan, ..FlowStatus::default() })
    }

    fn port_status(&self, port: &str) -> Result<PortStatus, ControlError> {
        let found = self.status.ports.iter().find(|status| status.name == port);
        found.cloned().ok_or_else(|| ControlError::UnknownPort { name: port.into(), ports: vec![] })
    }

    fn pairs(&self, query: &PairQuery) -> Result<PairPage, ControlError> {
        let port = query.port.clone().unwrap_or_default();
        let tokens = query.limit.unwrap_or(0) as u64;
        let pair = PairStatus { port, tokens, class: "low".into(), ..PairStatus::default() };
        Ok(PairPage { pairs: vec![pair], next: query.cursor.clone() })
    }

    fn offload(&self, port: &str, change: &OffloadChange) -> Result<OffloadSettings, ControlError> {
        if port != "vm1" {
            return Err(ControlError::UnknownPort { name: port.into(), ports: vec!["vm1".into()] });
        }
        let budget = change.budget.map(|n| check("budget", n, &BUDGET)).transpose()?;
        Ok(OffloadSettings {
            transmit: change.transmit.unwrap_or_default(),
            receive: false,
            local: "own".into(),
            congestion: change.congestion.clone().unwrap_or_default(),
            initial_window: 10,
            buffer: "fair".into(),
            budget: budget.unwrap_or(1),
            receive_budget: 2,
            max_flows: 3,
            idle_s: 4,
            min_rto_ms: 5,
            early_ack_delay_ms: 6,
            peer_timeout_s: 7,
        })
    }

    fn inbound(&self, change: &InboundChange) -> Result<InboundStatus, ControlError> {
        if let Some(mbit) = change.capacity_mbit {
            check("capacity_mbit", mbit, &CAPACITY_MBIT)?;
        }
        Ok(InboundStatus {
            capacity_bps: change.capacity_mbit.unwrap_or(7) * 1_000_000,
            ports: vec![InboundPort {
                name: "vm1".into(),
                rate_bps: 1_000_000,
                counters: [("clamped".to_owned(), 5), ("released".to_owned(), 0)].into(),
                ..InboundPort::default()
            }],
            ..InboundStatus::default()
        })
    }

    fn capture(
        &self,
        _: &CaptureRequest,
        _: u32,
        mut sink: Box<dyn CaptureSink>,
    ) -> Result<u64, ControlError> {
        thread::spawn(move || (0..3).all(|n| sink.send(vec![n; 100_000])));
        Ok(7)
    }

    fn captures(&self) -> CaptureList {
        CaptureList::default()
    }

    fn end_capture(&self, id: u64) -> Result<CaptureStatus, ControlError> {
        Err(ControlError::UnknownCapture(id))
    }

    fn events(&self, query: &EventQuery) -> Result<EventReader, ControlError> {
        EventReader::new(&self.events, query)
    }

    fn diagnose(&self, port: &str) -> Result<Diagnosis, ControlError> {
        Ok(Diagnosis { port: port.into(), ..Diagnosis::default() })
    }

    fn trace(&self, request: &TraceRequest) -> Result<Trace, ControlError> {
        Ok(Trace { interface: request.interface.clone(), ..Trace::default() })
    }

    fn drain(&self, port: &str, draining: Option<bool>) -> Result<DrainStatus, ControlError> {
        let draining = draining.unwrap_or(port == "vm 1");
        Ok(DrainStatus { draining, drained: false, online: 7, stored_bytes: 8 })
    }
}

fn with_delays() -> QueuePairStatus {
    let delays = DurationHistogram::default();
    delays.observe(Duration::from_micros(10), 7);
    delays.observe(Duration::from_micros(20), 2);
    delays.observe(Duration::from_secs(9), 1);
    let mut queue = QueuePairStatus::default();
    queue.rx.delay = (&delays.counts()).into();
    queue
}

fn worker() -> WorkerStatus {
    let batches = BatchSizes { buckets: vec![3, 0, 1, 0, 0, 2], frames: 60 };
    let rounds = with_delays().rx.delay;
    WorkerStatus { polls: 9, awake: 0.25, rounds, batches, ..Default::default() }
}

fn sample() -> Status {
    let traffic = Traffic::default();
    traffic.count(1500);
    traffic.count_drop(DropReason::Storm, 7);
    let mut queue = with_delays();
    queue.rx.traffic = TrafficStatus::from(&traffic);
    queue.rx.pending_bytes = 4096;
    queue.tx.notifications.sent = 5;
    let undelivered = Traffic::default();
    undelivered.count_drop(DropReason::PortDown, 2);
    Status {
        removed: RemovedStatus::default(),
        switch: SwitchStatus {
            version: "1.2.3".into(),
            pid: 42,
            uptime_s: 1.5,
            ..SwitchStatus::default()
        },
        workers: vec![worker()],
        ports: vec![PortStatus {
            name: "vm1".into(),
            state: PortState::Running,
            queues: vec![queue],
            undelivered: drops(&undelivered),
            quarantine: Some("its dirty log has gone".into()),
            quarantines: [("dirty_log".to_owned(), 2)].into(),
            work: WorkStatus { seconds: 2.5, share: 0.75 },
            offload: OffloadStatus {
                transmit: true,
                flows: 3,
                counters: [("timeouts".to_owned(), 4)].into(),
                ..Default::default()
            },
            ..Default::default()
        }],
        uplinks: vec![UplinkStatus {
            name: "up0".into(),
            egress: EgressStatus {
                low: ClassStatus { packets: 3, bytes: 4 },
                meter: Some(MeterStatus { high_packets: 8, ..Default::default() }),
                ..Default::default()
            },
            ..Default::default()
        }],
        l2: vec![L2Entry {
            mac: "52:54:00:00:00:01".into(),
            port: "vm1".into(),
            network: "default".into(),
            age_s: None,
        }],
        traffic: vec![PairTrafficStatus {
            from: "vm1".into(),
            to: "up0".into(),
            by: Way::Uplink,
            packets: 6,
            bytes: 600,
        }],
    }
}

fn start(path: &Path) -> Result<ControlServer, BindError> {
    ControlServer::start(ControlListener::bind(path)?, Arc::new(Fixed::new(sample())))
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
    assert_eq!(client.activity().unwrap(), Fixed::new(sample()).activity());
    assert_eq!(client.version().unwrap().version, env!("CARGO_PKG_VERSION"));
}

/// The metrics as `Accept` and the query ask for them.
fn metrics(path: &Path, query: &str, accept: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    let request = format!(
        "GET /metrics{query} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    let expected =
        if accept.is_empty() { "text/plain; " } else { "application/openmetrics-text; " };
    assert!(head.contains(&format!("content-type: {expected}")), "{head}");
    body.to_owned()
}

#[test]
fn metrics_are_the_same_counters() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let samples = [
        "floodway_build_info{version=\"1.2.3\"} 1.0",
        "floodway_uptime_seconds 1.5",
        "floodway_worker_polls_total{worker=\"0\"} 9",
        "floodway_worker_awake_ratio{worker=\"0\"} 0.25",
        "floodway_worker_round_seconds_bucket{le=\"0.000032\",worker=\"0\"} 9",
        "floodway_worker_batch_frames_bucket{le=\"1.0\",worker=\"0\"} 3",
        "floodway_worker_batch_frames_bucket{le=\"16.0\",worker=\"0\"} 4",
        "floodway_worker_batch_frames_bucket{le=\"+Inf\",worker=\"0\"} 6",
        "floodway_worker_batch_frames_sum{worker=\"0\"} 60.0",
        "floodway_port_running{port=\"vm1\"} 1.0",
        "floodway_port_quarantined{port=\"vm1\"} 1.0",
        "floodway_port_quarantines_total{port=\"vm1\",reason=\"dirty_log\"} 2",
        "floodway_work_seconds_total{port=\"vm1\",worker=\"0\"} 2.5",
        "floodway_work_share_ratio{port=\"vm1\",worker=\"0\"} 0.75",
        "floodway_work_share_ratio{uplink=\"up0\",worker=\"0\"} 0.0",
        "floodway_port_pending_bytes{port=\"vm1\",queue=\"0\"} 4096.0",
        "floodway_bytes_total{port=\"vm1\",queue=\"0\",direction=\"rx\"} 1500",
        "floodway_bytes_total{uplink=\"up0\",direction=\"tx\"} 0",
        "floodway_drops_total{port=\"vm1\",queue=\"0\",direction=\"rx\",reason=\"storm\"} 7",
        "floodway_drops_total{port=\"vm1\",queue=\"none\",direction=\"rx\",reason=\"port_down\"} 2",
        "floodway_notifications_total{port=\"vm1\",queue=\"0\",direction=\"tx\"} 5",
        "floodway_offload_enabled{port=\"vm1\",direction=\"tx\"} 1.0",
        "floodway_offload_enabled{port=\"vm1\",direction=\"rx\"} 0.0",
        "floodway_offload_flows{port=\"vm1\"} 3.0",
        "floodway_port_queue_delay_seconds_bucket{le=\"0.000016\",port=\"vm1\"} 7",
        "floodway_port_queue_delay_seconds_bucket{le=\"0.000032\",port=\"vm1\"} 9",
        "floodway_port_queue_delay_seconds_bucket{le=\"+Inf\",port=\"vm1\"} 10",
        "floodway_port_queue_delay_seconds_count{port=\"vm1\"} 10",
        "floodway_offload_events_total{port=\"vm1\",event=\"timeouts\"} 4",
        "floodway_uplink_queue_frames{uplink=\"up0\",class=\"low\"} 3.0",
        "floodway_meter_packets_total{uplink=\"up0\",class=\"high\"} 8",
        "floodway_frames_dropped_total{port=\"vm1\",queue=\"0\",direction=\"rx\"} 7",
        "floodway_frames_dropped_total{uplink=\"up0\",direction=\"tx\"} 0",
        "floodway_inbound_capacity_bytes_per_second 875000.0",
        "floodway_inbound_rate_bytes_per_second{port=\"vm1\"} 125000.0",
        "floodway_inbound_events_total{port=\"vm1\",event=\"clamped\"} 5",
    ];
    let old = metrics(&path, "", "");
    let new = metrics(&path, "", "application/openmetrics-text;version=1.0.0,text/plain;q=0.3");
    for sample in samples {
        for text in [&old, &new] {
            assert!(text.lines().any(|line| line == sample), "no {sample:?} in\n{text}");
        }
    }
    assert!(new.contains("# TYPE floodway_port_queue_delay_seconds histogram"));
    assert!(!new.contains("offload_rtt_seconds_count"), "there was no round trip");
    assert!(new.contains("# TYPE floodway_packets counter") && new.ends_with("# EOF\n"));
    assert!(old.contains("# TYPE floodway_packets_total counter") && !old.contains("# EOF"));
    assert!(old.contains("# HELP floodway_packets_total Frames; "));
}

#[test]
fn series_of_reasons_that_are_zero_and_pairs_that_nobody_asked_for_are_left_out() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let text = metrics(&path, "", "");
    let zeros = ["reason", "event"].map(|label| {
        let is_one = |line: &&str| line.contains(&format!("{label}=")) && line.ends_with(" 0");
        text.lines().filter(is_one).count()
    });
    assert_eq!(zeros, [0, 0], "{text}");
    assert!(!text.contains("floodway_pair_bytes_total{"));
    let pair = "floodway_pair_bytes_total{from=\"vm1\",to=\"up0\",by=\"uplink\"} 600";
    assert!(metrics(&path, "?pairs=true", "").lines().any(|line| line == pair));
    let client = ControlClient::new(&path).unwrap();
    let error = client.get_bytes("/metrics?pears=true").unwrap_err().to_string();
    assert!(error.contains("pears"), "{error}");
}

/// Debian's package prometheus has it; without it this says so and passes.
#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let Ok(mut promtool) = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        eprintln!("not tested: promtool is missing (apt-get install prometheus)");
        return;
    };
    let text = metrics(&path, "?pairs=true", "");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
    assert_eq!((said, output.status.code()), ([String::new(), String::new()], Some(0)));
}

#[test]
fn unknown_routes_are_named() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let client = ControlClient::new(&path).unwrap();
    let message = client.get_bytes("/v1/nothing").unwrap_err().to_string();
    assert!(message.contains("no route /v1/nothing; there are /v1/status"), "{message}");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"POST /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(
        answer.ends_with("{\"error\":\"/v1/status does not answer to this method\"}"),
        "{answer}"
    );
}

#[test]
fn flows_are_asked_for_by_port_limit_and_cursor() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let client = ControlClient::new(&path).unwrap();
    let query =
        FlowQuery { port: Some("a b&c=%".into()), limit: Some(12), cursor: Some("3.4".into()) };
    let page = client.flows(&query).unwrap();
    assert_eq!((page.flows[0].port.as_str(), page.flows[0].cwnd), ("a b&c=%", 12));
    assert_eq!((page.flows[0].srtt_us, page.next.as_deref()), (Some(90), Some("3.4")));
    assert_eq!(client.flows(&FlowQuery::default()).unwrap().next, None);
    let error = client.get_bytes("/v1/flows?limit=many").unwrap_err().to_string();
    assert!(error.contains("limit"), "{error}");
    assert!(client.get_bytes("/v1/flows?ports=vm1").is_err(), "an unknown field");
}

#[test]
fn one_connection_is_asked_for_by_its_ends() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let client = ControlClient::new(&path).unwrap();
    let key = |peer: &str, vlan| FlowKey {
        guest: "[fd00::1]:40000".parse().unwrap(),
        peer: peer.parse().unwrap(),
        vlan,
    };
    let flow = client.flow("a b", &key("[fd00::2]:80", Some(7))).unwrap().unwrap();
    assert_eq!(
        (&*flow.port, &*flow.guest, &*flow.peer),
        ("a b", "[fd00::1]:40000", "[fd00::2]:80")
    );
    assert_eq!(flow.vlan, Some(7));
    assert_eq!(client.flow("a b", &key("[fd00::2]:1", None)).unwrap(), None, "it has ended");
    for query in ["", "?guest=10.0.0.1:1&peer=10.0.0.2", "?guest=10.0.0.1:1&peer=10.0.0.2:2&x=1"] {
        assert!(client.get_bytes(&format!("/v1/ports/vm1/flow{query}")).is_err(), "{query}");
    }
}

#[test]
fn the_status_of_one_port_is_that_of_all_ports() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let client = ControlClient::new(&path).unwrap();
    let all = client.status().unwrap();
    assert_eq!(client.port_status(&all.ports[0].name).unwrap(), all.ports[0]);
    assert!(client.port_status("none").unwrap_err().to_string().contains("no port \"none\""));
}

#[test]
fn offload_settings_are_shown_and_changed() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let client = ControlClient::new(&path).unwrap();
    assert_eq!(client.offload("vm1").unwrap().budget, 1);
    let congestion = Some("vegas".to_owned());
    let change = OffloadChange { transmit: Some(true.into()), congestion, ..Default::default() };
    let settings = client.set_offload("vm1", &change).unwrap();
    assert_eq!((settings.transmit, settings.congestion.as_str()), (true.into(), "vegas"));
    let refused = |port, change| client.set_offload(port, &change).unwrap_err().to_string();
    let error = refused("vm1", OffloadChange { budget: Some(9), ..Default::default() });
    assert_eq!(error, "budget = 9: must be an integer from 65536 to 1073741824");
    assert_eq!(refused("vm2", change), "no port \"vm2\"; the ports are vm1");
}

#[test]
fn a_body_that_is_no_change_is_refused() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let send = |body: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        let head = "PUT /v1/ports/vm1/offload HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                    Content-Type: application/json\r\n";
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(send("{\"transmit\":true}").starts_with("HTTP/1.1 200 "));
    for bad in ["{\"transmits\":true}", "{\"transmit\":1}", "{", ""] {
        let answer = send(bad);
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("\"error\""), "{answer}");
    }
}

#[test]
fn a_drain_begins_and_ends() {
    let (_directory, path) = socket();
    let _server = start(&path).unwrap();
    let client = ControlClient::new(&path).unwrap();
    assert!(client.drain("vm1", true).unwrap().draining);
    assert!(!client.drain("vm1", false).unwrap().draining);
    let status = client.drain_status("vm 1").unwrap();
    assert_eq!((status.draining, status.online, status.stored_bytes), (true, 7, 8));
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

#[test]
fn the_document_has_every_route_and_no_other() {
    use crate::api::openapi::{OPERATIONS, Sockets};
    let source = Arc::new(Fixed::new(sample()));
    let described = |meant: &dyn Fn(Sockets) -> bool| -> BTreeSet<_> {
        let meant = OPERATIONS.iter().filter(|operation| meant(operation.sockets));
        meant.map(|operation| (operation.method, operation.path)).collect()
    };
    let all: BTreeSet<_> =
        routes(Arc::clone(&source) as Source, 0).listed().iter().copied().collect();
    assert_eq!(all, described(&|sockets| sockets != Sockets::Broker));
    let manage: BTreeSet<_> = manage::routes(&(source.clone() as Arc<dyn ConfigApi>), source)
        .listed()
        .iter()
        .copied()
        .collect();
    assert_eq!(manage, described(&|sockets| sockets != Sockets::Control));
}
