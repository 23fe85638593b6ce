//! What operators gain, in small, by counters: that the switch did a mechanism's work on real VMs, whatever the machine's speed. Needs root, two cores and a
//! `floodway` (`FLOODWAY_BIN`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use floodway_lab::experiment::inbound::Policy;
use floodway_lab::experiment::residency::{Cores, Test};
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
    // 48 ms at 50 Mbit/s: an emulator that waits for its core, beside the other tests, must not drop what arrives meanwhile.
    const QUEUE_KB: u32 = 300;
    const TRIES: usize = 5;
    let attempt = || {
        run("inbound-fig2.toml", |scenario| {
            let Scenario::Inbound(inbound) = scenario else { panic!("another kind") };
            inbound.queue_kb = QUEUE_KB;
            inbound.connections = vec![[2, 2], [8, 8]];
            inbound.policies = vec![Policy::Off, Policy::Connections];
        })
    };
    // What delays switch, senders or emulator only adds to the drops: of a mechanism without effect no attempt would show less.
    let is_shown = |rows: &BTreeMap<String, f64>| {
        let drops = |policy: &str| rows[&format!("drops after convergence {policy}")];
        drops("native") > 20.0
            && drops("dynamic") < drops("native") / 4.0
            && rows["retransmissions dynamic"] < rows["retransmissions native"]
    };
    let mut attempts: Vec<BTreeMap<_, _>> = Vec::new();
    while !attempts.last().is_some_and(is_shown) {
        assert!(attempts.len() < TRIES, "{attempts:?}");
        attempts.push(attempt());
    }
}

#[test]
fn messages_wait_for_a_co_resident_vm_which_is_interrupted_less_than_once_a_frame() {
    let rows = run("residency-fig4.toml", |scenario| {
        let Scenario::Residency(residency) = scenario else { panic!("another kind") };
        residency.cores = vec![Cores::Shared];
        residency.tests = vec![Test::Udp, Test::Tcp];
        (residency.sizes, residency.rounds, residency.seconds) = (vec![1024], 1, 2);
    });
    let row = |what: &str| rows[&format!("{what} 1024 B shared")];
    assert!(row("udp") > 0.0 && row("tcp") > 0.0, "{rows:?}");
    // Some 30 000 messages, and more than a receive ring has room for while the receiver waits. What VMs that start send to nobody is dropped, too.
    assert!(rows["frames dropped by the switch"] < 50.0, "{rows:?}");
    // One for each frame would be a switch between two VMs for each: what the paper warns of on a shared core.
    assert!(row("interrupts for a frame, udp") < 0.25, "{rows:?}");
    assert!(row("interrupts for a frame, tcp") < 0.75, "{rows:?}");
}

#[test]
fn small_answers_do_not_wait_behind_large_ones() {
    let rows = run("small-table5.toml", |scenario| {
        let Scenario::SmallFlows(small) = scenario else { panic!("another kind") };
        small.case.truncate(1);
        (small.rounds, small.seconds) = (1, 4);
    });
    let row = |what: &str| rows[&format!("40 %/{what}")];
    // A segment of 1460 bytes and one of 588, for each of some 160 answers; what large answers begin with is tagged alike.
    assert!(row("packets of the high class on") > 160.0, "{rows:?}");
    assert!(row("packets of the low class on") > row("packets of the high class on"), "{rows:?}");
    let (small, large) = (row("longest queue of the high class on"), row("longest queue on"));
    assert!(small < large / 4.0 && small < row("longest queue off") / 4.0, "{rows:?}");
}
