//! How often the guest's module is told which flows are managed.

use floodway_core::offload::FlowNotice;
use floodway_core::time::Duration;

use crate::harness::{Setup, World};

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

fn managed(world: &World) -> usize {
    world.named.iter().filter(|&&naming| naming == FlowNotice::Managed).count()
}

#[test]
fn a_flow_in_use_is_named_again_and_ever_more_rarely() {
    // A module that missed the first notices, or was installed later, would never know of the flow.
    let mut world = World::new(Setup { name: "named-again", ..Setup::default() });
    world.connect();
    let mut per_minute = Vec::new();
    for _ in 0..4 {
        let before = managed(&world);
        for _ in 0..60 {
            world.guest.write(20_000, world.now);
            world.run_for(SECONDS(1));
        }
        per_minute.push(managed(&world) - before);
    }
    assert!(per_minute[0] > 8, "{per_minute:?}");
    assert!(per_minute[1..].iter().all(|&notices| (1..=2).contains(&notices)), "{per_minute:?}");
}

#[test]
fn an_idle_flow_is_not_named_again() {
    let mut world = World::new(Setup { name: "idle-named", ..Setup::default() });
    world.connect();
    world.transfer_some(20_000, 0);
    // What was scheduled when the last ACK came.
    world.run_for(SECONDS(1));
    let before = managed(&world);
    world.run_for(SECONDS(300));
    assert_eq!(managed(&world), before);
}
