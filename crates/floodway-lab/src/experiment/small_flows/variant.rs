//! What is compared.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Deserialize;

use super::{SmallFlows, Stage};

/// One way to treat small flows. Tables are the switch's own: keys and their meaning are the operator's guide's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// For the names of rows.
    pub name: String,
    /// The variant that it is compared with; the first without it.
    pub against: Option<String>,
    /// Keys of `[uplink.queue]`, beside those of the scenario.
    #[serde(default)]
    pub queue: toml::Table,
    /// Keys of `[meter]`, beside those of the scenario.
    #[serde(default)]
    pub meter: toml::Table,
    /// Keys of `[vcpu]`.
    #[serde(default)]
    pub vcpu: toml::Table,
    /// Policy of `[port.vcpu]`, by VM.
    #[serde(default)]
    pub policy: BTreeMap<String, String>,
    /// The emulated port serves marked packets first.
    #[serde(default)]
    pub priority: bool,
}

impl Variant {
    /// Makes the host and the port as the variant says.
    pub(super) fn apply(&self, scenario: &SmallFlows, stage: &mut Stage) -> Result<()> {
        let pids: Vec<_> = stage.testbed.guests().iter().map(crate::vm::Vm::pid).collect();
        let switch = stage.testbed.switch_mut()?;
        // First of all: it may look after vCPU threads.
        switch.kill()?;
        stage.places.restore()?;
        switch.restart_with(|config| self.configure(config, scenario, &pids))?;
        super::place::put_switch_aside(switch)?;
        super::wait_for_all(&stage.testbed)?;
        stage.port.as_mut().map_or(Ok(()), |port| port.set_priority(self.priority))
    }

    fn configure(&self, config: &mut toml::Table, scenario: &SmallFlows, pids: &[u32]) {
        let both = |common: &toml::Table, own: &toml::Table| {
            let mut all = common.clone();
            all.extend(own.clone());
            toml::Value::Table(all)
        };
        config.insert("meter".into(), both(&scenario.meter, &self.meter));
        config.insert("vcpu".into(), toml::Value::Table(self.vcpu.clone()));
        for uplink in tables(config, "uplink") {
            uplink.insert("queue".into(), both(&scenario.queue, &self.queue));
        }
        for (port, pid) in tables(config, "port").zip(pids) {
            let name = port.get("name").and_then(toml::Value::as_str).unwrap_or_default();
            let Some(policy) = self.policy.get(name) else { continue };
            let vcpu = [("pid", i64::from(*pid).into()), ("policy", policy.clone().into())];
            let vcpu = vcpu.map(|(key, value): (&str, toml::Value)| (key.to_owned(), value));
            port.insert("vcpu".into(), toml::Value::Table(vcpu.into_iter().collect()));
        }
    }
}

/// The tables of an array of tables.
fn tables<'a>(
    config: &'a mut toml::Table,
    name: &str,
) -> impl Iterator<Item = &'a mut toml::Table> {
    let array = config.get_mut(name).and_then(toml::Value::as_array_mut);
    array.into_iter().flatten().filter_map(toml::Value::as_table_mut)
}
