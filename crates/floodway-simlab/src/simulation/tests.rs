use std::num::NonZeroUsize;
use std::path::PathBuf;

use floodway_experiment::files;

use super::*;

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

fn fig6() -> Transfers {
    let mut experiment = Transfers::load(&dir().join("vflood-fig6.toml")).unwrap();
    experiment.settings.sweep.clear();
    experiment.use_quick_profile();
    experiment
}

#[test]
fn every_simulated_experiment_of_the_project_has_runs() {
    let simulated = files(&dir())
        .unwrap()
        .into_iter()
        .filter(|file| File::load(file).is_ok_and(|experiment| experiment.sim.is_some()));
    let mut seen = 0;
    for file in simulated {
        let runs = Experiment::load(&file).unwrap().runs().unwrap();
        assert!(runs.len() > 1, "{}", file.display());
        seen += 1;
    }
    assert!(seen >= 15, "{seen}");
}

#[test]
fn the_report_does_not_depend_on_the_number_of_threads() {
    let report = |threads| {
        let reports = command::run(&[fig6().into()], NonZeroUsize::new(threads)).unwrap();
        serde_json::to_string(&reports).unwrap()
    };
    let one = report(1);
    assert_eq!(one, report(3));
    assert!(one.contains("quick run"));
    let mut other = fig6();
    other.set_seed(2);
    let other = command::run(&[other.into()], None).unwrap();
    assert_ne!(one, serde_json::to_string(&other).unwrap());
}

#[test]
fn a_run_can_be_written_down_and_executed_elsewhere() {
    let run = fig6().runs().unwrap().remove(0);
    let text = serde_json::to_string(&run).unwrap();
    let again: Run = serde_json::from_str(&text).unwrap();
    assert_eq!(again, run);
    assert_eq!(again.execute().unwrap(), run.execute().unwrap());
}

#[test]
fn each_round_is_measured_and_all_columns_meet_the_same_seeds() {
    let experiment = fig6();
    let runs = experiment.runs().unwrap();
    let seeds = |variant: &str| -> Vec<u64> {
        let own = runs.iter().filter(|run| run.parameters["variant"] == variant);
        own.map(|run| run.seed).collect()
    };
    assert_eq!(seeds("vanilla"), seeds("transmit"));
    let measured = runs[0].execute().unwrap();
    let rounds = measured.iter().filter(|m| m.metric == "whole").count();
    assert_eq!(rounds as u32, experiment.rounds().div_ceil(2));
}

#[test]
fn bands_speak_of_the_host_as_it_is_unless_they_name_a_parameter() {
    let mut experiment = fig6();
    let band = |rows: &str| Band { rows: rows.into(), low: Some(1e9), ..Band::default() };
    experiment.settings.sweep = [("guest.ring_slots".into(), vec![Value::Integer(30)])].into();
    experiment.settings.band =
        vec![band("*data-phase xen-2011 median"), band("guest.ring_slots = 30/whole * median")];
    let (reports, _): (Vec<_>, Vec<_>) =
        command::run(&[experiment.into()], None).unwrap().into_iter().unzip();
    let rows = &reports[0].rows;
    let judged: Vec<_> =
        rows.iter().filter(|row| row.verdict.is_some()).map(|row| &*row.name).collect();
    let expected = ["data-phase xen-2011 median", "guest.ring_slots = 30/whole xen-2011 median"];
    assert_eq!(judged, expected);
    let has = |name: &str| rows.iter().any(|row| row.name == name);
    assert!(has("guest retransmissions transmit"));
    assert!(has("guest.ring_slots = 30/guest retransmissions transmit"));
}

#[test]
fn a_parameter_that_does_not_exist_is_named() {
    let mut table = host::load(&dir().join("hosts/xen-2011.toml")).unwrap();
    for name in ["guest.ring_slot", "gest.ring_slots", "guest.ring_slots.x", ""] {
        let error = host::set(&mut table, name, &Value::Integer(1)).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    host::set(&mut table, "guest.ring_slots", &Value::Integer(7)).unwrap();
    assert_eq!(Host::from_table(&table).unwrap().guest.ring_slots, 7);
    host::set(&mut table, "load.busy", &Value::String("often".into())).unwrap();
    let error = format!("{:#}", Host::from_table(&table).unwrap_err());
    assert!(error.contains("often"), "{error}");
}
