//! `floodway events`: what happens to the running switch.
//!
//! Who follows is not let go when the process that moves frames is replaced: the next one is asked for what came after the last event that was printed.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use floodway_switch::api::events::{Event, EventId, EventQuery};
use floodway_switch::control::{ClientError, ControlClient};

use crate::cli::EventsArgs;

/// How long a switch that has gone may take to come back: longer than a broker lets pass before it starts another data plane.
const COMES_BACK: Duration = Duration::from_secs(10);
/// Between two attempts to find it.
const RETRY: Duration = Duration::from_millis(100);

/// Prints the events that are kept, and if asked those that come.
///
/// # Errors
/// The switch does not answer, or ends for good, or has no such port; or standard output takes no more.
pub fn events(args: &EventsArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&args.control.path)?;
    let port = args.port.clone();
    let mut query = EventQuery { port, since: args.since, follow: Some(args.follow) };
    let mut printer = Printer { json: args.json, gone_since: None, printed: Ok(()) };
    loop {
        let is_first = printer.gone_since.is_none();
        let asked = query.clone();
        let read = client.events(&asked, |document| printer.print(document, &mut query.since));
        std::mem::replace(&mut printer.printed, Ok(()))?;
        match read {
            Ok(()) if !args.follow => return Ok(()),
            Err(error) if is_first && !has_begun(&error) => return Err(error.into()),
            Err(error @ ClientError::Refused(_)) => return Err(error.into()),
            read => printer.wait(read.err())?,
        }
    }
}

/// Returns `true` if an answer had begun when the error came.
const fn has_begun(error: &ClientError) -> bool {
    matches!(error, ClientError::Answer { .. })
}

struct Printer {
    json: bool,
    /// When the switch went, until an event comes.
    gone_since: Option<Instant>,
    printed: anyhow::Result<()>,
}

impl Printer {
    /// Waits a little for a switch that has gone.
    ///
    /// # Errors
    /// It has been gone for too long: `error`, if that says more.
    fn wait(&mut self, error: Option<ClientError>) -> anyhow::Result<()> {
        let gone_since = *self.gone_since.get_or_insert_with(Instant::now);
        if gone_since.elapsed() >= COMES_BACK {
            return Err(error.map_or_else(|| anyhow!("the switch has ended"), Into::into));
        }
        thread::sleep(RETRY);
        Ok(())
    }

    /// Prints an event, and notes its number in `last`. Returns `false` if that is not possible.
    fn print(&mut self, document: &str, last: &mut Option<EventId>) -> bool {
        self.gone_since = None;
        self.printed = self.try_print(document).map(|event| *last = Some(event.id));
        self.printed.is_ok()
    }

    fn try_print(&self, document: &str) -> anyhow::Result<Event> {
        let event: Event = serde_json::from_str(document)
            .context("an event is not of this version of floodway")?;
        let mut out = io::stdout().lock();
        match self.json {
            true => writeln!(out, "{document}")?,
            false => writeln!(out, "{}", line(&event))?,
        }
        // Who reads a pipe sees each event when it comes.
        out.flush()?;
        Ok(event)
    }
}

/// An event as a line.
fn line(event: &Event) -> String {
    let Event { time, severity, kind, text, suppressed, .. } = event;
    let (severity, name, port) = (severity.name(), kind.name(), kind.port().unwrap_or("-"));
    let left_out = match suppressed {
        0 => String::new(),
        n => format!(" ({n} events of this port before it left out)"),
    };
    format!("{time}  {severity:<7}  {name:<20}  {port:<10}  {text}{left_out}")
}

#[cfg(test)]
mod tests {
    use floodway_switch::api::events::EventKind;

    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let kind = EventKind::PortConnected { port: "vm1".into(), pid: Some(7) };
        let mut event = Event {
            id: EventId { history: 1, number: 2 },
            time: "2026-01-02T03:04:05.006Z".into(),
            severity: kind.severity(),
            text: kind.to_string(),
            kind,
            suppressed: 0,
        };
        let words = |event: &Event| line(event).split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = "2026-01-02T03:04:05.006Z info port_connected vm1 front-end connected";
        assert_eq!(words(&event), expected);
        event.suppressed = 3;
        assert!(line(&event).ends_with("connected (3 events of this port before it left out)"));
        event.kind = EventKind::Lost { count: None };
        assert!(words(&event).contains(" lost - "), "{}", line(&event));
    }
}
