use super::*;
use crate::simulation::run::{Run, Work};

const SCENE: &str = include_str!("../../../../../experiments/scenes/inbound.toml");
const HOST: &str = include_str!("../../../../../experiments/hosts/inbound-2016.toml");

fn scene(seed: u64, change: impl FnOnce(&mut Inbound)) -> Run {
    let mut table: toml::Table = SCENE.parse().unwrap();
    table.insert("host".into(), toml::Value::Table(HOST.parse().unwrap()));
    let mut scene: Inbound = toml::Value::Table(table).try_into().unwrap();
    scene.time = Time { settle_ms: 500, length_ms: 2000 };
    change(&mut scene);
    scene.check().unwrap();
    let work = Work::Inbound(Box::new(scene));
    Run { experiment: "t".into(), parameters: Default::default(), seed, work }
}

fn figure(run: &Run, figure: &str) -> f64 {
    let all = run.execute().unwrap();
    let is = |m: &&super::super::Measurement| {
        m.parameters.get("figure").map(String::as_str) == Some(figure)
    };
    all.iter().find(is).unwrap_or_else(|| panic!("no {figure}")).value
}

#[test]
fn the_same_seed_measures_the_same_and_another_does_not() {
    let run = |seed| scene(seed, |scene| scene.division.enabled = false).execute().unwrap();
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_share_that_nobody_uses_is_lost_when_it_is_fixed_and_lent_when_it_may_be() {
    let total = |policy: &str, water_fill| {
        let run = scene(1, |scene| {
            scene.streams.retain(|group| group.vm == 0);
            (scene.division.policy, scene.division.water_fill) = (policy.into(), water_fill);
        });
        figure(&run, "total")
    };
    let fixed = total("share", false);
    assert!((0.2..0.26).contains(&fixed), "{fixed}");
    let lent = total("share", true);
    assert!(lent > 0.9, "{lent}");
}

#[test]
fn senseless_scenes_are_refused() {
    let Work::Inbound(good) = scene(1, |_| {}).work else { unreachable!() };
    let refused = |change: fn(&mut Inbound)| {
        let mut scene = (*good).clone();
        change(&mut scene);
        scene.check().is_err()
    };
    assert!(refused(|scene| scene.division.policy = "luck".into()));
    assert!(refused(|scene| scene.streams[0].vm = 9));
    assert!(refused(|scene| scene.rtt_us.clear()));
    assert!(refused(|scene| scene.time.settle_ms = 2000));
}
