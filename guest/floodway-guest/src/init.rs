//! Process 1 of a guest.
//!
//! It must never end, as the kernel panics then. Every failure is printed to the console, which
//! the lab keeps in a file, and is survived: a guest that boots half can still say what is wrong.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::mount::{MountFlags, mount};
use rustix::process::{WaitOptions, wait};
use rustix::system::{finit_module, sethostname};

/// Lists the modules to load, one path a line, dependencies first. Written by the image builder.
const MODULE_LIST: &str = "/etc/floodway/modules";
/// Names the guest on the kernel's command line.
const NAME_PARAMETER: &str = "floodway.name=";
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Pause before an agent that has ended is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// Connections that programs have left to the kernel, at most: it resets those beyond. Its own limit in a small guest is 2048, and with long round trips more than that may be waiting for
/// their last ACK at the end of an experiment.
const MAX_ORPHANS: (&str, &str) = ("/proc/sys/net/ipv4/tcp_max_orphans", "65536");

/// File systems: source, target, type.
const MOUNTS: [(&str, &str, &str); 8] = [
    ("proc", "/proc", "proc"),
    ("sysfs", "/sys", "sysfs"),
    ("devtmpfs", "/dev", "devtmpfs"),
    ("devpts", "/dev/pts", "devpts"),
    ("tmpfs", "/run", "tmpfs"),
    ("tmpfs", "/tmp", "tmpfs"),
    ("bpf", "/sys/fs/bpf", "bpf"),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2"),
];

/// Boots the user space and keeps the agent running for ever.
pub fn run() -> ! {
    for (source, target, kind) in MOUNTS {
        complain(mount_one(source, target, kind));
    }
    complain(load_modules());
    complain(name_host());
    complain(fs::write(MAX_ORPHANS.0, MAX_ORPHANS.1).context(MAX_ORPHANS.0));
    complain(command("ip").args(["link", "set", "lo", "up"]).status().map_err(Into::into));
    loop {
        complain(keep_agent());
        sleep(RESTART_PAUSE);
    }
}

fn complain<T>(result: Result<T>) {
    if let Err(error) = result {
        eprintln!("init: {error:#}");
    }
}

fn mount_one(source: &str, target: &str, kind: &str) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("mkdir {target}"))?;
    mount(source, target, kind, MountFlags::empty(), None)
        .with_context(|| format!("cannot mount {kind} on {target}"))
}

fn load_modules() -> Result<()> {
    let list =
        fs::read_to_string(MODULE_LIST).with_context(|| format!("cannot read {MODULE_LIST}"))?;
    for path in list.lines() {
        complain(load_module(Path::new(path)));
    }
    Ok(())
}

fn load_module(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    finit_module(file, c"", 0).with_context(|| format!("cannot load {}", path.display()))
}

fn name_host() -> Result<()> {
    let command_line = fs::read_to_string("/proc/cmdline")?;
    let name = command_line.split_whitespace().find_map(|word| word.strip_prefix(NAME_PARAMETER));
    sethostname(name.unwrap_or("guest").as_bytes()).context("cannot set the host name")
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", SEARCH_PATH).env("HOME", "/").current_dir("/");
    command
}

/// Starts the agent and reaps orphans until it ends.
fn keep_agent() -> Result<()> {
    let agent = command("/init").arg("agent").spawn().context("cannot start the agent")?;
    loop {
        // Not `agent.wait()`: whatever dies in the guest without a parent must be reaped here.
        let (pid, status) =
            wait(WaitOptions::empty())?.ok_or_else(|| anyhow!("wait returned without a child"))?;
        if u32::try_from(pid.as_raw_nonzero().get()) == Ok(agent.id()) {
            return Err(anyhow!("the agent has ended ({status:?}); starting it again"));
        }
    }
}
