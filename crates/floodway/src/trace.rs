//! `floodway trace`: what would become of a frame, stage by stage.

use std::io::{self, Write};
use std::process::ExitCode;

use floodway_switch::api::trace::{Outcome, Trace, TraceEnd, TraceStep};
use floodway_switch::control::ControlClient;

use crate::cli::TraceArgs;
use crate::output;
use crate::table::table;

/// Exit code of a frame that reaches nobody; 1 and 2 are failures to find out.
const EXIT_DROPPED: u8 = 3;

/// Prints what would become of a frame. The exit code says whether it reaches anybody.
///
/// # Errors
/// The switch does not answer, has no such port or uplink, the frame cannot be made, or standard output takes no more.
pub fn trace(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let request = args.request().ok_or_else(|| anyhow::anyhow!("no frame is named"))?;
    let trace = ControlClient::new(&args.control.path)?.trace(&request)?;
    let text = if args.json { output::json(&trace, None)? } else { render(&trace) };
    writeln!(io::stdout(), "{text}")?;
    Ok(match trace.dropped() {
        Some(_) => ExitCode::from(EXIT_DROPPED),
        None => ExitCode::SUCCESS,
    })
}

/// The frame, its stages, and where it ends; without a final newline.
fn render(trace: &Trace) -> String {
    let frame = format!("frame   {}\nfrom    {}", trace.summary, trace.interface);
    let ends: Vec<_> = trace.ends.iter().map(end).collect();
    let sections = [Some(frame), steps(&trace.steps), Some(ends.join("\n"))];
    let sections: Vec<_> = sections.into_iter().flatten().collect();
    sections.join("\n\n")
}

fn steps(steps: &[TraceStep]) -> Option<String> {
    let outcome = |step: &TraceStep| match &step.drop {
        Some(reason) => format!("drop {reason}"),
        None => step.outcome.name().to_owned(),
    };
    let row = |step: &TraceStep| {
        [step.stage.clone(), step.at.clone(), outcome(step), step.reason.clone()]
    };
    table(["STAGE", "AT", "VERDICT", "REASON"], 4, steps.iter().map(row).collect())
}

fn end(TraceEnd { at, outcome, drop }: &TraceEnd) -> String {
    match (outcome, drop) {
        (Outcome::Drop, Some(reason)) => format!("dropped at {at}: {reason}"),
        (Outcome::Deliver, _) => format!("delivered to {at}"),
        (Outcome::Wait, _) => format!("waits at {at}"),
        (outcome, _) => format!("{} at {at}", outcome.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_the_frame_its_stages_and_its_end() {
        let step = |stage: &str, at: &str, outcome, drop: Option<&str>, reason: &str| TraceStep {
            stage: stage.into(),
            at: at.into(),
            outcome,
            drop: drop.map(str::to_owned),
            reason: reason.into(),
        };
        let trace = Trace {
            interface: "vm1".into(),
            summary: "60 bytes, a > b".into(),
            frame: "00".into(),
            steps: vec![
                step("parse", "vm1", Outcome::Pass, None, "60 bytes"),
                step(
                    "port",
                    "vm2",
                    Outcome::Drop,
                    Some("oversize"),
                    "larger than mtu = 1500 allows",
                ),
            ],
            ends: vec![
                TraceEnd { at: "vm3".into(), outcome: Outcome::Deliver, drop: None },
                TraceEnd {
                    at: "vm2".into(),
                    outcome: Outcome::Drop,
                    drop: Some("oversize".into()),
                },
            ],
        };
        let expected = "\
frame   60 bytes, a > b
from    vm1

STAGE  AT   VERDICT        REASON
parse  vm1  pass           60 bytes
port   vm2  drop oversize  larger than mtu = 1500 allows

delivered to vm3
dropped at vm2: oversize";
        assert_eq!(render(&trace), expected);
        assert_eq!(trace.dropped(), None);
        let alone = Trace { ends: trace.ends[1..].to_vec(), ..trace };
        assert_eq!(alone.dropped(), Some("oversize"));
    }
}
