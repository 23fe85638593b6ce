//! Virtual machines: QEMU with an agent inside.
//!
//! # Theory of operation
//!
//! A VM boots a [`GuestImage`] in a directory of its own below the run's directory: control socket, agent
//! socket, console log, QEMU's messages. It is up when its agent answers. Guest memory is a shared memfd, as
//! vhost-user needs. Where KVM does not work ([`crate::accel`]), emulation runs each vCPU on a host thread of its own (`thread=multi`), so the host's scheduler treats vCPUs as it does under KVM; see
//! [`crate::vcpu`] for pinning and slices.
//!
//! A VM that does not come up says why: the error has the end of its console and QEMU's messages.

mod nic;
mod qmp;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use crate::accel::{self, Accelerator, QEMU};
use crate::agent::{Agent, Hello};
use crate::child::Process;
use crate::guest_image::GuestImage;
use crate::{cleanup, vcpu};

pub use nic::{Backend, Nic, Role};

/// Memory beyond what was asked for, so that no VM has a multiple of 256 KiB. QEMU 7.2 in emulation loses pages of a VM that
/// moves otherwise: it then takes dirty bits by the word, and does not tell the vCPU's TLB, whose later writes to these pages go
/// unnoticed. (Debian 12's package; mended in QEMU 9.0. KVM is not concerned.)
const ODD_KIB: u32 = 8;
/// How much of the console a failure shows, in lines.
const CONSOLE_TAIL: usize = 40;
/// How often a boot looks whether QEMU has ended.
const BOOT_POLL: Duration = Duration::from_secs(1);
/// How often a move is looked at.
const MIGRATE_POLL: Duration = Duration::from_millis(5);
/// How long QEMU may take to end after its sockets have closed, to be reported as ended.
const LAST_MOMENT: Duration = Duration::from_secs(5);
/// Longest path of a Unix socket.
const SOCKET_PATH_MAX: usize = 107;

/// What to boot.
#[derive(Debug, Clone)]
pub struct Config {
    /// For messages, and the guest's host name. Letters, digits and `-`.
    pub name: String,
    /// Kernel and initramfs.
    pub image: GuestImage,
    /// Memory in MiB, at least 128.
    pub memory_mib: u32,
    /// Number of vCPUs, at least 1.
    pub vcpus: u32,
    /// Network cards: `eth0`, `eth1`, ... in the guest.
    pub nics: Vec<Nic>,
    /// Network namespace that QEMU runs in (where its taps are); `None` is the lab's own.
    pub namespace: Option<String>,
    /// Further words for the guest kernel's command line.
    pub kernel_parameters: String,
    /// How long the boot may take. It decides hangs only.
    pub boot_timeout: Duration,
}

impl Config {
    /// A VM with one vCPU, 256 MiB, and no network card.
    #[must_use]
    pub fn new(name: impl Into<String>, image: &GuestImage) -> Self {
        Self {
            name: name.into(),
            image: image.clone(),
            memory_mib: 256,
            vcpus: 1,
            nics: Vec::new(),
            namespace: None,
            kernel_parameters: String::new(),
            boot_timeout: Duration::from_secs(300),
        }
    }

    /// Adds a network card.
    #[must_use]
    pub fn nic(mut self, nic: Nic) -> Self {
        self.nics.push(nic);
        self
    }
}

/// A running VM, killed when dropped.
#[derive(Debug)]
pub struct Vm {
    config: Config,
    agent: Agent,
    hello: Hello,
    process: Process,
    dir: Directory,
}

/// The VM's directory, removed when dropped.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    _guard: cleanup::Guard,
}

impl Vm {
    /// Boots a VM and waits until its agent answers.
    ///
    /// # Errors
    /// When QEMU does not start, or the guest does not come up in time; the error has the end of its console.
    pub fn boot(config: Config) -> Result<Self> {
        check(&config)?;
        let dir = Directory::create(&config.name)?;
        let process = start_qemu(&config, &dir.path, &[])?;
        let agent = Agent::open(&dir.path.join("agent.sock"))?;
        let hello = wait_for_agent(&config, &agent, &process, &dir.path)?;
        Ok(Self { config, agent, hello, process, dir })
    }

    /// Boots several VMs at once. When one fails, the others are killed.
    ///
    /// # Errors
    /// The first failure, as [`Vm::boot`].
    pub fn boot_all(configs: Vec<Config>) -> Result<Vec<Self>> {
        std::thread::scope(|scope| {
            let boots: Vec<_> =
                configs.into_iter().map(|config| scope.spawn(|| Self::boot(config))).collect();
            let booted: Vec<Result<Self>> = boots
                .into_iter()
                .map(|boot| boot.join().unwrap_or_else(|_| Err(anyhow!("a boot failed"))))
                .collect();
            booted.into_iter().collect()
        })
    }

