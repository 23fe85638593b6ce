//! Installation.

use std::os::fd::AsFd;

use anyhow::{Context, Result};

use super::interfaces::{self, Interface};
use super::object::{self, Loaded};
use super::record::Record;
use super::{LossProbes, Options, congestion, kernel, loss_probes, nonce, remove};

/// Installs, in place of what is installed.
///
/// # Errors
/// When the kernel lacks something or refuses; nothing of the attempt stays then.
pub fn install(options: &Options) -> Result<()> {
    kernel::check()?;
    kernel::mount_bpf()?;
    object::capture_messages();
    let settings = &options.settings;
    let interfaces =
        if settings.plain { Vec::new() } else { interfaces::select(&options.interface)? };
    // Before anything changes: this is what fails on a kernel that is not fit.
    let mut loaded =
        Loaded::load(settings, &remove::previous_default()?).map_err(object::explain)?;
    let previous_default = remove::take_back()?;
    let silence = options.loss_probes == LossProbes::Off;
    let installed = activate(&mut loaded, &interfaces).and_then(|()| {
        let record = Record {
            settings: settings.clone(),
            previous_default: options.default.then_some(previous_default.clone()),
            previous_loss_probes: silence.then(loss_probes::setting).transpose()?,
        };
        record.write()?;
        if silence {
            loss_probes::set(loss_probes::OFF)?;
        }
        if options.default {
            congestion::set_default(congestion::NAME)?;
        }
        Ok(())
    });
    if installed.is_ok() && options.default {
        // They go on as they were otherwise.
        if let Err(error) = loaded.change_older() {
            let error = object::explain(error);
            eprintln!("connections that are older keep their congestion control: {error:#}");
        }
    }
    installed.map_err(|error| {
        let error = object::explain(error);
        match remove::take_back() {
            Ok(_) => error,
            Err(second) => error.context(format!("and it could not be undone: {second:#}")),
        }
    })
}

fn activate(loaded: &mut Loaded, interfaces: &[Interface]) -> Result<()> {
    // Pins first: only what is pinned can be taken back.
    loaded.pin()?;
    loaded.register()?;
    let Some((reader, _)) = object::pinned_reader()? else { return Ok(()) };
    let complaints = kernel::load_modules();
    for interface in interfaces {
        interfaces::attach(reader.as_fd(), interface).with_context(|| {
            let missing = complaints.iter().map(|text| format!(" ({text})")).collect::<String>();
            format!("cannot read notices on {}{missing}", interface.name)
        })?;
        // In vain on an interface that is down: then the reader says it when it is asked.
        let _ = nonce::say(interface, loaded.nonce, loaded.reads_names());
    }
    Ok(())
}
