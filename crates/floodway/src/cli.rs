//! Commands and options.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, value_parser};
use clap_complete::Shell;
use floodway_switch::config::DEFAULT_CONTROL_SOCKET;
use tracing_subscriber::EnvFilter;

/// A user-space virtual switch for hosts that run many VMs per core
#[derive(Debug, Parser)]
#[command(name = "floodway", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `floodway` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the switch in the foreground until SIGINT or SIGTERM
    Run(RunArgs),
    /// Show the ports, queues, drops and addresses of the running switch
    Status(StatusArgs),
    /// Write a completion script for a shell to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the version
    Version,
}

/// Options of `floodway run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file (TOML)
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the configuration and exit
    #[arg(long)]
    pub check: bool,
    /// What to log to standard error: a level, or directives like "info,floodway_switch::vhost=debug"
    #[arg(long, value_name = "FILTER", env = "FLOODWAY_LOG", default_value = "info", value_parser = log_filter)]
    pub log: String,
}

/// Options of `floodway status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON, with every counter, instead of tables
    #[arg(long)]
    pub json: bool,
    /// Control socket of the switch
    #[arg(long, value_name = "PATH", env = "FLOODWAY_CONTROL", default_value = DEFAULT_CONTROL_SOCKET)]
    pub control: PathBuf,
    /// Show the status again every so many seconds, until interrupted (default 1)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

/// Accepts what the log filter will accept.
fn log_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn parse(words: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(words.split(' ')).map(|cli| cli.command)
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_run() {
        let Ok(Command::Run(args)) = parse("floodway run --config a.toml --check --log warn")
        else {
            panic!("not accepted");
        };
        assert_eq!(args.config, PathBuf::from("a.toml"));
        assert!(args.check);
        assert_eq!(args.log, "warn");
    }

    #[test]
    fn options_of_status() {
        let Ok(Command::Status(args)) = parse("floodway status --json --control /c.sock --watch")
        else {
            panic!("not accepted");
        };
        assert_eq!((args.json, args.control), (true, PathBuf::from("/c.sock")));
        assert_eq!(args.watch, Some(1));
        let Ok(Command::Status(args)) = parse("floodway status --control /c.sock --watch 5") else {
            panic!("not accepted");
        };
        assert_eq!((args.json, args.watch), (false, Some(5)));
    }

    #[test]
    fn wrong_usage_exits_with_2() {
        let cases = [
            ("floodway run", ErrorKind::MissingRequiredArgument),
            ("floodway run --config a --log info,,=x", ErrorKind::ValueValidation),
            ("floodway status --watch 0", ErrorKind::ValueValidation),
            ("floodway stats", ErrorKind::InvalidSubcommand),
            ("floodway completions cobol", ErrorKind::InvalidValue),
        ];
        for (words, kind) in cases {
            let error = parse(words).map(|command| panic!("{words}: {command:?}")).unwrap_err();
            assert_eq!((error.kind(), error.exit_code()), (kind, 2), "{words}");
        }
    }
}
