//! The sandbox, from inside: what is refused, and that what the data plane does still works.
//!
//! Each case confines a process for good, which must have one thread. So there is no harness: the program runs itself again for each case.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use floodway_process::channel::{Channel, Received};
use floodway_process::message::{Confinement, FromPort, Handled, ToPort};
use floodway_process::sandbox::{self, SandboxError, User};

const CASE: &str = "FLOODWAY_TEST_SANDBOX_CASE";
/// Of nobody in particular, in the range for dynamic users.
const SOMEBODY: User = User { uid: 61_999, gid: 61_999 };

type Case = fn();

const CASES: &[(&str, Case)] = &[
    ("paths_are_refused", paths_are_refused),
    ("sockets_to_others_are_refused", sockets_to_others_are_refused),
    ("forbidden_calls_are_refused", forbidden_calls_are_refused),
    ("rights_are_gone", rights_are_gone),
    ("executable_memory_is_refused", executable_memory_is_refused),
    ("threads_run_and_processes_do_not", threads_run_and_processes_do_not),
    ("messages_come_with_descriptors", messages_come_with_descriptors),
    ("clients_are_accepted", clients_are_accepted),
    ("what_workers_call_is_allowed", what_workers_call_is_allowed),
    ("a_process_with_two_threads_is_refused", a_process_with_two_threads_is_refused),
    ("root_is_refused", root_is_refused),
];

fn main() -> ExitCode {
    if let Some(name) = std::env::var_os(CASE) {
        let case = CASES.iter().find(|(case, _)| **case == *name).expect("a case of this name");
        case.1();
        return ExitCode::SUCCESS;
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let chosen = |name: &str| filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()));
    let run = |name: &str| {
        let this = std::env::current_exe().expect("this program");
        let status = Command::new(this).env(CASE, name).status().expect("a child");
        println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        status.success()
    };
    let results: Vec<_> =
        CASES.iter().filter(|(name, _)| chosen(name)).map(|(name, _)| run(name)).collect();
    let failed = results.iter().filter(|&&passed| !passed).count();
    println!("{} passed, {failed} failed", results.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn confine() -> Confinement {
    // Who is not root cannot become somebody else.
    sandbox::enter(is_root().then_some(SOMEBODY)).expect("confined")
}

/// The error of the system call that has just failed.
fn refused<T>(result: io::Result<T>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).expect("refused by the system")
}

fn refused_call(result: i64) -> i32 {
    assert_eq!(result, -1, "the call was not refused");
    io::Error::last_os_error().raw_os_error().expect("an error")
}

fn paths_are_refused() {
    let directory = std::env::temp_dir();
    let before = File::open("/proc/self/status").expect("a path, before");
    assert_ne!(confine(), Confinement::Off);
    assert_eq!(refused(File::open("/proc/self/status")), libc::EPERM);
    assert_eq!(refused(File::open("/etc/hostname")), libc::EPERM);
    assert_eq!(refused(File::create(directory.join("floodway-test"))), libc::EPERM);
    assert_eq!(refused(std::fs::remove_file(directory.join("floodway-test"))), libc::EPERM);
    assert_eq!(refused(std::fs::read_dir("/")), libc::EPERM);
    let mut text = String::new();
    (&before).read_to_string(&mut text).expect("a file that was open before");
}

/// Somebody who listens at a path.
fn listener(name: &str) -> (UnixListener, PathBuf) {
    let path = std::env::temp_dir().join(format!("floodway-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    (UnixListener::bind(&path).expect("a socket"), path)
}

fn sockets_to_others_are_refused() {
    let (_listener, path) = listener("refused");
    let unconnected = UnixDatagram::unbound().expect("a socket, before");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port, before");
    // SAFETY: takes no pointers; the new descriptor has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)) };
    let address = rustix::net::SocketAddrUnix::new(&path).expect("a short path");
    UnixStream::connect(&path).expect("a connection, before");
    confine();
    assert_eq!(refused(UnixStream::connect(&path)), libc::EPERM);
    assert_eq!(refused(TcpStream::connect(tcp.local_addr().expect("it"))), libc::EPERM);
    // With a socket from before, too.
    assert_eq!(rustix::net::connect(&socket, &address), Err(rustix::io::Errno::PERM));
    assert_eq!(rustix::net::bind(&socket, &address), Err(rustix::io::Errno::PERM));
    assert_eq!(refused(unconnected.send_to(b"x", &path)), libc::EPERM);
}

fn forbidden_calls_are_refused() {
    let (a, _b) = UnixStream::pair().expect("a pair");
    let fd = a.as_raw_fd();
    confine();
    // SAFETY: whatever these would do, they are refused; pointers are null.
    unsafe {
        let refused = |number| refused_call(libc::syscall(number, 0, 0, 0, 0, 0, 0));
        for number in [
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_socket,
            libc::SYS_open,
            libc::SYS_openat2,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
            libc::SYS_kill,
            libc::SYS_process_vm_readv,
            libc::SYS_userfaultfd,
            libc::SYS_keyctl,
            libc::SYS_unshare,
            libc::SYS_memfd_create,
            libc::SYS_setuid,
        ] {
            assert_eq!(refused(number), libc::EPERM, "call {number}");
        }
        // Allowed calls with arguments that are not.
        let on = 1_i32;
        let option = |option| {
            let value = (&raw const on).cast();
            i64::from(libc::setsockopt(fd, libc::SOL_SOCKET, option, value, 4))
        };
        assert_eq!(refused_call(option(libc::SO_BROADCAST)), libc::EPERM);
        assert_eq!(refused_call(i64::from(libc::ioctl(fd, libc::TIOCSTI, &on))), libc::EPERM);
        let owner = libc::fcntl(fd, libc::F_SETOWN, libc::getpid());
        assert_eq!(refused_call(i64::from(owner)), libc::EPERM);
        assert_eq!(refused_call(i64::from(libc::prctl(libc::PR_SET_DUMPABLE, 1))), libc::EPERM);
    }
}

fn rights_are_gone() {
    let mut status = File::open("/proc/self/status").expect("a path, before");
    confine();
    let mut text = String::new();
    status.read_to_string(&mut text).expect("a file from before");
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), ["1"]);
    assert_eq!(field("Seccomp:"), ["2"]);
    if is_root_before(&field("Uid:")) {
        assert_eq!(field("CapBnd:"), ["0000000000000000"]);
        assert_eq!(field("Uid:"), vec!["61999"; 4]);
        assert_eq!(field("Gid:"), vec!["61999"; 4]);
        assert!(field("Groups:").is_empty());
    }
}

