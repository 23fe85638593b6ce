//! A configuration file that is read again while the switch runs.

use std::path::Path;

use floodway_switch::Config;
use floodway_switch::operator::ConfigApi;

/// Makes the switch what the file at `path` says, or leaves it as it is and logs why.
pub fn reload(operator: &dyn ConfigApi, path: &Path) {
    let wanted = match Config::load(path) {
        Ok(wanted) => wanted,
        Err(error) => return tracing::error!("not reloaded: {error}"),
    };
    match operator.reconfigure(&|_| Ok(wanted.clone()), false) {
        Ok(plan) => tracing::info!("reloaded {}: {plan}", path.display()),
        Err(error) => tracing::error!("not reloaded: {}: {error}", path.display()),
    }
}
