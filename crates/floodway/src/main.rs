//! `floodway`: the operator's command line.
//!
//! Exit codes: 0 success, 1 failure at run time, 2 wrong usage or configuration; `diagnose` has 3 and 4 for what it finds, `trace` 3 for a frame that would
//! reach nobody. Errors
//! are one line on standard error.

mod apply;
mod broker;
mod capture;
mod change;
mod cli;
mod data_plane;
mod descriptor_store;
mod diagnose;
mod drain;
mod events;
mod flows;
mod inbound;
mod libvirt;
mod log;
mod man;
mod metrics;
mod network;
mod notify;
mod offload;
mod output;
mod pairs;
mod port;
mod reload;
mod run;
mod save;
mod serving;
mod status;
mod table;
mod top;
mod trace;
mod upgrade;
mod web;

use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use floodway_broker::migration::TrustError;
use floodway_switch::api::openapi;
use floodway_switch::config::ConfigError;

use cli::{Cli, Command};

/// Exit code of wrong usage, which is also clap's, and of a wrong configuration.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    #[cfg(debug_assertions)]
    if let Err(error) = floodway_process::fault::open() {
        eprintln!("floodway: no points of faults: {error}");
    }
    match execute(Cli::parse().command) {
        Ok(code) => code,
        // The reader of our output has seen enough, as in `floodway status | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floodway: {error}");
            let is_usage = error.is::<ConfigError>() || error.is::<TrustError>();
            if is_usage { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(&args)?,
        Command::Status(args) => status::status(&args)?,
        Command::Top(args) => top::top(&args)?,
        Command::Flows(args) => flows::flows(&args)?,
        Command::Pairs(args) => pairs::pairs(&args)?,
        Command::Offload(args) => offload::offload(&args)?,
        Command::Inbound(args) => inbound::inbound(&args)?,
        Command::Capture(args) => capture::capture(&args)?,
        Command::Events(args) => events::events(&args)?,
        Command::Trace(args) => return trace::trace(&args),
        Command::Diagnose(args) => return diagnose::diagnose(&args),
        Command::Port { command } => port::port(&command)?,
        Command::Network { command } => network::network(&command)?,
        Command::Uplink { command } => port::uplink(&command)?,
        Command::Openapi => println!("{}", output::json(&openapi::document(), None)?),
        Command::Apply(args) => apply::apply(&args)?,
        Command::Upgrade(args) => upgrade::upgrade(&args)?,
        Command::LibvirtHook(args) => libvirt::hook(&args)?,
        Command::Metrics(args) => metrics::metrics(&args)?,
        Command::Web(args) => web::web(&args)?,
        Command::Drain(args) => drain::drain(&args)?,
        Command::DataPlane(args) => data_plane::run(&args)?,
        Command::DescriptorStore => descriptor_store::run()?,
        Command::Speaks => upgrade::print_what_is_spoken()?,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "floodway", &mut io::stdout());
        }
        Command::Man { directory } => man::write(&directory)?,
        Command::Version => println!("floodway {}", env!("CARGO_PKG_VERSION")),
    }
    Ok(ExitCode::SUCCESS)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
