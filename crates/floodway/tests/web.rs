//! `floodway web` over HTTP, beside a live switch and beside a stand-in for one: who gets what, and what it asks the switch for.

mod common;
#[path = "common/scene.rs"]
mod scene;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use common::{PATIENCE, Running};
use floodway_switch::api::activity::{Activity, PortActivity};
use floodway_switch::testing::wait_until;
use scene::Scene;
use serde_json::Value;

/// A server of the page.
struct Page {
    _process: Running,
    address: SocketAddr,
    token: String,
}

/// Starts a switch with the ports vm1 and vm2.
fn start(scene: &mut Scene) {
    scene.start(&(scene.port(1, "") + &scene.port(2, "")));
}

/// Starts the server with these options, and returns the first lines that it prints.
fn serve(scene: &Scene, options: &[&str], lines: usize) -> (Running, Vec<String>) {
    let words = [&["web"], options].concat();
    let mut child = scene.command(&words).stdout(Stdio::piped()).spawn().unwrap();
    let printed = BufReader::new(child.stdout.take().unwrap()).lines().take(lines);
    let printed = printed.map(Result::unwrap).collect();
    (Running(child), printed)
}

fn serve_tcp(scene: &Scene) -> Page {
    let (process, printed) = serve(scene, &["--listen", "127.0.0.1:0"], 1);
    let url = printed[0].strip_prefix("the page is at http://").expect("a URL");
    let (address, token) = url.split_once("/#token=").expect("a token");
    Page { _process: process, address: address.parse().unwrap(), token: token.to_owned() }
}

impl Page {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The code, the head and the body of an answer.
    fn ask(&self, method: &str, route: &str) -> (u16, String, String) {
        ask(self.connect(), method, route, &["localhost"])
    }

    /// The code for a route with these fields beside the token.
    fn code(&self, fields: &str) -> u16 {
        let stream = open(self.connect(), &format!("/v1/stream?{fields}&token={}", self.token));
        stream.code
    }

    fn stream(&self, fields: &str) -> Documents<TcpStream> {
        let stream = open(self.connect(), &format!("/v1/stream?{fields}&token={}", self.token));
        assert_eq!(stream.code, 200, "{fields}");
        stream
    }
}

/// An answer that goes on.
struct Documents<S: Read> {
    code: u16,
    lines: std::io::Lines<BufReader<S>>,
}

impl<S: Read> Documents<S> {
    /// The next document of this kind.
    fn next(&mut self, kind: &str) -> Value {
        let mut is_it = false;
        loop {
            let line = self.lines.next().expect("more").expect("more in time");
            match line.split_once(": ") {
                Some(("event", name)) => is_it = name == kind,
                Some(("data", json)) if is_it => return serde_json::from_str(json).unwrap(),
                _ => {}
            }
        }
    }

    /// The next document of this kind that fits.
    fn find(&mut self, kind: &str, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let document = self.next(kind);
            if fits(&document) {
                return document;
            }
        }
    }
}

fn open<S: Read + Write>(mut stream: S, route: &str) -> Documents<S> {
    write!(stream, "GET {route} HTTP/1.1\r\nHost: localhost:9\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap().unwrap();
    let code = first.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
    Documents { code, lines }
}

fn ask(
    mut stream: impl Read + Write,
    method: &str,
    route: &str,
    hosts: &[&str],
) -> (u16, String, String) {
    let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
    let request = format!("{method} {route} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
    (code, head.to_lowercase(), body.to_owned())
}

#[test]
fn the_page_is_served_for_reading_with_a_policy_and_nothing_else_is() {
    let scene = Scene::new();
    let page = serve_tcp(&scene);
    let (code, head, body) = page.ask("GET", "/");
    assert_eq!((code, body.contains("<title>Floodway</title>")), (200, true));
    for directive in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
        assert!(head.contains(directive), "{head}");
    }
    assert!(head.contains("x-content-type-options: nosniff"), "{head}");
    // All that the page and its modules name is there, and comes from here.
    let mut files = vec!["/".to_owned()];
    let mut seen = 0;
    while seen < files.len() {
        let (code, head, body) = page.ask("GET", &files[seen]);
        assert_eq!(code, 200, "{}", files[seen]);
        assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
        let names = body.split('"').filter(|text| {
            text.starts_with('/') && [".js", ".css", ".svg"].iter().any(|end| text.ends_with(end))
        });
        let new: Vec<_> = names.filter(|name| !files.iter().any(|file| file == name)).collect();
        let mut new: Vec<String> = new.into_iter().map(str::to_owned).collect();
        new.dedup();
        files.append(&mut new);
        seen += 1;
    }
    assert!(files.len() > 10, "{files:?}");
    for method in ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let (code, head, _) = page.ask(method, "/");
        assert_eq!((code, head.contains("allow: get")), (405, true), "{method}");
    }
    for route in ["/v1/status", "/v1/config", "/v1/ports/vm1", "/metrics", "/../Cargo.toml"] {
        let (code, head, body) = page.ask("GET", route);
        assert_eq!((code, body.contains("the page is at /")), (404, true), "{route}");
        assert!(head.contains("content-security-policy"), "{head}");
    }
}

