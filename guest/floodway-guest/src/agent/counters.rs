//! The kernel's network counters under nstat's names, read where nstat reads them.

use std::fs;

use anyhow::{Context, Result};
use floodway_guest::protocol::Counters;

/// Reads all counters.
pub fn read() -> Result<Counters> {
    let mut counters = Counters::new();
    for path in ["/proc/net/snmp", "/proc/net/netstat"] {
        add_tables(&mut counters, &load(path)?);
    }
    // Absent when the kernel has no IPv6.
    if let Ok(text) = load("/proc/net/snmp6") {
        add_list(&mut counters, &text);
    }
    Ok(counters)
}

fn load(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

/// Pairs of lines: `Tcp: RtoMin RtoMax ...` and `Tcp: 200 120000 ...`.
fn add_tables(counters: &mut Counters, text: &str) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (mut names, values) = (names.split_whitespace(), values.split_whitespace().skip(1));
        let prefix = names.next().unwrap_or_default().trim_end_matches(':');
        for (name, value) in names.zip(values) {
            add(counters, format!("{prefix}{name}"), value);
        }
    }
}

/// Lines of name and value.
fn add_list(counters: &mut Counters, text: &str) {
    for line in text.lines() {
        if let Some((name, value)) = line.split_once(char::is_whitespace) {
            add(counters, name.to_owned(), value.trim());
        }
    }
}

fn add(counters: &mut Counters, name: String, value: &str) {
    // Some counters are unsigned; half of 2^64 is out of reach for all of them.
    if let Ok(value) = value.parse() {
        counters.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_lists_are_read() {
        let mut counters = Counters::new();
        add_tables(&mut counters, "Tcp: MaxConn RetransSegs\nTcp: -1 42\nTcpExt: A\nTcpExt: 1\n");
        add_list(&mut counters, "Ip6InReceives                   \t7\n");
        let expected =
            [("Ip6InReceives", 7), ("TcpExtA", 1), ("TcpMaxConn", -1), ("TcpRetransSegs", 42)];
        assert_eq!(counters, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn this_kernel_has_them() {
        assert!(read().unwrap().contains_key("TcpRetransSegs"));
    }
}
