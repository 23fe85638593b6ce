//! Changes by the control socket of a real switch.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use floodway_switch::api::edit::Kind;
use floodway_switch::config::{NetworkConfig, PortConfig};
use floodway_switch::control::{ClientError, ControlClient, ControlListener, ControlServer};
use floodway_switch::testing::{GuestConfig, wait_until};
use serde_json::{Map, Value, json};

use crate::net::{Net, port};

fn serve(net: &Net) -> (ControlServer, ControlClient) {
    let listener = ControlListener::bind(&net.config.control).unwrap();
    let operator = net.switch.as_ref().expect("the switch runs").operator();
    let server = ControlServer::start(listener, operator).unwrap();
    (server, ControlClient::new(&net.config.control).unwrap())
}

fn keys(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(keys) => keys,
        other => panic!("{other}"),
    }
}

/// Status, entity tag and body of the answer to a request.
fn ask(net: &Net, method: &str, route: &str, headers: &str, body: &str) -> (u16, String, String) {
    let mut stream = UnixStream::connect(&net.config.control).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {route} HTTP/1.1\r\nhost: floodway\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap_or_default();
    (code, tag.to_owned(), body.to_owned())
}

#[test]
fn ports_are_added_changed_listed_and_removed() {
    let net = Net::of(2);
    let (_server, client) = serve(&net);
    let socket = net.config.control.with_file_name("new.sock");
    let new = keys(json!({ "socket": socket.to_str(), "mtu": 9000 }));
    let dry = client.put(Kind::Port, "new", &new, true).unwrap();
    assert_eq!((dry.changes.len(), socket.exists()), (1, false));
    assert_eq!(client.put(Kind::Port, "new", &new, false).unwrap(), dry);
    assert!(socket.exists());
    assert!(client.put(Kind::Port, "new", &new, false).unwrap().is_empty(), "the same again");

    let change = keys(json!({ "mtu": null, "storm_pps": 5 }));
    let plan = client.patch(Kind::Port, "new", &change, false).unwrap().to_string();
    let expected = "~ port new: mtu = 9000 -> default, storm_pps = default -> 5 (its front-end connects again)";
    assert_eq!(plan, expected);
    let port = client.port("new").unwrap();
    assert_eq!(port["storm_pps"], 5);
    let names: Vec<_> =
        client.ports().unwrap().iter().map(|port| port["name"].to_string()).collect();
    assert_eq!(names, ["\"vm1\"", "\"vm2\"", "\"new\""]);

    client.delete(Kind::Port, "new", false).unwrap();
    assert!(!socket.exists());
    let error = client.port("new").unwrap_err();
    assert!(matches!(error, ClientError::Refused(_)), "{error}");
    assert_eq!(error.to_string(), "no port \"new\"; the ports are vm1, vm2");
}

#[test]
fn pages_have_cursors() {
    let net = Net::of(3);
    let _server = serve(&net);
    let (code, _, body) = ask(&net, "GET", "/v1/ports?limit=2", "", "");
    assert_eq!(code, 200);
    let page: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((page["ports"].as_array().unwrap().len(), &page["next"]), (2, &json!("vm2")));
    let (_, _, body) = ask(&net, "GET", "/v1/ports?limit=2&cursor=vm2", "", "");
    let page: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&page["ports"][0]["name"], &page["next"]), (&json!("vm3"), &Value::Null));
    let (code, _, body) = ask(&net, "GET", "/v1/ports?cursor=vm9", "", "");
    assert_eq!(
        (code, &*body),
        (400, r#"{"error":"cursor = \"vm9\": must be \"next\" of an earlier page"}"#)
    );
}

#[test]
fn a_change_of_something_that_has_changed_is_refused() {
    let net = Net::of(2);
    let _server = serve(&net);
    let (_, tag, _) = ask(&net, "GET", "/v1/ports/vm1", "", "");
    let only = format!("if-match: {tag}\r\n");
    let set = |headers: &str, pps: u32| {
        ask(&net, "PATCH", "/v1/ports/vm1", headers, &format!("{{\"storm_pps\":{pps}}}")).0
    };
    assert_eq!((set(&only, 5), set(&only, 6), set("", 7)), (200, 412, 200));
    let (_, _, port) = ask(&net, "GET", "/v1/ports/vm1", "", "");
    assert!(port.contains("\"storm_pps\":7"), "{port}");
    let (code, _, _) = ask(&net, "PUT", "/v1/ports/none", "if-match: *\r\n", "{}");
    assert_eq!(code, 412, "there is none");
}

#[test]
fn a_configuration_is_applied_as_a_whole_or_not_at_all() {
    let net = Net::of(2);
    let (_server, client) = serve(&net);
    let running = client.config().unwrap();
    assert!(client.apply(&running, false).unwrap().is_empty());
    let wanted = running.replace("name = \"vm2\"", "name = \"vm3\"");
    let plan = client.apply(&wanted, false).unwrap();
    assert_eq!(plan.changes.len(), 2);
    assert_eq!(net.status().ports[1].name, "vm3");
    let error = client.apply("[[port]]\nname = 1\n", false).unwrap_err().to_string();
    assert_eq!(error, "line 2: port[0].name = 1: must be a string in quotes");
    let error = client.apply(&format!("{wanted}[l2]\nageing_s = 1\n"), false).unwrap_err();
    let expected = "cannot be changed while the switch runs: l2; restart it";
    assert_eq!(error.to_string(), expected);
    assert_eq!(client.config().unwrap(), wanted);
    let (code, _, _) = ask(
        &net,
        "PUT",
        "/v1/config",
        "",
        "[l2]\nageing_s = 1\n[[port]]\nname=\"a\"\nsocket=\"/tmp/a\"",
    );
    assert_eq!(code, 409);
}

#[test]
fn networks_are_listed_with_who_is_in_them_and_their_tables() {
    let network = |vid: u16| NetworkConfig::new(format!("network{vid}"), vid);
    let access = PortConfig { network: Some(network(10)), ..port(1) };
    let trunk = PortConfig { tagged: vec![network(10)], ..port(2) };
    let net = Net::start_with(vec![access, trunk], vec![network(10), network(20)]);
    let (_server, client) = serve(&net);
    let networks = client.networks().unwrap();
    let names: Vec<_> = networks.iter().map(|it| (&*it.name, it.vid, it.ports.len())).collect();
    assert_eq!(
        names,
        [("default", None, 1), ("network10", Some(10), 2), ("network20", Some(20), 0)]
    );
    assert_eq!(client.network("network10").unwrap().l2, []);
    let [_a, _b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    wait_until("both addresses", || client.network("network10").unwrap().l2.len() == 2);
    let table = client.network("network10").unwrap();
    assert!(table.l2.iter().all(|entry| entry.network == "network10" && entry.age_s.is_none()));
    assert_eq!(client.network("default").unwrap().network.addresses, 1);
    let (code, _, body) = ask(&net, "GET", "/v1/networks/green", "", "");
    assert_eq!((code, body.contains("the networks are default, network10")), (404, true));
    let (code, _, body) = ask(&net, "GET", "/v1/networks?limit=1", "", "");
    assert_eq!((code, body.contains("\"next\":\"default\"")), (200, true), "{body}");
    assert_eq!(ask(&net, "GET", "/v1/networks?cursor=green", "", "").0, 400);
}
