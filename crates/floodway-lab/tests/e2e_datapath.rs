//! The experiments of the datapath, in small: real VMs on the real switch. Needs root and a release build of
//! `floodway`.
//!
//! Nothing here asserts a rate or a time: those are verdicts of the full experiments, which have
//! the machine to themselves. What must hold on any machine under any load is asserted: streams
//! arrive as they were sent, connections survive, and nothing leaks.

use std::collections::BTreeMap;
use std::path::Path;

use floodway_lab::experiment::{Experiment, Scenario};
use floodway_lab::switch_process;
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

#[test]
fn connections_survive_a_killed_switch() {
    let values = run("datapath-switch-restart", |scenario| {
        let Scenario::SwitchRestart(restart) = scenario else { panic!("another kind") };
        restart.cycles = 3;
        restart.transfer_mb = 600;
    });
    for victim in ["", "data plane: "] {
        let rows = ["streams broken", "descriptors leaked"].map(|row| format!("{victim}{row}"));
        assert_zero(&values, &rows.each_ref().map(String::as_str));
        assert_eq!(values[&format!("{victim}kills survived")], 3.0);
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
fn the_switch_under_test_is_a_release_build() {
    let binary = switch_process::binary().unwrap();
    assert!(binary.is_file());
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
