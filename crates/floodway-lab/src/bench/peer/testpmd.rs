//! DPDK's testpmd in io mode.

use std::path::Path;

use anyhow::Result;

use super::{Setup, Switch, missing_program};

const PROGRAM: &str = "dpdk-testpmd";
const NAME: &str = "testpmd";
pub const MEMORY_MIB: u32 = 256;

pub fn missing() -> Option<String> {
    missing_program(PROGRAM, "dpdk-dev")
}

pub fn start(setup: &Setup) -> Result<Switch> {
    let tso = u8::from(setup.profile.has_tso());
    let process = setup.spawn(NAME, Path::new(PROGRAM), |command| {
        // testpmd wants a main lcore beside the one that forwards; it sleeps, so both share the core.
        command.args(["--lcores", &format!("0@{core},1@{core}", core = setup.core)]);
        command.args(["--in-memory", "--single-file-segments", "--no-pci", "--no-telemetry"]);
        command.args(["-m", &MEMORY_MIB.to_string()]);
        for (index, socket) in [&setup.socket_a, &setup.socket_b].into_iter().enumerate() {
            let socket = socket.display();
            command.arg(format!("--vdev=net_vhost{index},iface={socket},client=1,tso={tso}"));
        }
        // Without a terminal to read from it must be told to go on until it is killed.
        command.args(["--", "--forward-mode=io", "--nb-cores=1", "--total-num-mbufs=32768"]);
        command.args(["--stats-period=3600"]);
    })?;
    Ok(Switch { processes: vec![process], log: setup.log(NAME), namespace: None })
}
