//! What an experiment ran on, for the report.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

/// Facts that decide figures: the machine's, and QEMU's version. What cannot be read is left out.
#[must_use]
pub fn facts() -> BTreeMap<String, Value> {
    let mut facts = machine();
    if let Some(qemu) = version("qemu-system-x86_64").as_deref().and_then(first_line) {
        facts.insert("qemu".into(), qemu.into());
    }
    facts
}

/// Facts of the machine: processors, memory, kernel. What cannot be read is left out.
#[must_use]
pub fn machine() -> BTreeMap<String, Value> {
    let kernel =
        fs::read_to_string("/proc/sys/kernel/osrelease").ok().as_deref().and_then(first_line);
    let facts = [
        ("cpus", processors().map(Value::from)),
        ("cpu_model", field("/proc/cpuinfo", "model name").map(Value::from)),
        ("memory_kib", memory_kib().map(Value::from)),
        ("kernel", kernel.map(Value::from)),
        ("floodway_lab", Some(env!("CARGO_PKG_VERSION").into())),
    ];
    facts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn first_line(text: &str) -> Option<String> {
    text.lines().next().map(|line| line.trim().to_owned())
}

/// What a program prints when asked for its version; none without the program.
fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Processors of the machine, also for a program that is pinned to some of them.
fn processors() -> Option<usize> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let is_one =
        |line: &&str| line.split_once(':').is_some_and(|(key, _)| key.trim() == "processor");
    Some(text.lines().filter(is_one).count()).filter(|&count| count > 0)
}

fn memory_kib() -> Option<u64> {
    field("/proc/meminfo", "MemTotal")?.split_whitespace().next()?.parse().ok()
}

fn field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, value) = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let facts = facts();
        assert!(facts["cpus"].as_u64() > Some(0));
        assert!(facts["memory_kib"].as_u64() > Some(0));
        assert!(facts["kernel"].is_string());
    }
}
