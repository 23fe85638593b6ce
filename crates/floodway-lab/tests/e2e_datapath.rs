//! The experiments of the datapath, in small: real VMs on the real switch. Needs root and a
//! `floodway` (`FLOODWAY_BIN`).
//!
//! Nothing here asserts a rate or a time: those are verdicts of the full experiments, which have
//! the machine to themselves. What must hold on any machine under any load is asserted: streams
//! arrive as they were sent, connections survive, and nothing leaks.

use std::collections::BTreeMap;
use std::path::Path;

use floodway_lab::experiment::switch_restart::{Load, Victim};
use floodway_lab::experiment::{Experiment, Scenario};
use floodway_report::Verdict;

/// Reads an experiment of the project, lets `shrink` change its scenario, and runs it. Returns the values
/// by row.
fn run(name: &str, shrink: impl FnOnce(&mut Scenario)) -> BTreeMap<String, f64> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut experiment = Experiment::load(&dir.join(name).with_extension("toml")).unwrap();
    shrink(&mut experiment.scenario);
    let (report, _) = experiment.run_real(1).unwrap();
    report.rows.into_iter().filter_map(|row| Some((row.name, row.value?))).collect()
}

fn assert_zero(values: &BTreeMap<String, f64>, rows: &[&str]) {
    for row in rows {
        assert_eq!(values.get(*row), Some(&0.0), "{row}: {values:?}");
    }
}

/// How often something is killed or replaced.
const CYCLES: u32 = 2;

/// Kills or replaces it under each of these loads.
fn replace(victim: Victim, loads: &[Load]) -> BTreeMap<String, f64> {
    run("datapath-switch-restart", |scenario| {
        let Scenario::SwitchRestart(restart) = scenario else { panic!("another kind") };
        (restart.victims, restart.cycles) = (vec![victim], CYCLES);
        restart.loads = loads.to_vec();
    })
}

#[test]
fn connections_survive_a_killed_switch() {
    let values = replace(Victim::Switch, &[]);
    assert_zero(&values, &["streams broken", "descriptors leaked", "files left"]);
    assert_eq!(values["kills survived"], f64::from(CYCLES));
}

fn row(part: &str, load: &str, name: &str) -> String {
    format!("{part}, {load}/{name}")
}

/// No connection is lost, and no byte is another one. Requests were sent over `sets` of 1000 connections, one after the other.
fn assert_carried(part: &str, sets: u32, values: &BTreeMap<String, f64>) {
    for (load, connections) in [("requests", 1000.0 * f64::from(sets)), ("stream", 1.0)] {
        for name in ["connections lost", "requests failed", "digests that differ"] {
            assert_zero(values, &[&row(part, load, name)]);
        }
        assert_eq!(values[&row(part, load, "connections")], connections);
        assert!(values[&row(part, load, "requests answered")] >= 2.0 * connections);
    }
    for by in ["stored by transmit offload", "acknowledged by receive offload"] {
        assert!(values[&row(part, "stream", by)] > 0.0, "{by}: {values:?}");
    }
}

#[test]
fn connections_survive_a_killed_data_plane() {
    let values = replace(Victim::DataPlane, &[Load::Requests, Load::Stream]);
    // A new set for each event.
    assert_carried("data plane", CYCLES, &values);
}

#[test]
fn connections_survive_a_killed_broker() {
    let values = replace(Victim::Broker, &[Load::Requests, Load::Stream]);
    assert_carried("broker", 1, &values);
}

#[test]
fn connections_survive_an_upgrade_and_stay_offloaded() {
    let values = replace(Victim::Upgrade, &[Load::Iperf3, Load::Requests, Load::Stream]);
    assert_carried("upgrade", 1, &values);
    for load in ["iperf3", "requests", "stream"] {
        assert!(values[&row("upgrade", load, "flows online before, least")] >= 1.0);
        for name in ["flows that went offline", "connections lost"] {
            assert_zero(&values, &[&row("upgrade", load, name)]);
        }
    }
}

#[test]
fn a_port_serves_a_rebooted_vm_and_keeps_nothing_of_the_dead_one() {
    let values = run("datapath-vm-restart", |scenario| {
        let Scenario::VmRestart(restart) = scenario else { panic!("another kind") };
        restart.cycles = 3;
        restart.transfer_mb = 5;
    });
    assert_zero(&values, &["streams broken", "descriptors leaked", "mappings leaked"]);
}

#[test]
fn every_pair_of_guests_exchanges_intact_streams() {
    let values = run("datapath-all-pairs", |scenario| {
        let Scenario::AllPairs(pairs) = scenario else { panic!("another kind") };
        pairs.vms = 4;
        pairs.transfer_mb = 5;
    });
    assert_zero(&values, &["streams broken"]);
    assert_eq!(values["streams"], 12.0);
    for reason in ["bad_descriptor", "bad_offload", "runt", "oversize", "spoofed_mac", "spoofed_ip"]
    {
        let row = format!("frames dropped/{reason}");
        assert!(!values.contains_key(&row), "well-behaved guests: {values:?}");
    }
}

#[test]
fn guests_of_both_kernels_reach_each_other_and_the_host_without_checksum_errors() {
    let values = run("demo", |scenario| {
        let Scenario::Throughput(throughput) = scenario else { panic!("another kind") };
        throughput.rounds = 1;
        throughput.seconds = 1;
    });
    for kernel in ["6.1", "6.12"] {
        for direction in ["vm-to-vm", "vm-to-host", "host-to-vm"] {
            let rate = values[&format!("debian-{kernel}/{direction}")];
            assert!(rate > 0.0, "{kernel} {direction}: {values:?}");
        }
        assert_zero(&values, &[&format!("debian-{kernel}/checksum errors")]);
    }
}

#[test]
fn what_cannot_be_measured_is_told_apart_from_a_short_figure() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut experiment = Experiment::load(&dir.join("datapath-idle.toml")).unwrap();
    let Scenario::Idle(idle) = &mut experiment.scenario else { panic!("another kind") };
    (idle.vms, idle.settle_s, idle.window_s) = (1, 0, 1);
    // No switch uses less than nothing: the band must be missed, and say so.
    experiment.band[0].high = Some(-1.0);
    let (report, _) = experiment.run_real(1).unwrap();
    assert_eq!(report.below_target().count(), 1);
    assert_eq!(report.rows[0].verdict, Some(Verdict::BelowTarget));
    assert!(report.rows[0].value.unwrap() >= 0.0);
}
