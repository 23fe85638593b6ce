//! Timed transfers of contended VMs, in small. Needs root, two cores and a `floodway` (`FLOODWAY_BIN`).
//!
//! No rate is asserted, only what holds on any machine: every transfer comes to its end with the right bytes, all
//! figures are there, and the guest's kernel counted what it must.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use floodway_lab::experiment::transfer::{Direction, HostLoad, Transfer, Variant};
use floodway_lab::experiment::{Experiment, Scenario};
use floodway_report::Report;

const ROUNDS: u32 = 5;
/// One at a time: each takes both cores, and the machine's length of round-robin turns.
static MACHINE: Mutex<()> = Mutex::new(());

fn run(change: impl FnOnce(&mut Transfer)) -> Report {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut experiment = Experiment::load(&dir.join("vflood-fig6.toml")).unwrap();
    let Scenario::Transfer(transfer) = &mut experiment.scenario else { panic!("another kind") };
    transfer.variants = vec![Variant::Vanilla, Variant::Bridge];
    transfer.hosts = vec![HostLoad { vms: 2, load_percent: 60 }];
    (transfer.bytes, transfer.transfers, transfer.block) = (vec![10_000], ROUNDS, 3);
    change(transfer);
    experiment.band.clear();
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    experiment.run_real(1).unwrap().0
}

fn values(report: &Report) -> BTreeMap<&str, Option<f64>> {
    report.rows.iter().map(|row| (&row.name[..], row.value)).collect()
}

fn assert_complete(report: &Report, transfers: f64) {
    let values = values(report);
    assert_eq!(values["transfers complete"], Some(transfers), "{values:?}");
    assert_eq!(values["transfers failed"], Some(0.0), "{values:?}");
    assert_eq!(values["transfers broken"], Some(0.0), "{values:?}");
}

#[test]
fn a_contended_vm_sends_in_both_profiles_and_on_both_networks() {
    let report = run(|_| ());
    // Two profiles, two variants.
    assert_complete(&report, f64::from(ROUNDS) * 4.0);
    for row in ["data-phase 2011 median", "whole 2011 mean", "data-phase today median"] {
        let row = report.rows.iter().find(|other| other.name == row).unwrap();
        assert!(
            row.value > Some(0.0) && row.baseline > Some(0.0) && row.ratio.is_some(),
            "{row:?}"
        );
    }
    // Nothing was lost on the way; whoever retransmits was not patient enough.
    let values = values(&report);
    assert_eq!(values["guest lost retransmissions 2011 vanilla"], Some(0.0), "{values:?}");
}

#[test]
fn a_contended_vm_receives_and_answers() {
    let report = run(|transfer| {
        transfer.direction = Direction::Both;
        transfer.profiles.truncate(1);
    });
    assert_complete(&report, f64::from(ROUNDS) * 2.0);
    let values = values(&report);
    assert!(values["data-phase in 2011 median"] > Some(0.0), "{values:?}");
    assert!(values["data-phase out 2011 median"] > Some(0.0), "{values:?}");
}

#[test]
fn several_flows_share_a_round() {
    let report = run(|transfer| {
        transfer.variants = vec![Variant::Vanilla];
        transfer.flows = vec![vec![4]];
        transfer.profiles.truncate(1);
    });
    assert_complete(&report, f64::from(ROUNDS) * 4.0);
    assert!(values(&report)["aggregate 2011 median"] > Some(0.0));
}