#[test]
fn only_who_knows_the_token_is_told_about_the_switch() {
    let scene = Scene::new();
    let page = serve_tcp(&scene);
    assert_eq!(page.token.len(), 32);
    let wrong = page.token.replace(['0', '1'], "2") + "0";
    for query in ["", "?token=", "?token=0", &format!("?token={wrong}"), "?port=vm1"] {
        for route in ["/v1/stream", "/v1/version"] {
            let (code, _, body) = page.ask("GET", &format!("{route}{query}"));
            assert_eq!((code, body.contains("has a token")), (403, true), "{route}{query}");
            assert!(!body.contains(&page.token));
        }
    }
    let (code, _, body) = page.ask("GET", &format!("/v1/version?token={}", page.token));
    assert_eq!((code, body.contains(env!("CARGO_PKG_VERSION"))), (200, true));
    assert_ne!(serve_tcp(&scene).token, page.token, "each process has its own");
}

#[test]
fn another_sites_name_leads_nowhere() {
    let scene = Scene::new();
    let page = serve_tcp(&scene);
    let route = format!("/v1/version?token={}", page.token);
    for hosts in
        [&["evil.example"][..], &["127.0.0.1.evil.example:80"], &[], &["localhost", "evil"]]
    {
        for route in ["/", &route] {
            let (code, _, body) = ask(page.connect(), "GET", route, hosts);
            assert!(code == 421 || code == 400, "{hosts:?}: {code}");
            assert!(!body.contains("version"), "{body}");
        }
    }
    for host in ["127.0.0.1", "localhost:8080", "[::1]:1"] {
        assert_eq!(ask(page.connect(), "GET", &route, &[host]).0, 200, "{host}");
    }
}

#[test]
fn a_page_shows_the_past_at_once_and_finds_a_switch_again() {
    let mut scene = Scene::new();
    start(&mut scene);
    let _guest = scene.boot(1);
    let page = serve_tcp(&scene);
    let mut documents = page.stream("");
    let first = documents.next("overview");
    assert_eq!(first["reset"], true);
    let running = |document: &Value| document["ports"][0]["state"] == "running";
    documents.find("overview", running);
    let event = |name: &'static str| {
        move |document: &Value| {
            document["events"].as_array().unwrap().iter().any(|event| event["event"] == name)
        }
    };
    page.stream("").find("events", event("guest_started"));
    (0..3)
        .for_each(|_| assert_eq!(documents.next("overview")["times"].as_array().unwrap().len(), 1));
    let past = page.stream("").next("overview");
    let length = |name: &str| past["ports"][0][name].as_array().unwrap().len();
    assert!(past["times"].as_array().unwrap().len() >= 4, "{past}");
    assert_eq!([length("tx"), length("drops")], [past["times"].as_array().unwrap().len(); 2]);

    scene.stop();
    let gone = documents.find("overview", |document| !document["problem"].is_null());
    assert!(gone["problem"].as_str().unwrap().contains("floodway is not running"), "{gone}");
    assert_eq!(gone["ports"][0]["tx"], Value::from(vec![Value::Null]));
    start(&mut scene);
    documents.find("overview", |document| document["problem"].is_null());
}

#[test]
fn a_port_and_a_connection_are_looked_at_closely() {
    let mut scene = Scene::new();
    start(&mut scene);
    let page = serve_tcp(&scene);
    let mut port = page.stream("port=vm2");
    let document = port.next("port");
    let facts = &document["facts"];
    assert_eq!((&document["name"], &facts["state"]), (&"vm2".into(), &"down".into()));
    assert_eq!(facts["severity"], "warning");
    assert!(facts["findings"][0]["command"].as_str().unwrap().starts_with("namei -l "), "{facts}");
    let unknown = page.stream("port=vm9").next("port");
    assert!(unknown["problem"].as_str().unwrap().contains("no port \"vm9\""), "{unknown}");
    let ends = "guest=10.0.0.1:40000&peer=10.0.0.2:80";
    let ended = page.stream(&format!("port=vm1&{ends}")).next("flow");
    assert_eq!((&ended["now"], &ended["problem"]), (&Value::Null, &Value::Null), "{ended}");
    for fields in [ends, "port=vm1&guest=10.0.0.1:1", "port=vm1&guest=x&peer=y", "ports=vm1"] {
        assert_eq!(page.code(fields), 400, "{fields}");
    }
}

