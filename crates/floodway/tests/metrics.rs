//! `floodway metrics` beside a live switch, and what is made for its readers: alert rules and a dashboard.
//!
//! With Debian's Prometheus (`make test-metrics` unpacks it) queries of the dashboard are put to it, but those that need an uplink, which `tools/browser/dashboard.py` asks beside VMs
//! that have one; without it the names in the queries are still compared with those that the switch serves.

mod common;
#[path = "common/scene.rs"]
mod scene;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::Running;
use floodway_switch::testing::frames::{mac, numbered};
use floodway_switch::testing::{Guest, wait, wait_until};
use floodway_wire::vnet::VnetHdr;
use scene::Scene;
use serde_json::Value;

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

/// The configuration of a switch with two ports that have the TCP offload, and a link that is divided.
fn config(scene: &Scene) -> String {
    let port = |n| {
        let keys = format!("mac = \"{}\"\nstorm_pps = 0\noffload = {{ transmit = true }}", mac(n));
        scene.port(n, &keys)
    };
    "[inbound]\ncapacity_mbit = 100\n".to_owned() + &port(1) + &port(2)
}

/// Such a switch.
fn started() -> Scene {
    let mut scene = Scene::new();
    scene.start(&config(&scene));
    scene
}

/// Serves metrics on a Unix socket and a loopback address, and returns both.
fn serve(scene: &Scene) -> (Running, PathBuf, SocketAddr) {
    let words = ["metrics", "--socket", "metrics.sock", "--listen", "127.0.0.1:0"];
    let mut child = scene.command(&words).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let running = Running(child);
    let mut place = || lines.next().unwrap().unwrap();
    assert_eq!(place(), "serving metrics on metrics.sock");
    let tcp = place();
    let address = tcp.strip_prefix("serving metrics on http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().parse().unwrap();
    (running, scene.path("metrics.sock"), address)
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
    let parts = ["_bucket", "_sum", "_count"];
    let family = |word: &str| {
        let family = parts.iter().find_map(|part| word.strip_suffix(part));
        family.unwrap_or(word).to_owned()
    };
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
    let mut scene = started();
    let (_server, socket, address) = serve(&scene);
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

    scene.stop();
    wait_until("the switch to be gone", || !scene.answers());
    let (code, text) = ask(tcp(), "GET", "/metrics");
    assert_eq!((code, text.contains("floodway is not running")), (503, true), "{text}");
    scene.start(&config(&scene));
    assert_eq!(ask(tcp(), "GET", "/metrics").0, 200, "it is found again");
}

#[test]
fn addresses_that_others_reach_are_refused() {
    let scene = started();
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
    let scene = started();
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
fn queries_of_the_dashboard_that_need_no_uplink_have_data_in_prometheus() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        eprintln!("not tested: prometheus is missing (make test-metrics)");
        return;
    }
    let scene = started();
    let (_server, _, address) = serve(&scene);
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
