//! Options of `floodway events`.

use clap::Args;
use floodway_switch::api::events::EventId;

use super::ControlArgs;

/// Options of `floodway events`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  floodway events --follow
  floodway events --port vm1
  floodway events --follow --json | jq -r 'select(.severity == \"error\") | .text'")]
pub struct EventsArgs {
    /// Go on with events that come, until interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// Print JSON, one document for each event
    #[arg(long)]
    pub json: bool,
    /// Only events of this port or uplink
    #[arg(long, value_name = "PORT|UPLINK")]
    pub port: Option<String>,
    /// Only events after this one: \"id\" of an earlier one, which the log has, too
    #[arg(long, value_name = "ID")]
    pub since: Option<EventId>,
    #[command(flatten)]
    pub control: ControlArgs,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn options_of_events() {
        let words = "floodway events -f --json --port vm1 --since 17-3";
        let Command::Events(args) = Cli::try_parse_from(words.split(' ')).unwrap().command else {
            panic!("another command")
        };
        assert_eq!((args.follow, args.json, args.port.as_deref()), (true, true, Some("vm1")));
        assert_eq!(args.since, Some(EventId { history: 17, number: 3 }));
        let wrong = Cli::try_parse_from("floodway events --since 17".split(' ')).unwrap_err();
        assert!(wrong.to_string().contains("like 1763954272123-17"), "{wrong}");
    }
}