#[test]
fn pages_are_limited_and_one_that_goes_makes_room() {
    let scene = Scene::new();
    let page = serve_tcp(&scene);
    let mut open: Vec<_> = (0..16).map(|_| page.stream("")).collect();
    assert_eq!(page.code(""), 503);
    assert_eq!(page.ask("GET", "/").0, 200, "the page's files are served");
    open.pop();
    wait_until("room for a page", || page.code("") == 200);
}

#[test]
fn a_socket_has_permissions_instead_of_a_token() {
    let scene = Scene::new();
    let (server, printed) = serve(&scene, &["--socket", "web.sock"], 1);
    assert_eq!(printed, ["the page is on web.sock, for who may connect to it"]);
    let path = scene.path("web.sock");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let connect = || UnixStream::connect(&path).unwrap();
    assert_eq!(ask(connect(), "GET", "/v1/version", &["localhost:8080"]).0, 200);
    assert_eq!(ask(connect(), "GET", "/v1/version", &["evil.example"]).0, 421);
    assert_eq!(open(connect(), "/v1/stream").next("overview")["reset"], true);
    drop(server);
    assert!(!path.exists(), "its file goes with it");
}

#[test]
fn addresses_that_others_reach_are_refused() {
    let scene = Scene::new();
    for address in ["0.0.0.0:9469", "192.0.2.1:9469", "[::]:9469", "localhost"] {
        let output = scene.command(&["web", "--listen", address]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{address}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("must be a loopback address"), "{error}");
    }
    let taken = UnixListener::bind(scene.path("taken.sock")).unwrap();
    let output = scene.command(&["web", "--socket", "taken.sock"]).output().unwrap();
    assert!(
        String::from_utf8(output.stderr).unwrap().contains("--socket taken.sock: it is in use")
    );
    drop(taken);
}

/// Stands in for a switch: it answers `/v1/activity`, and writes down what it is asked for.
struct StandIn(Arc<Mutex<Vec<String>>>);

impl StandIn {
    fn start(scene: &Scene) -> Self {
        let listener = UnixListener::bind(scene.path("control.sock")).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if let Some(line) = Self::answer(&stream) {
                    noted.lock().unwrap().push(line);
                }
            }
        });
        Self(asked)
    }

    /// Answers one request; its method and path.
    fn answer(mut stream: &UnixStream) -> Option<String> {
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first).ok()?;
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
            line.clear();
        }
        let port = PortActivity { name: "vm1".into(), ..PortActivity::default() };
        let activity = Activity { ports: vec![port], ..Activity::default() };
        let (code, body) = match first.split(' ').nth(1)? {
            "/v1/activity" => ("200 OK", serde_json::to_string(&activity).unwrap()),
            _ => ("404 Not Found", "{\"error\":\"not here\"}".to_owned()),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {code}\r\nContent-Length: {length}\r\nConnection: close\r\n");
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).ok()?;
        Some(first.trim_end_matches("HTTP/1.1\r\n").trim_end().to_owned())
    }

    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Waits until all ports were looked at `times` times more, and returns what was asked for beside that and the events.
    fn beside(&self, times: usize) -> Vec<String> {
        let before = self.asked().len();
        let later = || self.asked()[before..].to_vec();
        let is_look = |line: &String| line == "GET /v1/activity";
        wait_until("looks", || later().iter().filter(|line| is_look(line)).count() >= times);
        let is_usual = |line: &String| is_look(line) || line.starts_with("GET /v1/events?");
        later().into_iter().filter(|line| !is_usual(line)).collect()
    }
}

#[test]
fn the_switch_is_asked_for_what_pages_show_and_with_get_only() {
    let scene = Scene::new();
    let switch = StandIn::start(&scene);
    let page = serve_tcp(&scene);
    assert_eq!(switch.beside(3), [""; 0], "no page is open");
    let overview = page.stream("");
    assert_eq!(switch.beside(2), [""; 0], "no port is shown");
    let port = page.stream("port=vm1");
    let other = page.stream("port=vm1");
    let flow = page.stream("port=vm2&guest=10.0.0.1:1&peer=10.0.0.2:2");
    let asked = switch.beside(3);
    let count = |start: &str| asked.iter().filter(|line| line.starts_with(start)).count();
    assert!(count("GET /v1/ports/vm1/status") >= 2, "{asked:?}");
    assert!(count("GET /v1/ports/vm2/flow?guest=10.0.0.1%3A1&peer=10.0.0.2%3A2") >= 1, "{asked:?}");
    drop((overview, port, other, flow));
    wait_until("a second without questions about ports", || switch.beside(2).is_empty());
    assert!(switch.asked().iter().all(|line| line.starts_with("GET ")), "{:?}", switch.asked());
}
