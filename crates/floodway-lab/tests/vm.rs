//! Real VMs: boot, commands, files, hogs, scheduling, cleanup. Needs root.
//!
//! Timeouts only decide hangs: nothing here asserts how long something takes.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use floodway_lab::agent::{Command, Hog, Interface};
use floodway_lab::guest_image::GuestImage;
use floodway_lab::kernel::Series;
use floodway_lab::vm::{Config, Nic, Vm};
use floodway_lab::{cleanup, process, vcpu};

/// Far longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(300);

/// The image of Debian's own kernel, made once for all tests.
fn image() -> &'static GuestImage {
    static IMAGE: OnceLock<GuestImage> = OnceLock::new();
    IMAGE.get_or_init(|| GuestImage::debian(Series::V6_1).unwrap())
}

fn boot(name: &str) -> Vm {
    Vm::boot(Config::new(name, image())).unwrap()
}

/// Looks again and again until `condition` holds.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn both_kernels_boot_and_run_stock_debian_programs() {
    let configs = Series::ALL.map(|series| {
        let image = GuestImage::debian(series).unwrap();
        Config::new(format!("kernel-{}", series.to_string().replace('.', "-")), &image)
    });
    let vms = Vm::boot_all(configs.to_vec()).unwrap();
    for (vm, series) in vms.iter().zip(Series::ALL) {
        let release = vm.agent().exec(&["uname", "-r"]).unwrap().stdout_text();
        assert!(release.starts_with(&format!("{series}.")), "{release}");
        assert_eq!(release.trim(), vm.hello().kernel);
        assert_eq!(vm.agent().exec(&["hostname"]).unwrap().stdout_text().trim(), vm.name());
        for program in ["iperf3", "ip", "ss", "tc", "nstat", "ethtool"] {
            let flag = if program == "iperf3" || program == "ethtool" { "--version" } else { "-V" };
            let output = vm.agent().exec(&[program, flag]).unwrap();
            assert!(!output.stdout.is_empty(), "{program}");
        }
        // A congestion control that is a module: the kernel finds it through modprobe.
        vm.agent().exec(&["sysctl", "-w", "net.ipv4.tcp_congestion_control=bbr"]).unwrap();
        assert!(!vm.console().contains("init: "), "{}", vm.console());
    }
    for vm in vms {
        assert!(vm.shut_down(LONG).unwrap().success());
    }
}

#[test]
fn commands_files_and_jobs() {
    let vm = boot("calls");
    let agent = vm.agent();

    let script = "cat; echo \"$GREETING\" >&2; exit 3";
    let command = Command {
        argv: ["sh", "-c", script].map(String::from).to_vec(),
        env: [("GREETING".to_owned(), "hi".to_owned())].into(),
        dir: Some("/tmp".into()),
    };
    let output = agent.exec_command(&command, b"input", LONG).unwrap();
    assert_eq!((output.exit.code, output.exit.signal), (Some(3), None));
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"input"[..], &b"hi\n"[..]));
    let error = agent.exec(&["sh", "-c", "echo no >&2; exit 1"]).unwrap_err().to_string();
    assert!(error.contains("sh -c") && error.ends_with(": no"), "{error}");
    let error = agent.exec(&["/no/such/program"]).unwrap_err();
    assert!(format!("{error:#}").contains("/no/such/program"), "{error:#}");
    let stuck = agent.exec_within(&["sleep", "100000"], Duration::from_millis(200));
    assert!(stuck.unwrap_err().to_string().contains("still ran"));

    // Larger than any frame, and not a multiple of one; contents that hold the frames' magic.
    let bytes: Vec<u8> = b"FWga\0\0\0\x01".iter().copied().cycle().take(3_000_001).collect();
    agent.put(&bytes, "/tmp/dir/file", 0o750).unwrap();
    assert!(agent.get("/tmp/dir/file").unwrap() == bytes);
    let mode = agent.exec(&["stat", "-c", "%a", "/tmp/dir/file"]).unwrap().stdout_text();
    assert_eq!(mode.trim(), "750");
    let copy = cleanup::run_dir().unwrap().join("copy");
    agent.get_file("/tmp/dir/file", &copy).unwrap();
    assert!(std::fs::read(&copy).unwrap() == bytes);
    let sum = agent.exec(&["sha256sum", "/tmp/dir/file"]).unwrap().stdout_text();
    assert!(sum.starts_with(&agent.sha256("/tmp/dir/file").unwrap()), "{sum}");
    agent.put(b"", "/tmp/empty", 0o644).unwrap();
    assert!(agent.get("/tmp/empty").unwrap().is_empty());
    // Output larger than a frame, too.
    assert!(agent.exec(&["cat", "/tmp/dir/file"]).unwrap().stdout == bytes);

    let job = agent.spawn(&["sh", "-c", "echo started; exec sleep 100000"]).unwrap();
    assert_eq!(agent.wait(&job, Duration::from_millis(50)).unwrap(), None);
    wait_until("output of the job", || agent.get(&job.stdout).unwrap() == b"started\n");
    agent.signal(&job, libc::SIGTERM).unwrap();
    let exit = agent.wait(&job, LONG).unwrap().unwrap();
    assert_eq!((exit.code, exit.signal), (None, Some(libc::SIGTERM)));
    assert_eq!(agent.wait(&job, LONG).unwrap().unwrap().signal, Some(libc::SIGTERM));
}

