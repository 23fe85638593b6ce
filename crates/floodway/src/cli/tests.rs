//! Which words are taken, and which are not.

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
    let Ok(Command::Run(args)) = parse("floodway run --config a.toml --check --log warn") else {
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
    assert_eq!((args.json, args.control.path), (true, PathBuf::from("/c.sock")));
    assert_eq!(args.watch, Some(1));
    let Ok(Command::Status(args)) = parse("floodway status --control /c.sock --watch 5") else {
        panic!("not accepted");
    };
    assert_eq!((args.json, args.watch), (false, Some(5)));
}

#[test]
fn options_of_web() {
    let Ok(Command::Web(args)) = parse("floodway web --listen [::1]:0 --socket /w.sock") else {
        panic!("not accepted");
    };
    assert_eq!(args.listen, Some("[::1]:0".parse().unwrap()));
    assert_eq!(args.socket, Some(PathBuf::from("/w.sock")));
    let Ok(Command::Web(args)) = parse("floodway web") else { panic!("not accepted") };
    assert_eq!((args.listen, args.socket), (None, None));
}

#[test]
fn options_of_top() {
    let words = "floodway top --once --json --interval 0.5 --sort tx-frames --filter web";
    let Ok(Command::Top(args)) = parse(words) else { panic!("not accepted") };
    assert!(args.once && args.json);
    assert_eq!((args.interval.as_millis(), args.sort), (500, Key::TxFrames));
    for seconds in ["0", "0.01", "3601", "-1", "NaN", "x"] {
        let error = parse(&format!("floodway top --interval={seconds}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ValueValidation, "{seconds}");
    }
}

#[test]
fn options_of_flows_offload_and_drain() {
    let Ok(Command::Flows(args)) = parse("floodway flows vm1 --limit 5 --watch") else {
        panic!("not accepted");
    };
    assert_eq!((args.port.as_deref(), args.limit, args.watch), (Some("vm1"), 5, Some(1)));
    let Ok(Command::Pairs(args)) = parse("floodway pairs --json") else { panic!("not accepted") };
    assert_eq!((args.port, args.json, args.limit), (None, true, 1000));
    let words = "floodway offload vm1 --transmit on --receive off --budget 8MiB --initial-window 3";
    let Ok(Command::Offload(args)) = parse(words) else { panic!("not accepted") };
    assert_eq!((args.transmit, args.receive), (Some(true.into()), Some(Toggle::Off)));
    assert_eq!((args.budget, args.initial_window), (Some(8 << 20), Some(3)));
    let Ok(Command::Drain(args)) = parse("floodway drain vm1 --timeout 0") else {
        panic!("not accepted");
    };
    assert_eq!((args.port.as_str(), args.undo, args.timeout), ("vm1", false, 0));
    assert!(matches!(parse("floodway drain vm1 --undo"), Ok(Command::Drain(_))));
}

#[test]
fn options_of_port_and_apply() {
    let words = "floodway port add vm3 socket=/tmp/s mtu=9000 --save f.toml";
    let Ok(Command::Port { command: PortCommand::Add(args) }) = parse(words) else {
        panic!("not accepted");
    };
    assert_eq!((&*args.name, args.keys), ("vm3", vec!["socket=/tmp/s".into(), "mtu=9000".into()]));
    assert_eq!(args.how.save, Some(PathBuf::from("f.toml")));
    let Ok(Command::Apply(args)) = parse("floodway apply -f a.toml --dry-run") else {
        panic!("not accepted");
    };
    assert_eq!((args.file, args.dry_run), (PathBuf::from("a.toml"), true));
    let conflict = parse("floodway port del vm3 --dry-run --save f.toml").unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::ArgumentConflict);
    assert!(parse("floodway port set vm3").is_err());
    let words = "floodway uplink add up0 kind=tap device=fw0";
    let Ok(Command::Uplink { command: UplinkCommand::Add(args) }) = parse(words) else {
        panic!("not accepted");
    };
    assert_eq!((&*args.name, args.keys.len()), ("up0", 2));
    assert!(matches!(
        parse("floodway network del red --dry-run"),
        Ok(Command::Network { command: NetworkCommand::Del { .. } })
    ));
}

#[test]
fn sizes_have_units() {
    assert_eq!(bytes("65536"), Ok(65_536));
    assert_eq!((bytes("64KiB"), bytes("1 GiB")), (Ok(65_536), Ok(1 << 30)));
    for bad in ["", "MiB", "-1", "4GiB", "4MB", "1.5MiB"] {
        assert!(bytes(bad).is_err(), "{bad}");
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    let cases = [
        ("floodway run", ErrorKind::MissingRequiredArgument),
        ("floodway run --config a --log info,,=x", ErrorKind::ValueValidation),
        ("floodway status --watch 0", ErrorKind::ValueValidation),
        ("floodway stats", ErrorKind::InvalidSubcommand),
        ("floodway offload", ErrorKind::MissingRequiredArgument),
        ("floodway offload vm1 --transmit yes", ErrorKind::ValueValidation),
        ("floodway offload vm1 --budget much", ErrorKind::ValueValidation),
        ("floodway drain vm1 --undo --timeout 3", ErrorKind::ArgumentConflict),
        ("floodway completions cobol", ErrorKind::InvalidValue),
    ];
    for (words, kind) in cases {
        let error = parse(words).map(|command| panic!("{words}: {command:?}")).unwrap_err();
        assert_eq!((error.kind(), error.exit_code()), (kind, 2), "{words}");
    }
}

#[test]
fn modes_of_the_transmit_offload() {
    for mode in [Transmit::Off, Transmit::Module, Transmit::Agentless, Transmit::Auto] {
        let words = format!("floodway offload vm1 --transmit {} --peer-timeout 60", mode.name());
        let Ok(Command::Offload(args)) = parse(&words) else { panic!("not accepted") };
        assert_eq!((args.transmit, args.peer_timeout), (Some(TransmitSetting(mode)), Some(60)));
    }
}