    /// Begins to move the VM to nowhere, and gives up. At the start of a move QEMU looks at each page that was written since
    /// boot; in emulation the VM stands still for 0.1 s meanwhile. Afterwards that has been done, and the next
    /// move looks at what was written since. That one has to set `max-bandwidth` anew.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn begin_and_cancel_migration(&self) -> Result<()> {
        self.qmp("migrate-set-parameters", &json!({ "max-bandwidth": 1 }))?;
        self.qmp("migrate", &json!({ "uri": "exec:cat >/dev/null" }))?;
        self.wait_for_migration("active")?;
        self.qmp("migrate_cancel", &json!({}))?;
        self.wait_for_migration("cancelled").map(drop)
    }

    /// Waits until QEMU's migration is in a state, and answers what it says of it.
    fn wait_for_migration(&self, state: &str) -> Result<Value> {
        let deadline = Instant::now() + self.config.boot_timeout;
        loop {
            let migration = self.qmp("query-migrate", &json!({}))?;
            match migration["status"].as_str() {
                Some(status) if status == state => return Ok(migration),
                Some(status @ ("failed" | "cancelled" | "completed")) => {
                    bail!("VM {}: migration {status}, not {state}: {migration}", self.config.name)
                }
                _ => ensure!(Instant::now() < deadline, "VM {}: {migration}", self.config.name),
            }
            std::thread::sleep(MIGRATE_POLL);
        }
    }

    /// Moves the VM, which goes on running, into a new QEMU, whose cards may have other back-ends. `parameters` are QMP's
    /// `migrate-set-parameters`. Answers the VM and what QEMU says of the move (`query-migrate`: `downtime` and more, in ms). Open
    /// calls of its agent fail.
    ///
    /// # Errors
    /// When QEMU does not start or the move fails; the error has QEMU's messages.
    pub fn migrate(self, config: Config, parameters: &Value) -> Result<(Self, Value)> {
        check(&config)?;
        let dir = Directory::create(&config.name)?;
        let socket = dir.path.join("migrate.sock");
        let uri = format!("unix:{}", socket.display());
        let process = start_qemu(&config, &dir.path, &["-incoming", &uri])?;
        let deadline = Instant::now() + config.boot_timeout;
        while !socket.exists() {
            let ended = process.try_wait()?.is_some() || Instant::now() > deadline;
            ensure!(!ended, failure(&config, "it does not wait for its memory", &dir.path));
            std::thread::sleep(MIGRATE_POLL);
        }
        self.qmp("migrate-set-parameters", parameters)?;
        self.qmp("migrate", &json!({ "uri": uri }))?;
        let outcome = self
            .wait_for_migration("completed")
            .with_context(|| failure(&config, "it was not moved", &dir.path))?;
        let agent = Agent::open(&dir.path.join("agent.sock"))?;
        let hello = wait_for_agent(&config, &agent, &process, &dir.path)?;
        Ok((Self { config, agent, hello, process, dir }, outcome))
    }

    /// The name it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What it was booted with. To boot it again after its end, pass a clone to [`Vm::boot`].
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The agent inside.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// What the agent said of itself at boot: kernel release, vCPUs.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// QEMU's process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// QEMU's status when it has ended, `None` while it runs.
    ///
    /// # Errors
    /// When the kernel does not know the process.
    pub fn try_wait(&self) -> Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Host threads of the vCPUs, by vCPU.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn vcpu_threads(&self) -> Result<Vec<i32>> {
        let answer = self.qmp("query-cpus-fast", &json!({}))?;
        let mut vcpus = Vec::new();
        for vcpu in answer.as_array().context("query-cpus-fast: not a list")? {
            let field = |name| {
                vcpu.get(name)
                    .and_then(Value::as_i64)
                    .with_context(|| format!("query-cpus-fast: no {name}"))
            };
            vcpus.push((field("cpu-index")?, i32::try_from(field("thread-id")?)?));
        }
        vcpus.sort_unstable();
        Ok(vcpus.into_iter().map(|(_, thread)| thread).collect())
    }

    /// QEMU's other threads: main loop, and workers.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn other_threads(&self) -> Result<Vec<i32>> {
        let vcpus = self.vcpu_threads()?;
        let all = vcpu::threads(self.pid())?;
        Ok(all.into_iter().filter(|thread| !vcpus.contains(thread)).collect())
    }

    /// Runs a QMP command, for example `query-status` or `stop`.
    ///
    /// # Errors
    /// QEMU's error, or no answer.
    pub fn qmp(&self, command: &str, arguments: &Value) -> Result<Value> {
        qmp::execute(&self.dir.path.join("qmp.sock"), command, arguments)
    }

    /// The console from boot to now.
    #[must_use]
    pub fn console(&self) -> String {
        read_text(&self.dir.path.join("console.log"))
    }

    /// Powers the guest off and waits until QEMU has ended.
    ///
    /// # Errors
    /// When it does not end within `timeout`.
    pub fn shut_down(self, timeout: Duration) -> Result<ExitStatus> {
        self.agent.power_off()?;
        self.process.wait(timeout)
    }

    /// Kills QEMU (`SIGKILL`), as a power cut would.
    ///
    /// # Errors
    /// When it does not go.
    pub fn kill(self) -> Result<()> {
        self.process.kill()
    }
}