#[test]
fn the_agent_survives_reconnects_garbage_and_its_own_death() {
    let vm = boot("robust");
    let agent = vm.agent();

    // Many calls at once, and a reconnect in the middle of the long ones.
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| agent.exec(&["sleep", "100000"]));
        let calls: Vec<_> = (0..32)
            .map(|n| {
                scope.spawn(move || agent.exec(&["echo", &n.to_string()]).unwrap().stdout_text())
            })
            .collect();
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.join().unwrap().trim(), n.to_string());
        }
        wait_until("sleep to run", || agent.exec(&["pidof", "sleep"]).is_ok());
        agent.reconnect();
        assert!(
            sleeper.join().unwrap().unwrap_err().chain().any(|e| e.to_string().contains("lost"))
        );
    });
    let first = agent.hello(LONG).unwrap();

    // A reconnect in the middle of a large transfer in both directions leaves half frames behind.
    for _ in 0..5 {
        std::thread::scope(|scope| {
            let transfers = [
                scope.spawn(|| agent.put(&vec![7; 20_000_000], "/tmp/big", 0o600)),
                scope.spawn(|| agent.exec(&["head", "-c", "20000000", "/dev/zero"]).map(drop)),
            ];
            agent.clock().unwrap();
            agent.reconnect();
            for transfer in transfers {
                // Either is fine: done before the reconnect, or told of it.
                let _ = transfer.join().unwrap();
            }
        });
        assert_eq!(agent.hello(LONG).unwrap(), first);
    }

    // Process 1 starts a killed agent again, and whoever saw it die is told. Amid output, it mostly
    // dies in the middle of a frame.
    std::thread::scope(|scope| {
        let output = scope.spawn(|| agent.exec(&["cat", "/dev/zero"]));
        wait_until("cat to run", || agent.exec(&["pidof", "cat"]).is_ok());
        assert!(agent.exec(&["kill", "-9", &first.pid.to_string()]).is_err());
        assert!(output.join().unwrap().is_err());
    });
    wait_until("a new agent", || {
        agent.hello(LONG).is_ok_and(|hello| hello.pid != first.pid && hello.kernel == first.kernel)
    });
    assert_eq!(agent.exec(&["echo", "alive"]).unwrap().stdout_text(), "alive\n");
}

#[test]
fn hogs_use_the_cpu_they_should() {
    let mut config = Config::new("hogs", image());
    config.vcpus = 2;
    let vm = Vm::boot(config).unwrap();
    let threads = vm.vcpu_threads().unwrap();
    assert_eq!((threads.len(), vm.hello().vcpus), (2, 2));
    let others = vm.other_threads().unwrap();
    assert!(!others.is_empty() && others.iter().all(|thread| !threads.contains(thread)));

    let hog = Hog { duty: 0.5, period_us: 20_000, vcpus: vec![1], nice: 0 };
    let before = vcpu::schedstat(threads[1]).unwrap().run;
    vm.agent().hog_start(&hog).unwrap();
    // CPU time, not clock time, ends the wait: it grows only if the hog is really busy.
    wait_until("half a second of CPU time", || {
        vcpu::schedstat(threads[1]).unwrap().run > before + Duration::from_millis(500)
    });
    let used = vm.agent().hog_stop().unwrap();
    assert_eq!((used.len(), used[0].vcpu), (1, 1));
    assert!(used[0].periods > 0 && used[0].rounds > 0 && used[0].cpu_ns > 0, "{used:?}");
    // No phase is shorter than asked, however loaded the host is.
    assert!(used[0].busy_ns >= used[0].periods * 10_000_000, "{used:?}");
    assert!(used[0].idle_ns >= used[0].periods * 10_000_000, "{used:?}");
    let refused = vm.agent().hog_start(&Hog { duty: 2.0, ..hog }).unwrap_err().to_string();
    assert!(refused.contains("duty 2"), "{refused}");

    vcpu::pin(threads[0], &[0]).unwrap();
    vcpu::set_slice(threads[0], Duration::from_millis(3)).unwrap();
    assert_eq!(vcpu::slice(threads[0]).unwrap(), Duration::from_millis(3));
    vcpu::set_round_robin(threads[1], 1).unwrap();
    // A real-time vCPU still serves its guest.
    vm.agent().exec(&["true"]).unwrap();
    vcpu::set_slice(threads[1], Duration::from_millis(30)).unwrap();
    assert!(vcpu::process_cpu_time(vm.pid()).unwrap() > before);
}

