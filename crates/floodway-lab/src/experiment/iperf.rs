//! iperf3 between two places, and what its JSON says.
//!
//! Each transfer has a server of its own.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::agent::Spawned;
use crate::child::Process;
use crate::net::Namespace;
use crate::process;
use crate::vm::Vm;

/// Beyond the test itself, for a loaded machine. Only ends a run that hangs.
const GRACE: Duration = Duration::from_secs(120);
/// A server that ends after one transfer. One that went on could still be busy with the last transfer
/// when the next client comes, which it then turns away.
const SERVER: [&str; 3] = ["iperf3", "-s", "-1"];
const LISTEN_POLL: Duration = Duration::from_millis(20);
/// Lists sockets that listen on iperf3's port.
const LISTENING: [&str; 5] = ["ss", "-Hltn", "sport", "=", ":5201"];

/// Where a program runs.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// In a guest.
    Guest(&'a Vm),
    /// On the host.
    Host(&'a Namespace),
}

/// One transfer, as its ends saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Payload at the receiver, in Mbit/s.
    pub mbit_s: f64,
    /// Payload that the receiver got, in bytes.
    pub bytes: f64,
    /// Segments that the sender sent again.
    pub retransmits: f64,
}

/// How much is sent.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// As much as fits into this time.
    Seconds(u32),
    /// This many bytes, however long that takes.
    Bytes(u64),
}

/// A server for one transfer.
#[derive(Debug)]
enum Server {
    Guest(Spawned),
    Host(Process),
}

impl Place<'_> {
    /// Starts a server that ends after one transfer, and waits until it listens.
    fn serve(self) -> Result<Server> {
        let server = match self {
            Self::Guest(vm) => Server::Guest(vm.agent().spawn(&SERVER)?),
            Self::Host(namespace) => {
                let mut command = namespace.command(SERVER[0]);
                command.args(&SERVER[1..]).stdin(Stdio::null()).stdout(Stdio::null());
                Server::Host(Process::spawn("iperf3 server", command)?)
            }
        };
        let deadline = Instant::now() + GRACE;
        while !self.listens()? {
            ensure!(Instant::now() < deadline, "iperf3 -s does not listen after {GRACE:?}");
            thread::sleep(LISTEN_POLL);
        }
        Ok(server)
    }

    /// Waits until the server has ended, so that the next one finds its port free.
    fn join(self, server: Server) -> Result<()> {
        match (self, server) {
            (Self::Guest(vm), Server::Guest(job)) => {
                let exit = vm.agent().wait(&job, GRACE)?;
                exit.map(drop).context("the iperf3 server in the guest does not end")
            }
            (_, Server::Host(process)) => process.wait(GRACE).map(drop),
            (Self::Host(_), Server::Guest(_)) => bail!("a guest's server is joined in its guest"),
        }
    }

    fn listens(self) -> Result<bool> {
        let sockets = match self {
            Self::Guest(vm) => vm.agent().exec(&LISTENING)?.stdout_text(),
            Self::Host(namespace) => {
                let mut command = namespace.command(LISTENING[0]);
                command.args(&LISTENING[1..]);
                process::run_command(command)?
            }
        };
        Ok(!sockets.trim().is_empty())
    }

    fn send(self, address: &str, amount: Amount) -> Result<Transfer> {
        let (option, number, limit) = match amount {
            Amount::Seconds(s) => ("-t", s.to_string(), Duration::from_secs(s.into()) + GRACE),
            Amount::Bytes(bytes) => ("-n", bytes.to_string(), GRACE),
        };
        let arguments = ["-c", address, "-J", option, &number];
        let text = match self {
            Self::Guest(vm) => {
                let argv = [&["iperf3"], &arguments[..]].concat();
                vm.agent().exec_within(&argv, limit)?.stdout_text()
            }
            Self::Host(namespace) => {
                let mut command = namespace.command("iperf3");
                command.args(arguments);
                process::run_command(command)?
            }
        };
        parse(&text).with_context(|| format!("iperf3 to {address}"))
    }
}

/// Sends one TCP stream from a place to another, where it is known as `address`.
///
/// # Errors
/// When iperf3 fails on either side; the error quotes it.
pub fn transfer(from: Place<'_>, to: Place<'_>, address: &str, amount: Amount) -> Result<Transfer> {
    let server = to.serve()?;
    let transfer = from.send(address, amount)?;
    to.join(server)?;
    Ok(transfer)
}

fn parse(text: &str) -> Result<Transfer> {
    let json: Value = serde_json::from_str(text).context("it did not print JSON")?;
    if let Some(error) = json["error"].as_str() {
        bail!("{error}");
    }
    let figure = |pointer: &str| {
        json.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("no {pointer}"))
    };
    Ok(Transfer {
        mbit_s: figure("/end/sum_received/bits_per_second")? / 1e6,
        bytes: figure("/end/sum_received/bytes")?,
        retransmits: figure("/end/sum_sent/retransmits")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_figures_are_taken() {
        let text = r#"{"end": {
            "sum_sent": {"bytes": 2000000, "bits_per_second": 9e6, "retransmits": 3},
            "sum_received": {"bytes": 1000000, "bits_per_second": 8e6}
        }}"#;
        let expected = Transfer { mbit_s: 8.0, bytes: 1e6, retransmits: 3.0 };
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn an_error_is_passed_on() {
        let error = parse(r#"{"error": "unable to connect"}"#).unwrap_err().to_string();
        assert_eq!(error, "unable to connect");
        assert!(parse("{}").unwrap_err().to_string().contains("bits_per_second"));
        assert!(parse("iperf3: oops").is_err());
    }
}
