//! Parameters, and how a capture is judged.

use super::*;
use crate::experiment::{Experiment, Scenario};

const MS: i64 = 1_000_000;
const KILLED: i64 = 1000 * MS;

const TEXT: &str = r#"
    name = "t"
    title = "t"
    [scenario]
    kind = "switch-killed"
    kernel = "6.1"
    cycles = 5
    restart_after_ms = [0, 1000]
    flows = 4
    flow_mb = 25
    [scenario.path]
    name = "slow"
    rtt_ms = 20.0
    mbit = 100
"#;

fn parse(from: &str, to: &str) -> Result<SwitchKilled> {
    assert!(TEXT.contains(from));
    match Experiment::parse(&TEXT.replace(from, to))?.scenario {
        Scenario::SwitchKilled(scenario) => Ok(scenario),
        other => panic!("{other:?}"),
    }
}

#[test]
fn senseless_parameters_are_refused_by_name() {
    let refused = |from: &str, to: &str| {
        let error = parse(from, to).and_then(|scenario| scenario.check());
        format!("{:#}", error.unwrap_err())
    };
    assert!(refused("cycles = 5", "cycles = 0").starts_with("cycles = 0"));
    assert!(refused("[0, 1000]", "[]").starts_with("restart_after_ms"));
    assert!(refused("cycles = 5", "cycles = 5\noffload_again = []").starts_with("offload_again"));
    assert!(refused("flows = 4", "flows = 17").starts_with("flows = 17"));
    assert!(refused("= 25", "= 0").starts_with("flow_mb = 0"));
    assert!(refused("mbit = 100", "").starts_with("path"));
    assert!(refused("cycles = 5", "cycle = 5").contains("cycle"));
    parse("cycles", "cycles").unwrap().check().unwrap();
}

#[test]
fn a_quick_run_kills_less_often_and_says_so() {
    let mut scenario = parse("cycles", "cycles").unwrap();
    assert_eq!(scenario.steps(), 11);
    assert_eq!(
        scenario.use_quick_profile().unwrap(),
        "quick run: 2 of 5 kills for each way of restarting"
    );
    assert_eq!(scenario.steps(), 5);
    scenario.offload_again = vec![false, true];
    assert_eq!(scenario.steps(), 9);
}

fn new(after_kill_ms: i64, len: u64, flight: u64) -> NewData {
    let at_ns = KILLED + after_kill_ms * MS;
    NewData { at_ns, len, flight, window: 400_000, mss: 1000, is_probe: false, left_out: 0 }
}

fn window(after_kill_ms: i64, segments: u64) -> Window {
    Window { at_ns: KILLED + after_kill_ms * MS, segments }
}

#[test]
fn only_what_exceeds_the_shadow_window_counts() {
    let windows = [window(-10, 32768), window(280, 32768), window(320, 50), window(380, 60)];
    let sent = [
        new(-5, 900, 900_000),
        new(150, 1000, 50_000),
        NewData { left_out: 7000, ..new(200, 100_000, 251_000) },
        new(290, 1000, 80_000),
        new(340, 1000, 60_000),
        NewData { is_probe: true, ..new(350, 1000, 200_000) },
        // Not known any more.
        new(390, 1000, 999_000),
    ];
    let above = above_shadow(&sent, &windows, KILLED).unwrap();
    let expected = Above {
        until_ms: 290.0,
        bytes: 101_000,
        late_bytes: 0,
        windows: 0.2525,
        left_out: 7000,
        probes: 1,
    };
    assert_eq!(above, expected);
}

#[test]
fn a_guest_that_goes_on_flooding_is_caught() {
    let windows = [window(-10, 32768), window(500, 32768), window(900, 10)];
    let sent = [new(100, 1000, 300_000), new(450, 2000, 300_000)];
    let above = above_shadow(&sent, &windows, KILLED).unwrap();
    assert_eq!((above.until_ms, above.bytes, above.late_bytes), (450.0, 3000, 2000));
    // A shadow window that never showed allows nothing.
    let above = above_shadow(&sent, &windows[..2], KILLED).unwrap();
    assert_eq!(above.late_bytes, 2000);
    let above = above_shadow(&sent, &[], KILLED).unwrap();
    assert_eq!(above.late_bytes, 2000);
}

#[test]
fn a_connection_that_sent_nothing_new_shows_nothing() {
    assert_eq!(above_shadow(&[new(-5, 900, 900_000)], &[window(0, 10)], KILLED), None);
    let silent = Cycle { above: Vec::new(), flooding: 1.0, streams: Outcome::default() };
    let mut report = Report::default();
    report.add(Restart { pause_ms: 0, offload: false }, silent);
    let measured = report.measured();
    let row = |name: &str| {
        let found = measured.rows.iter().find(|row| row.name == name);
        found.map(|row| row.value)
    };
    assert_eq!(row("restart after 0 ms/longest time to the shadow window"), Some(None));
    assert_eq!(row("restart after 0 ms/connections"), Some(Some(0.0)));
    assert_eq!(row("losses of the link of the guest's card, for each kill"), Some(Some(0.0)));
}