/// Only root becomes somebody else.
fn is_root_before(uids: &[String]) -> bool {
    uids[0] == SOMEBODY.uid.to_string()
}

fn executable_memory_is_refused() {
    confine();
    let map = |protection| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) }
    };
    assert_eq!(map(libc::PROT_READ | libc::PROT_EXEC), libc::MAP_FAILED);
    let page = map(libc::PROT_READ | libc::PROT_WRITE);
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: a page of our own.
    let rc = unsafe { libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_EXEC) };
    assert_eq!(refused_call(i64::from(rc)), libc::EPERM);
}

fn threads_run_and_processes_do_not() {
    confine();
    let sum = thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64).map(|n| scope.spawn(move || n)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum::<u64>()
    });
    assert_eq!(sum, 6);
    thread::Builder::new().name("worker-0".to_owned()).spawn(|| {}).expect("one with a name");
    // SAFETY: refused; otherwise the child ends at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        std::process::exit(0);
    }
    assert_eq!(refused_call(i64::from(pid)), libc::EPERM);
    assert_eq!(refused(Command::new("/bin/true").spawn()), libc::EPERM);
}

fn messages_come_with_descriptors() {
    let (broker, plane) = Channel::<ToPort, FromPort>::pair().expect("a channel");
    let (mut reader, writer) = io::pipe().expect("a pipe");
    let message = ToPort::Message { session: 1, number: 1, replayed: false, bytes: vec![1; 12] };
    broker.send(&message, &[writer.as_fd()]).expect("sent");
    drop(writer);
    confine();
    let Ok(Received::Message(received, descriptors)) = plane.recv() else { panic!("no message") };
    assert_eq!(received, message);
    for descriptor in descriptors {
        File::from(descriptor).write_all(b"there").expect("a descriptor of the broker's");
    }
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("a pipe");
    assert_eq!(text, "there");
    plane.send(&FromPort::Handled(Handled::default()), &[]).expect("an answer");
    assert!(matches!(broker.try_recv(), Ok(Received::Message(..))));
}

fn clients_are_accepted() {
    let (listener, path) = listener("accepted");
    let mut client = UnixStream::connect(path).expect("a client");
    confine();
    listener.set_nonblocking(true).expect("non-blocking");
    let (mut served, _) = listener.accept().expect("accepted");
    served.set_read_timeout(Some(Duration::from_secs(5))).expect("a time limit");
    client.write_all(b"GET").expect("asked");
    let mut bytes = [0; 3];
    served.read_exact(&mut bytes).expect("heard");
    served.try_clone().expect("another descriptor").write_all(&bytes).expect("answered");
    client.read_exact(&mut bytes).expect("an answer");
    assert_eq!(&bytes, b"GET");
}

fn what_workers_call_is_allowed() {
    confine();
    let check = |rc: i64, call: &str| assert!(rc >= 0, "{call}: {}", io::Error::last_os_error());
    // SAFETY: plain numbers, null pointers where they are allowed, and buffers of this frame.
    unsafe {
        check(libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0).into(), "PR_SET_TIMERSLACK");
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        check(epoll.into(), "epoll_create1");
        let event = libc::eventfd(0, libc::EFD_NONBLOCK);
        check(event.into(), "eventfd2");
        let mut interest = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let added = libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, event, &raw mut interest);
        check(added.into(), "epoll_ctl");
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let none = std::ptr::null::<libc::sigset_t>();
        let waited = libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll,
            &raw mut interest,
            1,
            &raw const now,
            none,
            0,
        );
        check(waited, "epoll_pwait2");
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        check(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set).into(), "getaffinity");
        check(libc::sched_setaffinity(0, size_of_val(&set), &raw const set).into(), "setaffinity");
        let link = format!("/proc/self/fd/{event}\0");
        let mut name = [0_u8; 64];
        let n = libc::readlink(link.as_ptr().cast(), name.as_mut_ptr().cast(), name.len());
        check(n as i64, "readlink");
        assert_eq!(&name[..n as usize], b"anon_inode:[eventfd]");
    }
}

fn a_process_with_two_threads_is_refused() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let second = thread::spawn(move || receiver.recv());
    let error = sandbox::enter(None).expect_err("refused");
    assert!(matches!(error, SandboxError::Threads(2)), "{error}");
    drop(sender);
    assert!(second.join().expect("a thread").is_err());
}

fn root_is_refused() {
    if is_root() {
        let error = sandbox::enter(None).expect_err("refused");
        assert!(matches!(error, SandboxError::Root), "{error}");
    }
}
