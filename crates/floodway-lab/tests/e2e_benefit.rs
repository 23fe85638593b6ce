//! What operators gain, in small, by counters: that the switch did a mechanism's work on real VMs, whatever the machine's speed. Needs root, two cores and a
//! `floodway` (`FLOODWAY_BIN`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use floodway_lab::experiment::inbound::Policy;
use floodway_lab::experiment::transfer::{HostLoad, Profile, Variant};
use floodway_lab::experiment::{Experiment, Scenario};

/// One at a time: each takes both cores.
static MACHINE: Mutex<()> = Mutex::new(());

/// Runs an experiment of the lab with another scale, and returns what its rows say.
fn run(file: &str, scale: impl FnOnce(&mut Scenario)) -> BTreeMap<String, f64> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut experiment = Experiment::load(&dir.join(file)).unwrap();
    experiment.use_quick_profile().unwrap();
    scale(&mut experiment.scenario);
    experiment.band.clear();
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let report = experiment.run_real(1).unwrap().0;
    report.rows.into_iter().filter_map(|row| Some((row.name, row.value?))).collect()
}

#[test]
fn the_switch_repairs_what_a_path_loses_and_the_guest_repeats_less() {
    const TRANSFERS: u32 = 6;
    let rows = run("vflood-loss.toml", |scenario| {
        let Scenario::Transfer(transfer) = scenario else { panic!("another kind") };
        transfer.profiles = vec![Profile::Today];
        transfer.variants = vec![Variant::Vanilla, Variant::Transmit];
        transfer.hosts = vec![HostLoad { vms: 1, load_percent: 0 }];
        (transfer.bytes, transfer.transfers, transfer.block) = (vec![1_000_000], TRANSFERS, 3);
        transfer.path[0].loss_percent = 3.0;
    });
    assert_eq!(rows["transfers complete"], f64::from(2 * TRANSFERS), "{rows:?}");
    assert_eq!([rows["transfers failed"], rows["transfers broken"]], [0.0; 2], "{rows:?}");
    // 700 packets a transfer.
    assert!(rows["switch fast recoveries today transmit"] > 0.0, "{rows:?}");
    let repeats = |variant: &str| rows[&format!("guest retransmissions today {variant}")];
    assert!(repeats("vanilla") > 20.0, "the path lost nothing: {rows:?}");
    assert!(repeats("transmit") < repeats("vanilla") / 4.0, "{rows:?}");
}

#[test]
fn connections_follow_a_vm_to_another_host() {
    let rows = run("datapath-move.toml", |scenario| {
        let Scenario::Moves(moves) = scenario else { panic!("another kind") };
        (moves.moves, moves.connections) = (1, 8);
        moves.cases.truncate(1);
    });
    assert_eq!(rows["followed/flows online before, least"], 8.0, "{rows:?}");
    assert_eq!(rows["followed/moves with connections"], 1.0, "{rows:?}");
    for none in ["connections lost", "requests failed", "digests that differ"] {
        assert_eq!(rows[&format!("followed/{none}")], 0.0, "{rows:?}");
    }
    assert!(rows["followed/acknowledged by receive offload"] > 0.0, "{rows:?}");
}

#[test]
fn inbound_rates_end_the_drops_at_the_port_in_front_of_the_host() {
    let rows = run("inbound-fig2.toml", |scenario| {
        let Scenario::Inbound(inbound) = scenario else { panic!("another kind") };
        inbound.connections = vec![[2, 2], [8, 8]];
        inbound.policies = vec![Policy::Off, Policy::Connections];
    });
    let drops = |policy: &str| rows[&format!("drops after convergence {policy}")];
    assert!(drops("native") > 20.0, "{rows:?}");
    assert!(drops("dynamic") < drops("native") / 10.0, "{rows:?}");
    assert!(rows["retransmissions dynamic"] < rows["retransmissions native"], "{rows:?}");
}
