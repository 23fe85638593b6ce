//! TCP settings of an end: a guest, or a namespace of the host.

use anyhow::{Context, Result};

use crate::net::Namespace;
use crate::process;
use crate::vm::Vm;

/// Where a TCP stack is.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// In a guest.
    Guest(&'a Vm),
    /// In a namespace of the host.
    Host(&'a Namespace),
}

impl Place<'_> {
    /// Runs a command to its end and returns its output.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(self, words: &[&str]) -> Result<String> {
        match self {
            Self::Guest(vm) => Ok(vm.agent().exec(words)?.stdout_text()),
            Self::Host(namespace) => {
                let (program, arguments) = words.split_first().context("no command")?;
                let mut command = namespace.command(program);
                command.args(arguments);
                process::run_command(command)
            }
        }
    }

    fn set(self, key: &str, value: &str) -> Result<()> {
        self.run(&["sysctl", "-q", "-w", &format!("{key}={value}")]).map(drop)
    }
}

/// Chooses the congestion control of new connections.
///
/// # Errors
/// When the kernel does not have it.
pub fn set_congestion_control(place: Place<'_>, name: &str) -> Result<()> {
    place.set("net.ipv4.tcp_congestion_control", name)
}

/// Lets every connection start alike: the kernel would else remember the slow-start threshold and round
/// trip of the last one to the same place, across variants.
///
/// # Errors
/// When the kernel refuses.
pub fn start_every_connection_alike(place: Place<'_>) -> Result<()> {
    place.set("net.ipv4.tcp_no_metrics_save", "1")
}

/// Sets what sockets start with for reception, in bytes. The kernel may still grow them to the same 6 MiB.
///
/// # Errors
/// When the kernel refuses.
pub fn set_receive_buffer(place: Place<'_>, bytes: u32) -> Result<()> {
    const LEAST: u32 = 4096;
    const LARGEST: u32 = 6 << 20;
    place.set("net.ipv4.tcp_rmem", &format!("{LEAST} {bytes} {}", LARGEST.max(bytes)))
}

/// Sets the initial congestion window, in segments, of connections over any route that is there now.
///
/// # Errors
/// When the kernel refuses.
pub fn set_initial_window(place: Place<'_>, segments: u32) -> Result<()> {
    let routes = place.run(&["ip", "-4", "route", "show"])?;
    for route in routes.lines() {
        let window = segments.to_string();
        let mut words = vec!["ip", "route", "replace"];
        words.extend(route_words(route));
        words.extend(["initcwnd", &window]);
        place.run(&words)?;
    }
    Ok(())
}

/// A route as `ip route replace` takes it, without what it says of the moment or of the window.
fn route_words(route: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = route.split_whitespace();
    while let Some(word) = rest.next() {
        match word {
            "initcwnd" => drop(rest.next()),
            "linkdown" | "dead" => {}
            word => words.push(word),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_keeps_all_but_its_window() {
        let shown =
            "198.18.1.0/24 dev eth0 proto kernel scope link src 198.18.1.11 initcwnd 3 linkdown ";
        let expected = "198.18.1.0/24 dev eth0 proto kernel scope link src 198.18.1.11";
        assert_eq!(route_words(shown).join(" "), expected);
    }
}
