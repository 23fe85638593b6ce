//! The keeper with a VM that is a few threads of this process.

use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use floodway_core::l2::{MacTable, PortId};

use super::sched::{Attributes, SliceError, set_slice};
use super::{Keeper, Policy, Slices};
use crate::config::{PortConfig, SocketMode, VcpuConfig, Vm};
use crate::port::{Port, lock};
use crate::testing::wait;
use crate::worker::Waker;

/// A thread that is called like a vCPU.
struct Vcpu {
    id: i32,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Vcpu {
    fn start(number: u32) -> Self {
        let (end, wait) = mpsc::channel::<()>();
        let (say, hear) = mpsc::channel();
        let body = move || {
            // SAFETY: gettid takes no arguments and cannot fail.
            let _ = say.send(unsafe { libc::gettid() });
            let _ = wait.recv();
        };
        let thread = thread::Builder::new().name(format!("CPU {number}/TCG")).spawn(body).unwrap();
        Self { id: hear.recv().unwrap(), end: Some(end), thread: Some(thread) }
    }

    fn attributes(&self) -> Attributes {
        Attributes::of(self.id).unwrap()
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn port(vm: Vm, policy: Policy) -> Arc<Port> {
    let config = PortConfig {
        name: "vm1".into(),
        socket: PathBuf::from("unused"),
        mode: SocketMode::Server,
        mac: None,
        ips: Vec::new(),
        allow_router: true,
        allow_dhcp_server: true,
        allow_mac_takeover: false,
        queue_pairs: 1,
        mtu: 1500,
        queue_bytes: 1 << 20,
        storm_pps: 0,
        worker: 0,
        inbound_weight: 1,
        offload: floodway_core::offload::Config::default(),
        vcpu: Some(VcpuConfig { vm, policy }),
    };
    let table = MacTable::new([0; 2], Duration::from_secs(1));
    let waker = Arc::new(Waker::new().unwrap());
    Arc::new(Port::new(PortId(0), config, waker, Arc::new(RwLock::new(table))))
}

/// This kernel has slices.
fn supported() -> bool {
    let probe = thread::spawn(|| set_slice(0, Duration::from_millis(1)));
    !matches!(probe.join().unwrap(), Err(SliceError::Unsupported))
}

#[test]
fn slices_are_set_and_given_back() {
    if !supported() {
        return;
    }
    let first = Vcpu::start(0);
    let before = first.attributes();
    let port = port(Vm::Pid(std::process::id()), Policy::Throughput);
    let slices = Slices { look_every: Duration::from_millis(5), ..Slices::default() };
    let keeper = Keeper::start(&[Arc::clone(&port)], slices).unwrap().expect("a keeper");
    let has_it = |vcpu: &Vcpu| vcpu.attributes().slice() == slices.throughput;
    wait("the first thread's slice", || has_it(&first).then_some(()));
    let second = Vcpu::start(1);
    wait("the slice of one that came later", || has_it(&second).then_some(()));
    let status = wait("two threads in the status", || {
        lock(&port.vcpu).clone().filter(|status| status.threads >= 2)
    });
    assert_eq!((status.policy.as_str(), status.slice_us), ("throughput", 30_000));
    assert_eq!(status.problem, None);
    drop(keeper);
    assert_eq!((first.attributes(), second.attributes()), (before, before));
}

#[test]
fn a_vm_that_is_not_there_is_said() {
    let port = port(Vm::Qmp("/nonexistent/vm.qmp".into()), Policy::Latency);
    let _keeper = Keeper::start(&[Arc::clone(&port)], Slices::default()).unwrap();
    let status = wait("a status", || lock(&port.vcpu).clone());
    let problem = status.problem.expect("a problem");
    assert!(problem.starts_with("qmp /nonexistent/vm.qmp: "), "{problem}");
    assert_eq!(status.threads, 0);
}

#[test]
fn no_port_no_keeper() {
    assert!(Keeper::start(&[], Slices::default()).unwrap().is_none());
}
