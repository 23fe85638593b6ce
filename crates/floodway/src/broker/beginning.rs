//! What a broker begins with: things that it makes, or those that a broker which has died has left in the [descriptor store](floodway_broker::store).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use floodway_broker::broker::{Past, State};
use floodway_broker::store::Store;
use floodway_broker::store::taken::Taken;
use floodway_broker::uplink::UplinkPlace;
use floodway_process::message::{Setting, StatePart};
use floodway_process::store::KeptLayout;
use floodway_process::upgrade::Programs;
use floodway_switch::Config;
use floodway_switch::api::control::store_path;
use floodway_switch::control::{BindError, ControlListener};
use floodway_switch::kept::counters::Places;
use floodway_switch::kept::{WORD, addresses, counters, pairs, turns};
use floodway_switch::switch;

use super::ports::Numbers;
use super::ports::resume::Left;
use super::{environment, upgrade, uplinks};

/// How long the kernel may take to end a broker that was killed, and a data plane to end that has lost its broker.
const DYING: Duration = Duration::from_secs(2);

/// What a broker begins with.
pub struct Beginning {
    /// Where operators connect.
    pub control: ControlListener,
    /// Where everything is left for the next broker.
    pub store: Store,
    /// What runs.
    pub config: Config,
    /// Its text.
    pub configuration: String,
    /// The rest.
    pub held: Held,
}

/// What is made once, whoever has made it.
pub struct Held {
    /// Numbers that ports can have, and uplinks.
    pub numbers: Numbers,
    /// What data planes leave for each other.
    pub state: Vec<State>,
    /// Uplinks, in the order of the configuration.
    pub uplinks: Vec<UplinkPlace>,
    /// Settings that were made at run time.
    pub settings: Vec<Setting>,
    /// Ports of a broker of before.
    pub left: Option<Left>,
    /// Its data planes.
    pub past: Option<Past>,
    /// The programs that run.
    pub programs: Programs,
    /// This broker is the replacement of one, in an upgrade.
    pub replacing: bool,
}

/// Takes what a broker of the switch with this control socket has left, if one has, and makes it otherwise, as `config` says, whose text is `configuration`.
/// Nothing is kept for the next broker unless `is_kept`.
///
/// # Errors
/// A switch runs already, or something cannot be had.
pub fn begin(config: Config, configuration: String, is_kept: bool) -> anyhow::Result<Beginning> {
    let path = store_path(&config.control);
    let deadline = Instant::now() + DYING;
    loop {
        if let Some((store, mut taken)) = Store::find(&path, &start_store)? {
            match (taken.control.take(), taken.layout.take()) {
                (Some(control), Some(layout)) => return resume(store, control, layout, taken),
                // Its broker had not come so far.
                _ => store.close(),
            }
        }
        match ControlListener::bind(&config.control) {
            // The broker that has it may be dying.
            Err(BindError::AlreadyRunning(_)) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            bound => return anew(bound?, config, configuration, is_kept),
        }
    }
}

fn anew(
    control: ControlListener,
    config: Config,
    configuration: String,
    is_kept: bool,
) -> anyhow::Result<Beginning> {
    let numbers = switch::numbers(&config);
    let places = Places { ports: numbers.ports, uplinks: numbers.uplinks };
    let held = Held {
        numbers: Numbers {
            ports: u16::try_from(numbers.ports)?,
            uplinks: u16::try_from(numbers.uplinks)?,
        },
        state: state(places, config.workers.len())?,
        uplinks: uplinks::open_all(&config)?,
        settings: Vec::new(),
        left: None,
        past: None,
        programs: upgrade::programs(None, false),
        replacing: false,
    };
    let path = store_path(&config.control);
    let store = if is_kept { Store::start(&path, &start_store)? } else { Store::none() };
    Ok(Beginning { control, store, config, configuration, held })
}

fn resume(
    store: Store,
    control: OwnedFd,
    layout: KeptLayout,
    taken: Taken,
) -> anyhow::Result<Beginning> {
    let KeptLayout { configuration, numbers, uplink_numbers, ports: seats, uplinks: places } =
        layout;
    let numbers = Numbers { ports: numbers, uplinks: uplink_numbers };
    let config = Config::parse(&configuration, Path::new("the configuration that runs"))?;
    let control = ControlListener::resume(control, &config.control);
    let Taken { mut uplinks, state, settings, ports, data_plane, restarts, .. } = taken;
    let Taken { programs, replacing, number: last, .. } = taken;
    let devices = places.into_iter().zip(&config.uplinks).map(|(number, uplink)| {
        let left = uplinks.remove(&number).map(|(_, rate, files)| (rate, files));
        let uplink = Arc::new(Mutex::new(uplinks::resume(uplink, left)));
        UplinkPlace { number, uplink }
    });
    let held = Held {
        numbers,
        uplinks: devices.collect(),
        state: state.into_iter().map(|(part, len, file)| State::of(part, len, file)).collect(),
        settings,
        left: Some(Left { seats, ports }),
        past: Some(Past { restarts, number: last, data_plane }),
        programs: upgrade::programs(Some(programs), replacing),
        replacing,
    };
    Ok(Beginning { control, store, config, configuration, held })
}

/// What data planes leave for each other.
fn state(places: Places, workers: usize) -> io::Result<Vec<State>> {
    let parts = [
        (StatePart::Counters, counters::words(places)),
        (StatePart::Pairs, pairs::words(places)),
        (StatePart::MacTable, addresses::words(places)),
        (StatePart::Turns, turns::words(workers)),
    ];
    parts.into_iter().map(|(part, words)| State::new(part, (words * WORD) as u64)).collect()
}

/// Starts a store with nothing of this process's but standard error.
fn start_store(channel: OwnedFd, listener: OwnedFd) -> io::Result<Child> {
    let mut command = upgrade::command(None);
    command.arg("descriptor-store").env_clear().envs(environment());
    command.stdin(Stdio::from(channel)).stdout(Stdio::from(listener)).spawn()
}
