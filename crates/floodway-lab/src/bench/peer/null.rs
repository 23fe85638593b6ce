//! `vhnull`: returns descriptors and copies nothing but headers, so that what is measured is the client's own ceiling.

use anyhow::Result;

use super::{Setup, Switch, build_dir};

const NAME: &str = "vhnull";

pub fn start(setup: &Setup) -> Result<Switch> {
    let program = build_dir()?.join(NAME);
    let process = setup.spawn(NAME, &program, |command| {
        command.arg(setup.core.to_string()).arg(&setup.socket_a).arg(&setup.socket_b);
        if setup.profile.has_tso() {
            command.arg("--tso");
        }
    })?;
    Ok(Switch { processes: vec![process], log: setup.log(NAME), namespace: None })
}