#[test]
fn a_tap_carries_streams_whose_digests_agree() {
    let tap = cleanup::interface_name("stream").unwrap();
    let mut nic = Nic::tap(&tap, "52:54:00:00:00:01");
    nic.mtu = Some(1400);
    let vm = Vm::boot(Config::new("stream", image()).nic(nic)).unwrap();
    process::run(&["ip", "addr", "add", "10.250.7.1/24", "dev", &tap]).unwrap();
    process::run(&["ip", "link", "set", &tap, "up"]).unwrap();
    let agent = vm.agent();
    let eth0 = Interface {
        name: "eth0".into(),
        mac: Some("52:54:00:00:00:77".into()),
        mtu: Some(1300),
        addresses: vec!["10.250.7.2/24".into(), "fd00:7::2/64".into()],
        offloads: vec![("tso".into(), false)],
        ..Interface::default()
    };
    agent.configure_interface(&eth0).unwrap();
    let link = agent.exec(&["ip", "-d", "addr", "show", "eth0"]).unwrap().stdout_text();
    for part in ["mtu 1300", "52:54:00:00:00:77", "10.250.7.2/24", "fd00:7::2/64", "maxmtu 1400"] {
        assert!(link.contains(part), "{part}: {link}");
    }

    let before = agent.counters().unwrap();
    let listening = agent.stream_listen("10.250.7.2:0".parse().unwrap()).unwrap();
    let bytes = 5_000_001;
    let (sent, received) = std::thread::scope(|scope| {
        let received = scope.spawn(|| agent.stream_receive(&listening, LONG).unwrap());
        let sent = floodway_guest::stream::send(listening.address, bytes, 42, LONG).unwrap();
        (sent, received.join().unwrap())
    });
    assert_eq!((received.bytes, &received.sha256), (bytes, &sent.sha256));
    agent.stream_close(&listening).unwrap();

    let listener = std::net::TcpListener::bind("10.250.7.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sent, received) = std::thread::scope(|scope| {
        let received = scope.spawn(|| floodway_guest::stream::receive(&listener, LONG).unwrap());
        (agent.stream_send(address, bytes, 43, LONG).unwrap(), received.join().unwrap())
    });
    assert_eq!((received.bytes, &received.sha256), (bytes, &sent.sha256));
    let after = agent.counters().unwrap();
    assert!(after["TcpInSegs"] > before["TcpInSegs"]);
    assert_eq!(after["TcpInCsumErrors"], 0);

    let offset = agent.clock_offset().unwrap();
    assert!(offset.uncertainty_ns > 0);
    drop(vm);
    assert!(!Path::new("/sys/class/net").join(&tap).exists());
}

#[test]
fn a_boot_that_fails_says_why() {
    let mut config = Config::new("broken", image());
    // The kernel panics without a first process, and `-no-reboot` makes that the end of QEMU.
    config.kernel_parameters = "rdinit=/no/such/init init=/no/such/init".into();
    let text = format!("{:#}", Vm::boot(config).unwrap_err());
    for part in ["VM broken is not up", "Kernel panic"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let bad = Config { memory_mib: 1, ..Config::new("small", image()) };
    assert!(Vm::boot(bad).unwrap_err().to_string().starts_with("memory_mib 1"));
    let bad = Config::new("no spaces", image());
    assert!(Vm::boot(bad).unwrap_err().to_string().contains("`no spaces`"));
}

#[test]
fn a_dropped_vm_leaves_nothing() {
    let vm = boot("dropped");
    let pid = vm.pid();
    let dir = || std::fs::read_dir(cleanup::run_dir().unwrap()).unwrap().flatten();
    assert!(dir().any(|entry| entry.file_name().to_string_lossy().ends_with("-dropped")));
    drop(vm);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(vcpu::process_cpu_time(pid).is_err());
    assert!(!dir().any(|entry| entry.file_name().to_string_lossy().ends_with("-dropped")));
}
