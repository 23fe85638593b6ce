//! Names and other values that only one section may have.

use std::collections::BTreeMap;

use super::error::Fault;
use super::section::Section;

/// Characters of a port's or uplink's name; it is in every metric and log line.
const MAX_NAME: usize = 64;

/// The name that a section has, whoever else may have it.
pub(super) fn name_of(section: &Section<'_, '_>, example: &str) -> Result<String, Fault> {
    let name = section.required("name", example)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        let problem = format!("must be 1 to {MAX_NAME} letters, digits, \"-\", \"_\" or \".\"");
        return Err(section.fault("name", problem));
    }
    Ok(name.to_owned())
}

/// Values that only one section may have.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) names: Claims,
    pub(super) sockets: Claims,
    pub(super) macs: Claims,
    pub(super) devices: Claims,
    pub(super) networks: Claims,
    pub(super) vids: Claims,
}

/// Who has which value.
#[derive(Default)]
pub(super) struct Claims(BTreeMap<String, String>);

impl Claims {
    /// Gives `value` of `key` to `section`, unless another one has it.
    pub(super) fn claim(
        &mut self,
        section: &Section<'_, '_>,
        key: &str,
        value: String,
    ) -> Result<(), Fault> {
        if let Some(owner) = self.0.get(&value) {
            return Err(section.fault(key, format!("already used by {owner}; choose another one")));
        }
        let owner = match section.path() {
            "" => key.to_owned(),
            path => path.to_owned(),
        };
        self.0.insert(value, owner);
        Ok(())
    }
}
