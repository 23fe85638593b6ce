use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use floodway_sim::Instant;
use floodway_sim::traffic::{Echo, EchoConfig};
use floodway_sim::world::World;

use super::grid::Grid;
use super::*;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments").join(name)
}

fn load(name: &str) -> Grid {
    let path = file(name);
    let experiment = File::load(&path).unwrap();
    Grid::load(&path, &experiment.name, experiment.sim.unwrap()).unwrap()
}

/// The paper's experiment on eight hosts.
fn small_tree() -> Grid {
    let mut grid = load("small-fig6_table6.toml");
    for (name, value) in [("tree.pods", 2), ("tree.edges", 2), ("tree.hosts", 2), ("tree.cores", 2)]
    {
        host::set(&mut grid.parameters, name, &Value::Integer(value)).unwrap();
    }
    grid.settings.case.retain(|case| ["40 %", "2 ms"].contains(&&*case.name));
    grid.use_quick_profile();
    // Bands are for the whole tree.
    grid.settings.band.clear();
    grid
}

fn rows(grid: &Grid) -> (Report, Vec<Samples>) {
    let runs = grid.runs().unwrap();
    grid_figures::report(grid, &command::execute(&runs, None).unwrap()).unwrap()
}

#[test]
fn a_grid_has_rows_for_cases_columns_and_classes_whatever_the_threads() {
    let grid = small_tree();
    let runs = grid.runs().unwrap();
    assert_eq!(runs.len(), 2 * 3);
    let report = |threads| {
        let measured = command::execute(&runs, NonZeroUsize::new(threads)).unwrap();
        grid_figures::report(&grid, &measured).unwrap()
    };
    let (one, three) = (report(1), report(3));
    assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&three).unwrap());
    let (report, samples) = one;
    let row = |name: &str| {
        let found = report.rows.iter().find(|row| row.name == name);
        found.unwrap_or_else(|| panic!("there is no row {name:?}"))
    };
    assert!(row("40 %/(0, 10 KB] p99 switches").ratio.is_some());
    assert!(row("2 ms/(0, 10 KB] p50 switches and hosts").baseline.is_some());
    let load = row("40 %/all load with headers switches").value.unwrap();
    assert!((15.0..80.0).contains(&load), "{load}");
    let high = row("40 %/all bytes in the high class switches");
    assert!(high.value.is_some_and(|share| (0.1..100.0).contains(&share)), "{high:?}");
    // A few transfers may not have finished; most have.
    let count = row("40 %/(0, 10 KB] transfers switches").value.unwrap();
    let missing = row("40 %/all not finished switches").value.unwrap();
    assert!(count > 1000.0 && missing < count / 20.0, "{count} {missing}");
    assert!(samples.iter().any(|one| one.bar.is_some()));
}

#[test]
fn runs_of_scenes_survive_being_written_down() {
    for name in ["small-fig6_table6.toml", "small-fig5.toml"] {
        let run = load(name).runs().unwrap().pop().unwrap();
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), run);
    }
}

#[test]
fn what_does_not_exist_is_named() {
    let path = file("small-table3.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, expected) in [
        ("policy.boost_preempts_boost", "policy.boost", "policy.boost"),
        ("scenes/xen-2013.toml", "scenes/xen-2031.toml", "xen-2031"),
        ("[sim.with.vms.A3.hog]", "[sim.with.vms.A3.hug]", "hug"),
        ("scene = \"testbed\"", "scene = \"fat-tree\"", "host"),
    ] {
        assert!(text.contains(from), "{from}");
        let experiment = File::parse(&text.replace(from, to)).unwrap();
        let error = Grid::load(&path, "x", experiment.sim.unwrap()).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    }
}

/// 220, 276.7 and 305.2 us, and what it takes to send 84 bytes 2, 4 and 6 times each way.
#[test]
fn the_trees_round_trips_are_the_papers() {
    let grid = load("small-fig6_table6.toml");
    let Work::FatTree(scene) = grid.runs().unwrap().remove(0).work else { panic!("no tree") };
    for (to, expected, fabric_hops) in [(1, 220_000, 0), (8, 276_700, 2), (127, 305_200, 4)] {
        let mut world = World::new(scene.network(1));
        let hosts: Vec<_> = (0..128).map(|host| world.add_bare(host)).collect();
        let ping = world.add_app(Echo::new(EchoConfig {
            from: hosts[0],
            to: hosts[to],
            bytes: 56,
            gap: Duration::from_millis(1),
            random: false,
            count: 3,
            seed: 1,
        }));
        world.run(Instant::from_millis(10));
        // 84 bytes of IP and 38 of Ethernet at 1 and 10 Gbit/s.
        let sending = 2 * (2 * 976 + fabric_hops * 98);
        let time = world.app::<Echo>(ping).unwrap().records()[0].time().as_nanos() as i64;
        assert!((time - expected - sending).abs() < 30, "to {to}: {time}");
    }
}

/// A short look at every variant of the testbed: what it is about, and in the right direction.
#[test]
fn the_testbed_shows_each_trap() {
    let ratio = |name: &str, row: &str| {
        let mut grid = load(name);
        grid.use_quick_profile();
        grid.settings.band.clear();
        let (report, _) = rows(&grid);
        let found = report.rows.iter().find(|one| one.name == row);
        found.and_then(|one| one.ratio).unwrap_or_else(|| panic!("{name}: no row {row:?}"))
    };
    assert!(ratio("small-table2_4.toml", "ping p50 segmented") < 0.8);
    assert!(ratio("small-table5.toml", "60 %/2 KB p90 on") < 0.8);
}
