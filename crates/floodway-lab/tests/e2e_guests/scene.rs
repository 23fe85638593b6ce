//! A switch with VMs on it, and the host that they live on.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use floodway_lab::agent::{Agent, Interface};
use floodway_lab::cleanup;
use floodway_lab::guest_image::{Contents, GuestImage};
use floodway_lab::kernel::{Kernel, Series};
use floodway_lab::net::Namespace;
use floodway_lab::switch_process::Switch;
use floodway_lab::vm::{Config, Nic, Vm};
use serde_json::Value;

/// Far longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(50);

/// A VM and its port.
pub struct Guest {
    /// The port's name, and the VM's.
    pub name: &'static str,
    /// Of its card.
    pub mac: &'static str,
    /// Further keys of its port.
    pub keys: &'static str,
    /// Of its card; vCPUs, too.
    pub queue_pairs: u16,
}

/// All of it; VMs are in the order of their guests.
pub struct Scene {
    pub vms: Vec<Vm>,
    pub switch: Switch,
    pub host: Namespace,
}

/// Debian 6.1 with what a router has.
fn image() -> &'static GuestImage {
    static IMAGE: OnceLock<GuestImage> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let contents = Contents {
            programs: vec![("bridge".into(), "iproute2".into())],
            modules: ["bridge", "8021q", "dummy"].map(String::from).into(),
            ..Contents::default()
        };
        GuestImage::build(&Kernel::fetch(Series::V6_1).unwrap(), &contents).unwrap()
    })
}

impl Scene {
    /// Starts a switch with `sections` (networks, uplinks) and a port for each guest, and boots the guests.
    pub fn start(name: &str, sections: &str, guests: &[Guest]) -> Self {
        let dir = cleanup::run_dir().unwrap().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let host = Namespace::create(name).unwrap();
        let socket = |guest: &Guest| -> PathBuf { dir.join(format!("{}.sock", guest.name)) };
        let mut text = format!("control = {:?}\n{sections}\n", dir.join("control.sock"));
        for guest in guests {
            text += &format!(
                "[[port]]\nname = {:?}\nsocket = {:?}\nmode = \"client\"\nqueue_pairs = {}\n{}\n",
                guest.name,
                socket(guest),
                guest.queue_pairs,
                guest.keys
            );
        }
        let config = floodway_switch::config::Config::parse(&text, "scene".as_ref()).unwrap();
        let switch = Switch::start("switch", &dir, &config, Some(&host)).unwrap();
        let configs = guests.iter().map(|guest| {
            let card =
                Nic { queue_pairs: guest.queue_pairs, ..Nic::vhost_user(socket(guest), guest.mac) };
            Config { vcpus: guest.queue_pairs.into(), ..Config::new(guest.name, image()).nic(card) }
        });
        let vms = Vm::boot_all(configs.collect()).unwrap();
        Self { vms, switch, host }
    }

    pub fn agent(&self, vm: usize) -> &Agent {
        self.vms[vm].agent()
    }

    /// Gives `eth0` of a VM an address.
    pub fn address(&self, vm: usize, cidr: &str) {
        let interface =
            Interface { name: "eth0".into(), addresses: vec![cidr.into()], ..Interface::default() };
        self.agent(vm).configure_interface(&interface).unwrap();
    }

    /// Runs words in a VM. Returns what they print.
    pub fn run(&self, vm: usize, words: &str) -> String {
        let argv: Vec<_> = words.split(' ').collect();
        self.agent(vm).exec(&argv).unwrap().stdout_text()
    }

    /// Waits until a VM is answered.
    pub fn ping(&self, vm: usize, address: &str) {
        wait_until(&format!("{} is answered by {address}", self.vms[vm].name()), || {
            self.agent(vm).exec(&["ping", "-c", "1", "-W", "1", address]).is_ok()
        });
    }

    /// Lets a VM serve files by HTTP: `name`, in which is its name, and `data`.
    pub fn serve(&self, vm: usize, data: &[u8]) {
        let agent = self.agent(vm);
        agent.put(self.vms[vm].name().as_bytes(), "/srv/name", 0o644).unwrap();
        agent.put(data, "/srv/data", 0o644).unwrap();
        agent.spawn(&["httpd", "-f", "-p", "80", "-h", "/srv"]).unwrap();
    }

    /// Gets a file of the VM that has an address, as another VM sees it.
    pub fn get(&self, vm: usize, address: &str, file: &str) -> Vec<u8> {
        let url = format!("http://{address}/{file}");
        let fetch = || self.agent(vm).exec(&["wget", "-q", "-O", "/tmp/got", &url]);
        wait_until(&url, || fetch().is_ok());
        self.agent(vm).get("/tmp/got").unwrap()
    }

    /// The status of a port.
    pub fn port(&self, name: &str) -> Value {
        let status = self.switch.status().unwrap();
        let ports = status["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == name).expect("the port").clone()
    }

    /// Frames dropped for a reason, anywhere.
    pub fn drops(&self, reason: &str) -> f64 {
        self.switch.drops().unwrap().get(reason).copied().unwrap_or_default()
    }
}

/// Looks again and again until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {LONG:?}");
        std::thread::sleep(POLL);
    }
}
