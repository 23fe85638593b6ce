//! What an installation must remember and the kernel does not. In `/run`, as it is void after a reboot.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Settings;

const PATH: &str = "/run/floodway/guest-module.json";

/// One installation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// What the programs were told.
    pub settings: Settings,
    /// The default congestion control before it was changed; `None` when it was not.
    pub previous_default: Option<String>,
    /// The setting of tail loss probes before it was changed; `None` when it was not.
    #[serde(default)]
    pub previous_loss_probes: Option<String>,
}

impl Record {
    /// The record of the present installation.
    pub fn read() -> Result<Option<Self>> {
        match fs::read(PATH) {
            Ok(bytes) => {
                let record = serde_json::from_slice(&bytes);
                Ok(Some(record.with_context(|| format!("{PATH} is broken; delete it"))?))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {PATH}")),
        }
    }

    /// Keeps it.
    pub fn write(&self) -> Result<()> {
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(Path::new(PATH).parent().unwrap_or(Path::new("/")))?;
            fs::write(PATH, serde_json::to_vec_pretty(self)?)
        };
        write().with_context(|| format!("cannot write {PATH}"))
    }

    /// Forgets it.
    pub fn delete() -> Result<()> {
        match fs::remove_file(PATH) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot delete {PATH}"))
            }
            _ => Ok(()),
        }
    }
}
