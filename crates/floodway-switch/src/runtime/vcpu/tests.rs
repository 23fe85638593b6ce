//! The controller with VMs that are a few threads of this process, and with QMP servers that misbehave.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use floodway_core::l2::{MacTables, PortId};

use super::sched::{Attributes, SliceError, set_slice};
use super::{ManagedVm, Policy, SliceController, Slices};
use crate::config::{PortConfig, VcpuConfig, Vm};
use crate::events::PortEvents;
use crate::state::port::Port;
use crate::state::tables::Tables;
use crate::sync::lock;
use crate::sync::waker::Waker;
use crate::testing::wait;

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
        queue_bytes: 1 << 20,
        vcpu: Some(VcpuConfig { vm, policy }),
        ..PortConfig::new("vm1", "unused")
    };
    let table = MacTables::new([0; 2], Duration::from_secs(1));
    let waker = Arc::new(Waker::new().unwrap());
    let events = PortEvents::new(Arc::default());
    Arc::new(Port::new(PortId(0), config, waker, Arc::new(Tables::new(table)), events))
}

fn start(ports: &[Arc<Port>], slices: Slices) -> std::io::Result<Option<SliceController>> {
    SliceController::start(ports.iter().filter_map(ManagedVm::of).collect(), slices)
}

/// Answers as QEMU does, for ever, with `cpus` as the threads.
fn serve_qmp(socket: &Path, cpus: &str) {
    let listener = UnixListener::bind(socket).unwrap();
    let cpus = cpus.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"{\"QMP\": {}}\r\n");
            for command in BufReader::new(stream.try_clone().unwrap()).lines() {
                let asks = command.unwrap_or_default().contains("query-cpus-fast");
                let value = if asks { &cpus } else { "{}" };
                let _ = stream.write_all(format!("{{\"return\": {value}}}\r\n").as_bytes());
            }
        }
    });
}

