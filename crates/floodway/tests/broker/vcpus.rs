//! vCPU threads that the broker looks after.

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use floodway_switch::runtime::vcpu::sched::{Attributes, SliceError, set_slice};
use floodway_switch::testing::{wait, wait_until};

use crate::scene::{Scene, signal};

/// Tests may run as SCHED_IDLE, in which threads have no slices.
fn become_ordinary() {
    let mut ordinary = Attributes::new(libc::SCHED_OTHER);
    ordinary.nice = Attributes::of(0).unwrap().nice;
    ordinary.apply(0).unwrap();
}

/// Runs `body` with the number of a thread of this process that is named like a vCPU. Tests take turns, since a port whose VM is this
/// process looks after all of its vCPU threads.
fn with_vcpu(body: impl FnOnce(i32)) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let (end, wait) = mpsc::channel::<()>();
        let (say, hear) = mpsc::channel();
        let vcpu = move || {
            become_ordinary();
            // SAFETY: gettid takes no arguments and cannot fail.
            say.send(unsafe { libc::gettid() }).unwrap();
            let _ = wait.recv();
        };
        let name = "CPU 0/TCG".to_owned();
        thread::Builder::new().name(name).spawn_scoped(scope, vcpu).unwrap();
        body(hear.recv().unwrap());
        drop(end);
    });
}

/// Returns `true` if this kernel lets the slice of a thread be set (Linux 6.12).
fn kernel_has_slices() -> bool {
    let probe = thread::spawn(|| {
        become_ordinary();
        set_slice(0, Duration::from_millis(1))
    });
    let has = !matches!(probe.join().unwrap(), Err(SliceError::Unsupported));
    if !has {
        eprintln!("skipped: this kernel has no slices of threads");
    }
    has
}

#[test]
fn slices_of_vcpus_outlive_a_data_plane_and_end_with_the_broker() {
    if !kernel_has_slices() {
        return;
    }
    with_vcpu(|thread| {
        let before = Attributes::of(thread).unwrap();
        let vcpu = format!("[port.vcpu]\npid = {}\npolicy = \"latency\"\n", std::process::id());
        let mut scene = Scene::start_with(&vcpu);
        let shown = |scene: &Scene| scene.status().unwrap()["ports"][1]["vcpu"].clone();
        wait_until("the slice", || shown(&scene)["threads"] == 1);
        let expected = serde_json::json!(
            { "policy": "latency", "slice_us": 500, "threads": 1, "problem": null }
        );
        assert_eq!(shown(&scene), expected);
        assert_eq!(Attributes::of(thread).unwrap().slice(), Duration::from_micros(500));
        signal(scene.data_plane(), libc::SIGKILL);
        // It is known from the start on, and not only after the next look.
        wait("another data plane", || scene.status());
        assert_eq!(shown(&scene), expected);
        signal(scene.broker.id().into(), libc::SIGTERM);
        assert_eq!(scene.broker.wait().unwrap().code(), Some(0));
        assert_eq!(Attributes::of(thread).unwrap(), before);
    });
}

#[test]
fn vcpus_of_a_port_that_comes_are_looked_after_until_it_goes() {
    if !kernel_has_slices() {
        return;
    }
    with_vcpu(|thread| {
        let before = Attributes::of(thread).unwrap();
        let scene = Scene::start();
        let socket = format!("socket={}", scene.path("vm3.sock").display());
        let process = format!("vcpu.pid={}", std::process::id());
        let done = |words: &[&str]| {
            let output = scene.output(words);
            assert!(output.status.success(), "{words:?}: {output:?}");
        };
        done(&["port", "add", "vm3", &socket, &process, "vcpu.policy=latency"]);
        let shown = || scene.status().map(|status| status["ports"][2]["vcpu"]["threads"].clone());
        wait_until("the slice", || shown() == Some(1.into()));
        assert_eq!(Attributes::of(thread).unwrap().slice(), Duration::from_micros(500));
        signal(scene.data_plane(), libc::SIGKILL);
        wait("another data plane", || scene.status());
        assert_eq!(shown(), Some(1.into()));
        done(&["port", "del", "vm3"]);
        assert_eq!(Attributes::of(thread).unwrap(), before);
        // Nothing of it is left for whoever has its number next.
        done(&["port", "add", "vm3", &socket]);
        assert_eq!(shown(), Some(serde_json::Value::Null));
    });
}
