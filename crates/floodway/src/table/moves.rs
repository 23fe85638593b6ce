//! Connections that follow VMs from host to host.

use floodway_switch::api::status::{MoveStatus, MovesStatus};

/// Lines about moves, each after a line break; empty without `[migration]`.
pub fn lines(status: &MovesStatus) -> String {
    let MovesStatus { left, arrived, failed, leaving, arriving, last } = status;
    let mut lines = format!("\nmoves with connections: {left} out, {arrived} in, {failed} without");
    if leaving + arriving > 0 {
        lines += &format!("; ports whose VMs leave: {leaving}, that wait for one: {arriving}");
    }
    lines + &last.as_ref().map(last_move).unwrap_or_default()
}

fn last_move(last: &MoveStatus) -> String {
    let MoveStatus { port, inward, host, online, carried, problem, .. } = last;
    let way = match (host.is_empty(), inward) {
        (true, _) => String::new(),
        (false, true) => format!(" from {host}"),
        (false, false) => format!(" to {host}"),
    };
    match problem {
        Some(problem) if port.is_empty() => format!("\nconnections follow no VM: {problem}"),
        Some(problem) => format!("\nthe last one: port {port}{way}, without: {problem}"),
        None => {
            format!(
                "\nthe last one: port {port}{way}, {carried} of {online} connections go on offloaded"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_along_and_what_does_not_is_shown() {
        assert_eq!(
            lines(&MovesStatus::default()),
            "\nmoves with connections: 0 out, 0 in, 0 without"
        );
        let last = MoveStatus {
            port: "vm1".to_owned(),
            host: "b:4790".to_owned(),
            online: 3,
            carried: 2,
            ..MoveStatus::default()
        };
        let mut status =
            MovesStatus { left: 1, arriving: 1, last: Some(last), ..MovesStatus::default() };
        assert_eq!(
            lines(&status),
            "\nmoves with connections: 1 out, 0 in, 0 without; ports whose VMs leave: 0, that wait for one: 1\n\
             the last one: port vm1 to b:4790, 2 of 3 connections go on offloaded"
        );
        let last = status.last.as_mut().unwrap();
        (last.inward, last.problem) = (true, Some("it hung up".to_owned()));
        assert!(
            lines(&status).ends_with("\nthe last one: port vm1 from b:4790, without: it hung up")
        );
        status.last.as_mut().unwrap().port.clear();
        assert!(lines(&status).ends_with("\nconnections follow no VM: it hung up"));
    }
}
