//! `floodway data-plane`: the switch behind a broker, which is at the other end of standard input.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::bail;
use floodway_process::channel::{Channel, Received};
use floodway_process::message::{Confinement, FromDataPlane, ToDataPlane, VERSION};
use floodway_process::sealed;
use floodway_switch::control::{ControlListener, ControlServer};
use floodway_switch::{Config, Switch};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::DataPlaneArgs;
use crate::run::{end_process_on_panic, start_log, summary};

/// Between two signs of life.
const BEAT: Duration = Duration::from_secs(1);

type MainChannel = Channel<FromDataPlane, ToDataPlane>;

/// What a broker has given before the start.
#[derive(Default)]
struct Equipment {
    /// The text of the configuration.
    configuration: String,
    /// Channels of ports, by index.
    channels: BTreeMap<usize, OwnedFd>,
    restarts: u32,
    last_end: Option<String>,
}

/// Moves frames until the broker says stop, or is gone.
///
/// # Errors
/// Standard input is no channel of a broker of this version, or the switch does not start.
pub fn run(args: &DataPlaneArgs) -> anyhow::Result<()> {
    // The broker says when to stop, also when a signal comes to the whole group.
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let channel = MainChannel::from(io::stdin().as_fd().try_clone_to_owned()?);
    channel.set_time_limit(Some(BEAT))?;
    let equipment = equip(&channel)?;
    let config = Config::parse(&equipment.configuration, &args.name)?;
    let _flush = start_log(&args.log)?;
    end_process_on_panic();

    let listener = ControlListener::bind(&config.control)?;
    let switch = Switch::start_with_channels(&config, equipment.channels)?;
    switch.note_predecessors(equipment.restarts, equipment.last_end);
    let control = ControlServer::start(listener, switch.operator())?;
    let ready = FromDataPlane::Ready { version: VERSION, confinement: Confinement::Off };
    channel.send(&ready, &[])?;
    tracing::info!(control = %config.control.display(), "running with {}", summary(&config));
    serve(&channel)?;
    tracing::info!("stopping");
    drop(control);
    switch.stop();
    Ok(())
}

/// Takes what the broker gives, up to the start.
fn equip(channel: &MainChannel) -> anyhow::Result<Equipment> {
    let mut equipment = Equipment::default();
    loop {
        let (message, mut descriptors) = match channel.recv()? {
            Received::Message(message, descriptors) => (message, descriptors),
            Received::Nothing => continue,
            Received::Closed => bail!("the broker has ended"),
        };
        match message {
            ToDataPlane::Hello { version, .. } if version != VERSION => {
                bail!("the broker speaks version {version}, and this is version {VERSION}");
            }
            ToDataPlane::Hello { restarts, last_end, .. } => {
                (equipment.restarts, equipment.last_end) = (restarts, last_end);
            }
            ToDataPlane::Configuration { bytes } => {
                if let Some(file) = descriptors.pop() {
                    let text = sealed::read(file, usize::try_from(bytes)?)?;
                    equipment.configuration = String::from_utf8(text)?;
                }
            }
            ToDataPlane::Port { index } => {
                equipment.channels.extend(descriptors.pop().map(|fd| (usize::from(index), fd)));
            }
            ToDataPlane::Start => return Ok(equipment),
            ToDataPlane::Stop => bail!("the broker stops"),
            other => bail!("the broker sends what this version cannot use: {other:?}"),
        }
    }
}

/// Gives signs of life until the broker says stop, or is gone.
fn serve(channel: &MainChannel) -> anyhow::Result<()> {
    for count in 1.. {
        match channel.recv()? {
            Received::Nothing => {}
            Received::Closed | Received::Message(ToDataPlane::Stop, _) => break,
            Received::Message(other, _) => tracing::debug!(?other, "not for this version"),
        }
        channel.send(&FromDataPlane::Alive { count }, &[])?;
    }
    Ok(())
}
