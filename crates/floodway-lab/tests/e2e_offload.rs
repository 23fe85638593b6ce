//! The offloads' proofs and the web application, in small. Needs root, two cores and a `floodway` (`FLOODWAY_BIN`);
//! the web application also Debian's packages.
//!
//! No rate is asserted, only what holds on any machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use floodway_lab::experiment::transfer::{Profile, Variant};
use floodway_lab::experiment::{Experiment, Scenario};
use floodway_report::Report;

/// One at a time: each takes both cores.
static MACHINE: Mutex<()> = Mutex::new(());

fn run(file: &str, change: impl FnOnce(&mut Scenario)) -> Report {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut experiment = Experiment::load(&dir.join(file)).unwrap();
    experiment.use_quick_profile().unwrap();
    change(&mut experiment.scenario);
    experiment.band.clear();
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    experiment.run_real(1).unwrap().0
}

fn values(report: &Report) -> BTreeMap<&str, Option<f64>> {
    report.rows.iter().map(|row| (&row.name[..], row.value)).collect()
}

#[test]
fn all_bytes_arrive_over_a_harmful_path_whatever_the_offload_does() {
    let report = run("offload-5gb.toml", |scenario| {
        let Scenario::Integrity(integrity) = scenario else { panic!("another kind") };
        integrity.total_mb = 20;
    });
    let values = values(&report);
    for cell in ["on, out", "on, in", "switched, out", "switched, in"] {
        let row = |what: &str| values[&format!("{cell}/{what}")[..]];
        assert_eq!(row("data intact"), Some(20.0), "{values:?}");
        assert_eq!(row("streams broken"), Some(0.0), "{values:?}");
        assert!(row("lost on the way to the VM") > Some(0.0), "{values:?}");
        assert!(row("reordered on the way from the VM") > Some(0.0), "{values:?}");
    }
    assert!(values["on, out/share offloaded"] > Some(0.5), "{values:?}");
    assert!(values["switched, in/switches of the offload"] > Some(1.0), "{values:?}");
}

#[test]
fn what_a_guest_sends_after_the_death_of_its_switch_is_seen() {
    let report = run("offload-switch-killed.toml", |scenario| {
        let Scenario::SwitchKilled(killed) = scenario else { panic!("another kind") };
        killed.cycles = 1;
        killed.restart_after_ms.truncate(1);
    });
    let values = values(&report);
    assert_eq!(values["flows flooding at the kill, least share"], Some(1.0), "{values:?}");
    assert_eq!(values["streams broken"], Some(0.0), "{values:?}");
    assert!(values["restart after 0 ms/connections"] > Some(0.0), "{values:?}");
}

#[test]
fn a_web_application_answers_through_four_switches() {
    let report = run("vflood-table1.toml", |scenario| {
        let Scenario::WebApplication(web) = scenario else { panic!("another kind") };
        web.variants = vec![Variant::Vanilla, Variant::Offload];
        web.order.clear();
        web.profiles = vec![Profile::Today];
        (web.load_percent, web.block_s) = (0, 2);
    });
    let values = values(&report);
    assert!(values["operations"] > Some(0.0), "{values:?}");
    assert_eq!(values["operations failed"], Some(0.0), "{values:?}");
    let row = report.rows.iter().find(|row| row.name == "operations today offload").unwrap();
    assert!(row.value > Some(0.0) && row.baseline > Some(0.0) && row.ratio.is_some(), "{row:?}");
}
