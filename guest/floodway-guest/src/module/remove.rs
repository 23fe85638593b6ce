//! Removal.

use std::os::fd::AsFd;

use anyhow::Result;

use super::record::Record;
use super::{congestion, interfaces, kernel, loss_probes, object};

/// Removes what is installed; nothing installed is fine.
///
/// # Errors
/// When the kernel refuses.
pub fn remove() -> Result<()> {
    kernel::check()?;
    object::capture_messages();
    take_back().map_err(object::explain)?;
    Ok(())
}

/// The default congestion control without the module.
pub fn previous_default() -> Result<String> {
    match congestion::default()? {
        name if name == congestion::NAME => default_of_before(Record::read()?.as_ref()),
        other => Ok(other),
    }
}

fn default_of_before(record: Option<&Record>) -> Result<String> {
    let previous = record.and_then(|record| record.previous_default.clone());
    previous.filter(|name| name != congestion::NAME).map_or_else(congestion::fallback, Ok)
}

/// Takes everything back, and returns the default congestion control of then. Sockets that use `floodway`
/// keep it, offline.
pub fn take_back() -> Result<String> {
    let record = Record::read()?;
    if let Some(previous) = record.as_ref().and_then(|record| record.previous_loss_probes.as_ref())
        && loss_probes::setting()? == loss_probes::OFF
    {
        loss_probes::set(previous)?;
    }
    if congestion::default()? == congestion::NAME {
        congestion::set_default(&default_of_before(record.as_ref())?)?;
    }
    if let Some((reader, id)) = object::pinned_reader()? {
        for interface in interfaces::all()? {
            if interfaces::is_attached(reader.as_fd(), id, &interface)? {
                interfaces::detach(reader.as_fd(), &interface)?;
            }
        }
    }
    object::unregister()?;
    object::unpin()?;
    Record::delete()?;
    congestion::default()
}
