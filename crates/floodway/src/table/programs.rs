//! Which programs run, where that needs saying.

use floodway_switch::api::status::{ProgramsStatus, UpgradesStatus};

/// Lines about upgrades, each after a line break; empty for a switch that has seen none.
pub fn lines(status: &ProgramsStatus) -> String {
    let ProgramsStatus { broker, data_plane, upgrades } = status;
    let UpgradesStatus { count, at, from, problem, online, carried, .. } = upgrades;
    let mut text = String::new();
    if let Some(at) = at {
        let binary = &data_plane.binary;
        text +=
            &format!("\nupgraded {count} times; the last time at {at}, from {from}, to {binary}");
        if *online > 0 {
            text += &format!(" ({carried} of {online} offloaded connections went on so)");
        }
    }
    if let Some(problem) = problem {
        text += &format!("\nthe last upgrade failed: {problem}");
    }
    if broker != data_plane {
        text += &format!("\nthe broker is floodway {}, {}", broker.version, broker.binary);
    }
    text
}

#[cfg(test)]
mod tests {
    use floodway_switch::api::status::ProgramStatus;

    use super::*;

    #[test]
    fn only_what_is_not_to_be_expected_is_said() {
        let program = ProgramStatus { version: "1.2.3".into(), binary: "/usr/bin/floodway".into() };
        let mut status = ProgramsStatus {
            broker: program.clone(),
            data_plane: program,
            upgrades: UpgradesStatus::default(),
        };
        assert_eq!(lines(&status), "");
        status.upgrades = UpgradesStatus {
            count: 2,
            at: Some("2026-11-24T07:05:19Z".into()),
            from: "1.2.2".into(),
            online: 7,
            carried: 5,
            problem: Some("it is not executable".into()),
            ..UpgradesStatus::default()
        };
        status.broker.version = "1.2.2".into();
        let text = "\nupgraded 2 times; the last time at 2026-11-24T07:05:19Z, from 1.2.2, to /usr/bin/floodway (5 of 7 offloaded connections went on so)\
                    \nthe last upgrade failed: it is not executable\nthe broker is floodway 1.2.2, /usr/bin/floodway";
        assert_eq!(lines(&status), text);
    }
}
