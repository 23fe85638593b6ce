//! Options of `floodway capture`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use floodway_switch::api::capture::Stage;

use super::ControlArgs;

/// Options of `floodway capture`.
#[derive(Debug, Args)]
#[command(after_help = "Captures are for root and the user of the switch. Examples:
  floodway capture vm1 -w vm1.pcapng
  floodway capture vm1 --filter 'tcp port 80' | wireshark -k -i -
  floodway capture vm1 --drops | tcpdump -r -
  floodway capture vm1 --stage offload --snaplen 96 -w flows.pcapng")]
pub struct CaptureArgs {
    /// The port or uplink
    #[arg(value_name = "PORT|UPLINK", required_unless_present_any = ["list", "end"])]
    pub interface: Option<String>,
    /// Write to this file, which only its owner may read if it is new; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub write: PathBuf,
    /// Only frames that this expression selects, as for tcpdump (pcap-filter(7)); needs libpcap
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Where frames are seen: as they come, as they are delivered, or in the TCP offload; several by commas [default: in,out]
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    pub stage: Vec<CaptureStage>,
    /// Only frames that are dropped there
    #[arg(long)]
    pub drops: bool,
    /// Most bytes of a frame that are copied; a GSO packet has up to 65,550
    #[arg(short, long, value_name = "BYTES", default_value = "262144", value_parser = value_parser!(u32).range(14..=262_144))]
    pub snaplen: u32,
    /// End after so many frames
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..))]
    pub duration: Option<u64>,
    /// Show captures that run, and the last ones that have ended
    #[arg(long, conflicts_with_all = ["interface", "end"])]
    pub list: bool,
    /// End the capture with this number, whoever has begun it
    #[arg(long, value_name = "ID", conflicts_with = "interface")]
    pub end: Option<u64>,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// Where frames are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CaptureStage {
    /// From the guest, or the uplink's device
    In,
    /// To the guest, or the uplink's device
    Out,
    /// Shown to the TCP offload, and sent and delivered by it
    Offload,
}

impl From<CaptureStage> for Stage {
    fn from(stage: CaptureStage) -> Self {
        match stage {
            CaptureStage::In => Self::In,
            CaptureStage::Out => Self::Out,
            CaptureStage::Offload => Self::Offload,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(words: &str) -> Option<CaptureArgs> {
        match Cli::try_parse_from(words.split(' ')).ok()?.command {
            Command::Capture(args) => Some(args),
            _ => None,
        }
    }

    #[test]
    fn options_of_capture() {
        let words = "floodway capture vm1 -w a.pcapng --stage in,offload --drops -s 96 -c 5";
        let args = parse(words).expect("accepted");
        assert_eq!((args.interface.as_deref(), args.write), (Some("vm1"), "a.pcapng".into()));
        assert_eq!(args.stage, [CaptureStage::In, CaptureStage::Offload]);
        assert_eq!((args.drops, args.snaplen, args.count), (true, 96, Some(5)));
        let args = parse("floodway capture up").expect("accepted");
        assert_eq!((args.write, args.snaplen), (PathBuf::from("-"), 262_144));
        assert!(parse("floodway capture --list").is_some_and(|args| args.list));
        assert!(parse("floodway capture --end 7").is_some_and(|args| args.end == Some(7)));
        for wrong in ["", " up --stage lost", " up --list", " up --end 1", " up -s 13"] {
            assert!(parse(&format!("floodway capture{wrong}")).is_none(), "{wrong}");
        }
    }
}