impl Directory {
    fn create(name: &str) -> Result<Self> {
        // Several VMs may have one name, one after the other or at once.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = cleanup::run_dir()?.join(format!("vm{count}-{name}"));
        ensure!(
            path.join("console.log").as_os_str().len() <= SOCKET_PATH_MAX,
            "VM name `{name}`: too long for the sockets in {}",
            path.display()
        );
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let to_remove = path.clone();
        let guard = cleanup::register(path.display().to_string(), move || {
            Ok(fs::remove_dir_all(&to_remove)?)
        })?;
        Ok(Self { path, _guard: guard })
    }
}

fn check(config: &Config) -> Result<()> {
    let name = &config.name;
    ensure!(
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'),
        "VM name `{name}`: must be of letters, digits and `-`"
    );
    ensure!(config.vcpus >= 1, "vcpus 0: a VM needs at least one");
    ensure!(config.memory_mib >= 128, "memory_mib {}: must be at least 128", config.memory_mib);
    Ok(())
}

fn start_qemu(config: &Config, dir: &Path, more: &[&str]) -> Result<Process> {
    let mut command = match &config.namespace {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace, QEMU]);
            command
        }
        None => Command::new(QEMU),
    };
    let accelerator = accel::of_process(&config.image.kernel)?;
    command.args(machine_arguments(config, &accelerator)).args(channel_arguments(dir)).args(more);
    for (index, nic) in config.nics.iter().enumerate() {
        let words = nic.arguments(index, &accelerator);
        command.args(words.with_context(|| format!("VM {}", config.name))?);
    }
    let messages = File::create(dir.join("qemu.log"))?;
    command.stdin(Stdio::null()).stdout(messages.try_clone()?).stderr(messages);
    Process::spawn(format!("VM {}", config.name), command)
        .with_context(|| format!("{QEMU}: `apt-get install qemu-system-x86` brings it"))
}

fn machine_arguments(config: &Config, accelerator: &Accelerator) -> Vec<String> {
    let memory = config.memory_mib * 1024 + ODD_KIB;
    // Without no_timer_check a guest that gets no CPU while it probes its timer panics ("IO-APIC +
    // timer doesn't work").
    let append = format!(
        "console=ttyS0 panic=-1 quiet net.ifnames=0 no_timer_check floodway.name={} {}",
        config.name, config.kernel_parameters
    );
    [
        "-name",
        &format!("{},debug-threads=on", config.name),
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-accel",
        accelerator.argument(),
        "-cpu",
        "max",
        "-smp",
        &config.vcpus.to_string(),
        "-m",
        &format!("{memory}K"),
        "-object",
        &format!("memory-backend-memfd,id=memory,size={memory}K,share=on"),
        "-machine",
        "pc,memory-backend=memory",
        "-kernel",
        &config.image.kernel.vmlinuz.to_string_lossy(),
        "-initrd",
        &config.image.initramfs.to_string_lossy(),
        "-append",
        append.trim_end(),
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Console, control socket, agent's port.
fn channel_arguments(dir: &Path) -> Vec<String> {
    let path = |name| dir.join(name).display().to_string();
    let port = floodway_guest::protocol::PORT_NAME;
    [
        "-chardev",
        &format!("file,id=console,path={}", path("console.log")),
        "-serial",
        "chardev:console",
        "-chardev",
        &format!("socket,id=qmp,path={},server=on,wait=off", path("qmp.sock")),
        "-mon",
        "chardev=qmp,mode=control",
        "-chardev",
        &format!("socket,id=agent,path={},server=on,wait=off", path("agent.sock")),
        "-device",
        "virtio-serial-pci,vectors=0",
        "-device",
        &format!("virtserialport,chardev=agent,name={port}"),
    ]
    .map(str::to_owned)
    .to_vec()
}

fn wait_for_agent(config: &Config, agent: &Agent, process: &Process, dir: &Path) -> Result<Hello> {
    let deadline = Instant::now() + config.boot_timeout;
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| agent.hello(config.boot_timeout));
        loop {
            if answer.is_finished() {
                let answer = answer.join().unwrap_or_else(|_| Err(anyhow!("hello failed")));
                return answer.with_context(|| failure(config, &no_answer(process), dir));
            }
            if let Some(status) = process.try_wait()? {
                bail!(failure(config, &format!("QEMU has ended ({status})"), dir));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(BOOT_POLL));
        }
    })
}

/// Why an agent does not answer: its connection is lost a moment before QEMU has ended.
fn no_answer(process: &Process) -> String {
    process.wait(LAST_MOMENT).map_or_else(
        |_| "its agent does not answer".to_owned(),
        |status| format!("QEMU has ended ({status})"),
    )
}

fn failure(config: &Config, what: &str, dir: &Path) -> String {
    let console = read_text(&dir.join("console.log"));
    let lines: Vec<_> = console.lines().collect();
    let tail = lines[lines.len().saturating_sub(CONSOLE_TAIL)..].join("\n");
    let messages = read_text(&dir.join("qemu.log"));
    format!(
        "VM {} is not up: {what}\n--- QEMU's messages\n{}\n--- end of the console\n{tail}\n---",
        config.name,
        messages.trim_end()
    )
}

fn read_text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
