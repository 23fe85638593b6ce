//! `floodway metrics` beside a live switch, and what is made for its readers: alert rules and a dashboard.
//!
//! With Debian's Prometheus (`make test-metrics` unpacks it) every query of the dashboard is put to it; without it the names in the queries are
//! still compared with those that the switch serves.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::Running;
use floodway_switch::testing::frames::{mac, numbered};
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};
use floodway_wire::vnet::VnetHdr;
use serde_json::Value;

const FLOODWAY: &str = env!("CARGO_BIN_EXE_floodway");
const ALERTS: &str = include_str!("../../../packaging/floodway/examples/floodway-alerts.yml");
const DASHBOARD: &str =
    include_str!("../../../packaging/floodway/examples/floodway-dashboard.json");
/// Panels that need an uplink, or TCP through one.
const WITHOUT_DATA: [&str; 4] = [
    "TCP offload: repairs and time-outs",
    "TCP offload: round trips, median and 99th percentile",
    "Uplinks",
    "Uplinks: what waits for the device",
];

/// A switch with two ports that have the TCP offload, and a link that is divided.
struct Scene {
    directory: tempfile::TempDir,
    switch: Option<Running>,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let port = |n: u8| {
            let (socket, mac) = (path(&format!("vm{n}.sock")), mac(n));
            format!(
                "[[port]]\nname = \"vm{n}\"\nsocket = {socket:?}\nmac = \"{mac}\"\nstorm_pps = 0\n\
                 offload = {{ transmit = true }}\n"
            )
        };
        let control = path("control.sock");
        let text = format!("control = {control:?}\n[inbound]\ncapacity_mbit = 100\n");
        fs::write(path("switch.toml"), text + &port(1) + &port(2)).unwrap();
        let mut scene = Self { directory, switch: None };
        scene.start();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(FLOODWAY);
        command.args(words).current_dir(self.directory.path());
        command.env("FLOODWAY_CONTROL", self.path("control.sock"));
        command
    }

    fn answers(&self) -> bool {
        let mut status = self.command(&["status"]);
        status.stdout(Stdio::null()).stderr(Stdio::null());
        status.status().unwrap().success()
    }

    fn start(&mut self) {
        let mut command = self.command(&["run", "--config", "switch.toml", "--log", "warn"]);
        self.switch = Some(Running(command.spawn().unwrap()));
        wait_until("the switch to answer", || self.answers());
    }

    /// Serves metrics on a Unix socket and a loopback address, and returns both.
    fn serve(&self) -> (Running, PathBuf, SocketAddr) {
        let words = ["metrics", "--socket", "metrics.sock", "--listen", "127.0.0.1:0"];
        let mut child = self.command(&words).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let running = Running(child);
        let mut place = || lines.next().unwrap().unwrap();
        assert_eq!(place(), "serving metrics on metrics.sock");
        let tcp = place();
        let address = tcp.strip_prefix("serving metrics on http://").unwrap();
        let address = address.strip_suffix("/metrics").unwrap().parse().unwrap();
        (running, self.path("metrics.sock"), address)
    }

    fn boot(&self, n: u8) -> (Guest, Frontend) {
        let guest = Guest::new(GuestConfig::default());
        let frontend = Frontend::attach(&self.path(&format!("vm{n}.sock")), &guest);
        (guest, frontend)
    }
}

/// The code and the body of the answer to a request.
fn ask(mut stream: impl Read + Write, method: &str, route: &str) -> (u16, String) {
    let request = format!("{method} {route} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
    (code, body.to_owned())
}

/// Sends from VM 1 to VM 2, also from an address that is not VM 1's.
fn send((sender, receiver): (&mut Guest, &mut Guest), number: &mut u32) {
    for source in [1, 1, 1, 9] {
        *number += 1;
        sender.send(0, &VnetHdr::default(), &numbered(source, 2, *number, 500));
    }
    while receiver.recv(0).is_some() {}
    receiver.refill(0, usize::MAX);
}

/// The names of metrics in a text, without what a sample's name may have more than its family's.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c| !is_part(c));
    let family = |word: &str| word.strip_suffix("_bucket").unwrap_or(word).to_owned();
    words.filter(|word| word.starts_with("floodway_")).map(family).collect()
}

/// The queries of the dashboard, by the title of their panel.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let queries = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(move |target| (text(&panel["title"]), text(&target["expr"])))
    });
    queries.collect()
}

