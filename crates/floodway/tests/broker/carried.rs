//! Connections across upgrades: those that were offloaded before are offloaded after. Needs root and ip(8).

use floodway_switch::testing::{wait, wait_until};

use crate::owing::{AGENTLESS, World, offloaded};
use crate::scene::Scene;
use crate::upgrade::{copy, of_another_format};
use crate::uplinks::in_namespace;

/// Upgrades under one stream.
const UPGRADES: u64 = 10;
const GRANTED: &str = "[port.offload]\ntransmit = true\n";

fn counters(scene: &Scene) -> serde_json::Value {
    wait("a status", || scene.status())["ports"][1]["offload"]["counters"].clone()
}

fn wait_until_offloaded(scene: &Scene) {
    wait_until("an offloaded connection", || {
        offloaded(scene).is_some_and(|(_, online)| online == 1)
    });
}

/// The peer loses 1 % of what comes and of its answers, so upgrades meet repairs as well.
fn stays_offloaded(mechanisms: &str) {
    in_namespace(|| {
        let mut world = World::with(mechanisms);
        let (mut total, mut pauses) = (0, Vec::new());
        let programs = ["one", "two"].map(|name| copy(&world.scene, name));
        for program in programs.iter().cycle().take(UPGRADES as usize) {
            let said = world.transfer(&mut total, |scene| {
                wait_until_offloaded(scene);
                let said = scene.upgrade_to(program);
                let offload = wait("a status", || scene.status())["ports"][1]["offload"].clone();
                assert_eq!(offload["online"], 1, "{offload}");
                said
            });
            assert_eq!(
                (&said["upgrades"]["online"], &said["upgrades"]["carried"]),
                (&1.into(), &1.into())
            );
            pauses.push(said["upgrades"]["pause_us"].as_u64().unwrap());
        }
        let counters = counters(&world.scene);
        // The same connection was online all the time.
        for (name, count) in
            [("went_online", 1), ("went_offline", 0), ("adopted", 0), ("adopted_broken", 0)]
        {
            assert_eq!(counters[name], count, "{name}: {counters}");
        }
        world.finish(total);
        pauses.sort_unstable();
        println!("{UPGRADES} upgrades under {total} bytes: pauses of {pauses:?} us");
    });
}

#[test]
fn a_connection_that_was_offloaded_before_an_upgrade_is_offloaded_after_it() {
    stays_offloaded(GRANTED);
}

#[test]
fn a_connection_whose_bytes_were_acknowledged_early_stays_offloaded_over_upgrades() {
    stays_offloaded(AGENTLESS);
}

#[test]
fn before_a_program_that_reads_another_format_connections_go_off_the_offload() {
    in_namespace(|| {
        let mut world = World::with(GRANTED);
        let mut total = 0;
        let other = of_another_format(&world.scene);
        let said = world.transfer(&mut total, |scene| {
            wait_until_offloaded(scene);
            // The shell that executes it stays behind, so that the broker's program is not the one that was asked for.
            scene.refused(&other)
        });
        assert!(said.contains("the program of the broker could not be replaced"), "{said}");
        let status = world.scene.status().unwrap();
        let upgrades = &status["switch"]["programs"]["upgrades"];
        assert_eq!((&upgrades["online"], &upgrades["carried"]), (&1.into(), &0.into()));
        let table = String::from_utf8(world.scene.output(&["status"]).stdout).unwrap();
        assert!(table.contains("(0 of 1 offloaded connections went on so)"), "{table}");
        world.finish(total);
    });
}