/// A process that is no descendant of this one. It ends by itself, soon after the test.
fn stranger() -> i32 {
    let script = "sleep 60 >/dev/null 2>&1 & echo $!";
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// A child, killed at the end.
struct Descendant(Child);

impl Descendant {
    fn start() -> Self {
        Self(Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Descendant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn problem_of(port: &Port) -> String {
    wait("a problem", || lock(&port.vcpu).clone().and_then(|status| status.problem))
}

/// Makes the calling thread, and what it starts, ordinary: tests may run as SCHED_IDLE. Returns `None` if this kernel has no slices, else
/// a guard under which tests take turns, since a port whose VM is this process looks after all of its vCPU threads.
fn alone_if_supported() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let mut ordinary = Attributes::new(libc::SCHED_OTHER);
    ordinary.nice = Attributes::of(0).unwrap().nice;
    ordinary.apply(0).unwrap();
    let probe = thread::spawn(|| set_slice(0, Duration::from_millis(1)));
    let supported = !matches!(probe.join().unwrap(), Err(SliceError::Unsupported));
    supported.then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

#[test]
fn slices_are_set_and_given_back() {
    let Some(_alone) = alone_if_supported() else { return };
    let first = Vcpu::start(0);
    let before = first.attributes();
    let port = port(Vm::Pid(std::process::id()), Policy::Throughput);
    let slices = Slices { look_every: Duration::from_millis(5), ..Slices::default() };
    let controller = start(&[Arc::clone(&port)], slices).unwrap().expect("a controller");
    let has_it = |vcpu: &Vcpu| vcpu.attributes().slice() == slices.throughput;
    wait("the first thread's slice", || has_it(&first).then_some(()));
    let second = Vcpu::start(1);
    wait("the slice of one that came later", || has_it(&second).then_some(()));
    let status = wait("two threads in the status", || {
        lock(&port.vcpu).clone().filter(|status| status.threads >= 2)
    });
    assert_eq!((status.policy.as_str(), status.slice_us), ("throughput", 30_000));
    assert_eq!(status.problem, None);
    drop(controller);
    assert_eq!((first.attributes(), second.attributes()), (before, before));
}

#[test]
fn a_vm_that_is_not_there_is_said() {
    let port = port(Vm::Qmp("/nonexistent/vm.qmp".into()), Policy::Latency);
    let _keeper = start(&[Arc::clone(&port)], Slices::default()).unwrap();
    let status = wait("a status", || lock(&port.vcpu).clone());
    let problem = status.problem.expect("a problem");
    assert!(problem.starts_with("qmp /nonexistent/vm.qmp: "), "{problem}");
    assert_eq!(status.threads, 0);
}

#[test]
fn no_port_no_keeper() {
    assert!(start(&[], Slices::default()).unwrap().is_none());
}

#[test]
fn threads_of_other_processes_are_left_alone_whatever_the_socket_says() {
    let Some(_alone) = alone_if_supported() else { return };
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("qmp");
    let (own, stranger) = (Vcpu::start(0), stranger());
    let before = (own.attributes(), Attributes::of(stranger).unwrap());
    serve_qmp(&socket, &format!("[{{\"thread-id\": {}}}, {{\"thread-id\": {stranger}}}]", own.id));
    let port = port(Vm::Qmp(socket), Policy::Throughput);
    let _keeper = start(&[Arc::clone(&port)], Slices::default()).unwrap();
    let problem = problem_of(&port);
    assert!(problem.contains(&format!("thread {stranger}")), "{problem}");
    assert!(problem.contains(&format!("process {}", std::process::id())), "{problem}");
    assert_eq!((own.attributes(), Attributes::of(stranger).unwrap()), before);
}

#[test]
fn threads_of_the_peers_process_and_of_its_children_get_slices() {
    let Some(_alone) = alone_if_supported() else { return };
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("qmp");
    let (own, child) = (Vcpu::start(0), Descendant::start());
    let child_id = child.0.id().cast_signed();
    serve_qmp(&socket, &format!("[{{\"thread-id\": {}}}, {{\"thread-id\": {child_id}}}]", own.id));
    let port = port(Vm::Qmp(socket), Policy::Throughput);
    let _keeper = start(&[Arc::clone(&port)], Slices::default()).unwrap();
    let slice = Slices::default().throughput;
    wait("the slices", || {
        let child = Attributes::of(child_id).unwrap();
        (own.attributes().slice() == slice && child.slice() == slice).then_some(())
    });
    let status = wait("a status", || lock(&port.vcpu).clone());
    assert_eq!((status.threads, status.problem), (2, None));
}

/// One does not accept and its backlog is full, one never says anything, one says something all the time.
#[test]
fn a_vm_that_is_stuck_delays_no_other_and_not_the_end() {
    let Some(_alone) = alone_if_supported() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let _full = full_backlog(&path("full"));
    let _silent = UnixListener::bind(path("silent")).unwrap();
    let chatty = UnixListener::bind(path("chatty")).unwrap();
    thread::spawn(move || {
        for stream in chatty.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || while stream.write_all(b" ").is_ok() {});
        }
    });
    let good = Vcpu::start(0);
    serve_qmp(&path("good"), &format!("[{{\"thread-id\": {}}}]", good.id));
    let ports =
        ["full", "silent", "chatty", "good"].map(|n| port(Vm::Qmp(path(n)), Policy::Throughput));
    let before = good.attributes();
    let slices = Slices { look_every: Duration::from_millis(100), ..Slices::default() };
    let controller = start(&ports, slices).unwrap();
    wait("the good VM's slice", || (good.attributes().slice() == slices.throughput).then_some(()));
    for (port, problem) in ports.iter().zip(["another client", "no answer", ""]) {
        wait("what is wrong with each other one", || {
            let found = problem_of(port);
            (!found.is_empty() && found.contains(problem)).then_some(())
        });
    }
    drop(controller);
    assert_eq!(good.attributes(), before);
}

/// A socket on which a connect(2) that may wait would wait for ever.
fn full_backlog(path: &Path) -> (UnixListener, Vec<UnixStream>) {
    let listener = UnixListener::bind(path).unwrap();
    // SAFETY: listen on a socket that is open; a second call only changes its backlog.
    assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) }, 0);
    let waiting = std::iter::from_fn(|| connect_at_once(path)).collect();
    (listener, waiting)
}

/// Connects, unless that would wait.
fn connect_at_once(path: &Path) -> Option<UnixStream> {
    use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    net::connect(&fd, &SocketAddrUnix::new(path).unwrap()).ok()?;
    Some(fd.into())
}
