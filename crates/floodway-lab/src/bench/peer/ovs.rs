//! Open vSwitch on DPDK: a private instance with its own database, beside any that the system runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{PlannedPort, Setup, Switch, missing_program, tail};
use crate::child::Process;
use crate::process;

/// Debian's DPDK build; `/usr/sbin/ovs-vswitchd` is an alternative that may be the one without.
const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const NAME: &str = "ovs-vswitchd";
const DATABASE: &str = "ovsdb-server";
const DATABASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Memory that it begins with, in MiB.
const MEMORY_MIB: u32 = 1024;
/// Memory that it may take, in MiB: for frames of 9000 bytes 1660 have been seen.
pub const MOST_MEMORY_MIB: u32 = 2048;

pub fn missing() -> Option<String> {
    let package = "openvswitch-switch-dpdk";
    if !Path::new(VSWITCHD).is_file() {
        return Some(format!("{VSWITCHD} is missing: apt-get install {package}"));
    }
    missing_program(DATABASE, package)
}

pub fn start(setup: &Setup) -> Result<Switch> {
    let port = |name: &str, socket: &Path| PlannedPort { name: name.into(), socket: socket.into() };
    start_ports(setup, &[port("a", &setup.socket_a), port("b", &setup.socket_b)])
}

/// Starts it with these ports. How many queue pairs a port has is up to its guest.
pub fn start_ports(setup: &Setup, ports: &[PlannedPort]) -> Result<Switch> {
    let database = start_database(setup)?;
    configure(setup, ports)?;
    let vswitchd = setup.spawn(NAME, Path::new(VSWITCHD), |command| {
        environment(command, setup);
        command.arg(remote(setup)).arg(control_option(setup, NAME));
    })?;
    Ok(Switch { processes: vec![vswitchd, database], log: setup.log(NAME), namespace: None })
}

fn start_database(setup: &Setup) -> Result<Process> {
    let (file, socket) = (setup.dir.join("conf.db"), socket(setup));
    let mut create = Command::new("ovsdb-tool");
    create.arg("create").arg(&file).arg(SCHEMA);
    environment(&mut create, setup);
    process::run_command(create)?;
    let server = setup.spawn(DATABASE, Path::new(DATABASE), |command| {
        environment(command, setup);
        command.arg(&file).arg(format!("--remote=punix:{}", socket.display()));
        command.arg(control_option(setup, DATABASE));
    })?;
    let deadline = Instant::now() + DATABASE_TIMEOUT;
    while !socket.exists() {
        ensure!(
            Instant::now() < deadline && server.try_wait()?.is_none(),
            "ovsdb-server does not come up: {}",
            tail(&setup.log(DATABASE))
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(server)
}

fn configure(setup: &Setup, ports: &[PlannedPort]) -> Result<()> {
    let mut command = Command::new("ovs-vsctl");
    environment(&mut command, setup);
    command.args(["--no-wait", &format!("--db={}", remote(setup))]);
    command.args(["init", "--", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true"]);
    command.arg(format!("other_config:pmd-cpu-mask={:#x}", 1_u128 << setup.core));
    command.arg(format!("other_config:dpdk-socket-mem={MEMORY_MIB}"));
    command.arg(format!("other_config:dpdk-socket-limit={MOST_MEMORY_MIB}"));
    command.arg("other_config:dpdk-extra=--in-memory --no-pci --no-telemetry");
    let tso = setup.profile.has_tso();
    command.arg(format!("other_config:userspace-tso-enable={tso}"));
    command.args(["--", "add-br", "br0", "--", "set", "Bridge", "br0", "datapath_type=netdev"]);
    command.arg("fail_mode=standalone");
    for PlannedPort { name, socket } in ports {
        command.args(["--", "add-port", "br0", name, "--", "set", "Interface", name]);
        command.arg("type=dpdkvhostuserclient");
        command.arg(format!("options:vhost-server-path={}", socket.display()));
        command.arg(format!("mtu_request={}", setup.profile.mtu()));
    }
    process::run_command(command).map(drop).context("OVS does not take its configuration")
}

/// Waits until it has made its ports: it closes the first connections of vhost-user ports while it does.
///
/// # Errors
/// When it does not come up.
pub fn wait_until_configured(setup: &Setup) -> Result<()> {
    let mut command = Command::new("ovs-vsctl");
    environment(&mut command, setup);
    command.args(["--timeout=30", &format!("--db={}", remote(setup))]);
    // Any change: without `--no-wait` the program waits until it is in force.
    command.args(["set", "Open_vSwitch", ".", "external_ids:configured=true"]);
    process::run_command(command).map(drop).context("OVS does not come up")
}

/// Keeps this instance away from one that the system runs.
fn environment(command: &mut Command, setup: &Setup) {
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, &setup.dir);
    }
}

fn socket(setup: &Setup) -> PathBuf {
    setup.dir.join("db.sock")
}

fn remote(setup: &Setup) -> String {
    format!("unix:{}", socket(setup).display())
}

fn control_option(setup: &Setup, name: &str) -> String {
    format!("--unixctl={}", setup.dir.join(format!("{name}.ctl")).display())
}