#[test]
fn metrics_are_served_for_reading_and_nothing_else_is() {
    let mut scene = Scene::new();
    let (_server, socket, address) = scene.serve();
    let unix = || UnixStream::connect(&socket).unwrap();
    let tcp = || TcpStream::connect(address).unwrap();
    for (code, text) in [ask(unix(), "GET", "/metrics"), ask(tcp(), "GET", "/metrics")] {
        assert_eq!(code, 200, "{text}");
        assert!(text.contains("floodway_port_running{port=\"vm2\"} 0"), "{text}");
        assert!(!text.contains("floodway_pair_packets_total{"));
    }
    assert_eq!(ask(unix(), "PUT", "/metrics").0, 405);
    for route in ["/v1/status", "/v1/ports/vm1", "/v1/config", "/"] {
        assert_eq!(ask(tcp(), "GET", route).0, 404, "{route}");
    }
    let printed = scene.command(&["metrics"]).output().unwrap();
    assert!(String::from_utf8(printed.stdout).unwrap().contains("floodway_build_info{"));

    scene.switch = None;
    wait_until("the switch to be gone", || !scene.answers());
    let (code, text) = ask(tcp(), "GET", "/metrics");
    assert_eq!((code, text.contains("floodway is not running")), (503, true), "{text}");
    scene.start();
    assert_eq!(ask(tcp(), "GET", "/metrics").0, 200, "it is found again");
}

#[test]
fn addresses_that_others_reach_are_refused() {
    let scene = Scene::new();
    for address in ["0.0.0.0:9468", "192.0.2.1:9468", "[::]:9468", "localhost"] {
        let output = scene.command(&["metrics", "--listen", address]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{address}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("must be a loopback address"), "{error}");
    }
    let control = scene.path("control.sock");
    let words = ["metrics", "--socket", control.to_str().unwrap()];
    let output = scene.command(&words).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("it is in use"));
    assert!(scene.answers(), "and the control socket is still the switch's");
}

#[test]
fn rules_and_dashboard_name_only_what_there_is() {
    let scene = Scene::new();
    let output = scene.command(&["metrics"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let family = |line: &str| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned());
    let families: BTreeSet<_> = text.lines().filter_map(family).collect();
    // Those of uplinks are described even where there is none.
    let of_dashboard: BTreeSet<_> = queries().iter().flat_map(|(_, query)| names(query)).collect();
    let wanted = &names(ALERTS) | &of_dashboard;
    assert!(wanted.len() > 20, "{wanted:?}");
    assert_eq!(wanted.difference(&families).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn each_query_of_the_dashboard_has_data_in_prometheus() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        eprintln!("not tested: prometheus is missing (make test-metrics)");
        return;
    }
    let scene = Scene::new();
    let (_server, _, address) = scene.serve();
    let (mut one, _front_end_one) = scene.boot(1);
    let (mut two, _front_end_two) = scene.boot(2);
    let (_prometheus, api) = prometheus(&scene, address);
    let mut number = 0;
    for (panel, query) in queries() {
        if WITHOUT_DATA.contains(&&*panel) {
            continue;
        }
        let query = query.replace("$__rate_interval", "5s");
        let query = query.replace("$instance", ".*").replace("$port", ".*");
        wait(&format!("data of {panel}: {query}"), || {
            send((&mut one, &mut two), &mut number);
            let result = answer(api, &query)?;
            (!result.as_array()?.is_empty()).then_some(())
        });
    }
}

/// A Prometheus that scrapes `target` each second, and where it answers.
fn prometheus(scene: &Scene, target: SocketAddr) -> (Running, SocketAddr) {
    let config = format!(
        "global: {{ scrape_interval: 1s }}\nscrape_configs:\n  - job_name: floodway\n    \
         static_configs: [{{ targets: [\"{target}\"] }}]\n"
    );
    fs::write(scene.path("prometheus.yml"), config).unwrap();
    // It does not say which port it has got, so it is told one that was free just now.
    let api = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", scene.path("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", scene.path("data").display()));
    command.arg(format!("--web.listen-address={api}")).arg("--log.level=error");
    let running = Running(command.spawn().unwrap());
    wait_until("Prometheus", || TcpStream::connect(api).is_ok());
    (running, api)
}

/// The result of an instant query; none if there is no answer yet.
fn answer(api: SocketAddr, query: &str) -> Option<Value> {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let stream = TcpStream::connect(api).ok()?;
    let (code, body) = ask(stream, "GET", &format!("/api/v1/query?query={escaped}"));
    assert!(code == 200 || code == 503, "{code}: {body}");
    // The body may be chunked; the document is what is between the first and the last brace.
    let document = body.get(body.find('{')?..=body.rfind('}')?)?;
    let document: Value = serde_json::from_str(document).ok()?;
    Some(document["data"]["result"].clone())
}
