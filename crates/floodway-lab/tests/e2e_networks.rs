//! Networks of experiments: namespaces, bridge, tap, and a shaped link. Needs root.

use std::path::Path;

use floodway_lab::net::{self, Namespace, Rate};
use floodway_lab::process;

#[test]
fn two_hosts_are_joined_by_a_shaped_link() {
    let [left, right] = ["left", "right"].map(|name| Namespace::create(name).unwrap());
    net::join(&left, &right, "link0", Rate { mbit: 100, queue_bytes: 1 << 20 }).unwrap();
    left.add_address("link0", &net::cidr(9, 1)).unwrap();
    right.add_address("link0", &net::cidr(9, 2)).unwrap();
    let mut ping = left.command("busybox");
    ping.args(["ping", "-c", "1", "-W", "60", &net::address(9, 2)]);
    process::run_command(ping).unwrap();
    for namespace in [&left, &right] {
        let shown = process::run(&["tc", "-n", namespace.name(), "qdisc", "show", "dev", "link0"]);
        assert!(shown.unwrap().contains("tbf"), "{}", namespace.name());
    }
}

#[test]
fn a_namespace_goes_with_everything_in_it() {
    let namespace = Namespace::create("gone").unwrap();
    namespace.bridge("br0").unwrap();
    namespace.tap("tap0").unwrap();
    namespace.add_address("br0", &net::cidr(8, 1)).unwrap();
    let path = namespace.path();
    assert!(path.exists());
    // The lab's own network has seen nothing of it.
    assert!(!Path::new("/sys/class/net/tap0").exists());
    drop(namespace);
    assert!(!path.exists());
}

#[test]
fn a_refusal_quotes_the_kernel() {
    let namespace = Namespace::create("refuse").unwrap();
    let error = namespace.add_address("nothing0", &net::cidr(8, 1)).unwrap_err().to_string();
    assert!(error.contains("nothing0"), "{error}");
    let taken = Namespace::create("refuse").unwrap_err().to_string();
    assert!(taken.contains("refuse"), "{taken}");
}
