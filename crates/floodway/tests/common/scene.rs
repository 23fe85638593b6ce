//! A switch in a directory of its own, and guests that the test plays.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait_until};

use crate::common::Running;

/// A directory for sockets, with a switch in it if one was started.
pub struct Scene {
    directory: tempfile::TempDir,
    switch: Option<Running>,
}

impl Scene {
    /// A directory without a switch.
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), switch: None }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `floodway` with these words, in the directory and for its switch.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
        command.args(words).current_dir(self.directory.path());
        command.env("FLOODWAY_CONTROL", self.path("control.sock"));
        command
    }

    /// The configuration of the port of VM `n`, with these keys.
    pub fn port(&self, n: u8, keys: &str) -> String {
        let socket = self.path(&format!("vm{n}.sock"));
        format!("[[port]]\nname = \"vm{n}\"\nsocket = {socket:?}\n{keys}\n")
    }

    /// Starts a switch with this configuration, and waits until it answers.
    pub fn start(&mut self, config: &str) {
        let control = format!("control = {:?}\n", self.path("control.sock"));
        fs::write(self.path("switch.toml"), control + config).unwrap();
        let mut command = self.command(&["run", "--config", "switch.toml", "--log", "warn"]);
        self.switch = Some(Running(command.spawn().unwrap()));
        wait_until("the switch to answer", || self.answers());
    }

    /// Ends the switch.
    pub fn stop(&mut self) {
        self.switch = None;
    }

    pub fn answers(&self) -> bool {
        let mut status = self.command(&["status"]);
        status.stdout(Stdio::null()).stderr(Stdio::null());
        status.status().unwrap().success()
    }

    /// Starts VM `n` at its port.
    pub fn boot(&self, n: u8) -> (Guest, Frontend) {
        let guest = Guest::new(GuestConfig::default());
        let frontend = Frontend::attach(&self.path(&format!("vm{n}.sock")), &guest);
        (guest, frontend)
    }
}
