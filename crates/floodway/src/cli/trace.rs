//! Options of `floodway trace`.

use std::net::{Ipv4Addr, SocketAddr};

use clap::{ArgGroup, Args, value_parser};
use floodway_switch::api::trace::{Ends, TraceRequest, TracedFrame};

use super::ControlArgs;

/// Options of `floodway trace`.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("what").required(true)),
    after_help = "Nothing is sent, learned or counted. The exit code is 3 if the frame would reach nobody. Examples:
  floodway trace vm1 --tcp '10.0.0.1:40000->10.0.0.2:80' --syn
  floodway trace vm1 --udp '[fd00::1]:53->[fd00::9]:53' --dst-mac 52:54:00:00:00:09
  floodway trace uplink0 --arp 10.0.0.2 --vlan 10
  floodway trace vm1 --frame 'ffffffffffff 525400000001 0806 ...'"
)]
pub struct TraceArgs {
    /// The port or uplink that the frame comes by
    #[arg(value_name = "PORT|UPLINK")]
    pub interface: String,
    /// These bytes, in hexadecimal, from the Ethernet header on
    #[arg(long, value_name = "HEX", group = "what")]
    pub frame: Option<String>,
    /// A TCP segment with this source and destination, an acknowledgement without data unless options say otherwise
    #[arg(long, value_name = "A:B->C:D", group = "what", value_parser = ends)]
    pub tcp: Option<Ends>,
    /// A UDP datagram with this source and destination
    #[arg(long, value_name = "A:B->C:D", group = "what", value_parser = ends)]
    pub udp: Option<Ends>,
    /// An ARP request for this address
    #[arg(long, value_name = "IP", group = "what")]
    pub arp: Option<Ipv4Addr>,
    /// Source MAC address [default: that of the guest, or one behind the uplink]
    #[arg(long, value_name = "MAC", conflicts_with = "frame")]
    pub src_mac: Option<String>,
    /// Destination MAC address [default: that of the guest that has the address, or the uplink's gateway]
    #[arg(long, value_name = "MAC", conflicts_with = "frame")]
    pub dst_mac: Option<String>,
    /// Bytes of payload
    #[arg(long, value_name = "BYTES", default_value = "0", conflicts_with_all = ["frame", "arp"])]
    pub payload: usize,
    /// The TCP segment is a SYN
    #[arg(long, conflicts_with_all = ["frame", "udp", "arp"])]
    pub syn: bool,
    /// With a tag of this VLAN
    #[arg(long, value_name = "VID", conflicts_with = "frame", value_parser = value_parser!(u16).range(0..=4094))]
    pub vlan: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: ControlArgs,
}

impl TraceArgs {
    /// What the switch is asked. `None` if no frame is named, which the definition does not allow.
    #[must_use]
    pub fn request(&self) -> Option<TraceRequest> {
        let what = match (&self.frame, self.tcp, self.udp, self.arp) {
            (Some(hex), ..) => TracedFrame::Frame(hex.clone()),
            (_, Some(ends), ..) => TracedFrame::Tcp(ends),
            (_, _, Some(ends), _) => TracedFrame::Udp(ends),
            (_, _, _, Some(target)) => TracedFrame::Arp(target),
            _ => return None,
        };
        Some(TraceRequest {
            src_mac: self.src_mac.clone(),
            dst_mac: self.dst_mac.clone(),
            payload: self.payload,
            syn: self.syn,
            vlan: self.vlan,
            ..TraceRequest::new(&self.interface, what)
        })
    }
}

/// Two addresses with ports.
fn ends(text: &str) -> Result<Ends, String> {
    let parse = |end: &str| end.trim().parse::<SocketAddr>().ok();
    let ends = text.split_once("->").and_then(|(from, to)| Some((parse(from)?, parse(to)?)));
    let wrong = "must be like 10.0.0.1:40000->10.0.0.2:80 or [fd00::1]:53->[fd00::2]:53, in quotes";
    let (from, to) = ends.ok_or_else(|| wrong.to_owned())?;
    Ok(Ends { from, to })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(words: &str) -> Option<TraceArgs> {
        match Cli::try_parse_from(words.split(' ')).ok()?.command {
            Command::Trace(args) => Some(args),
            _ => None,
        }
    }

    #[test]
    fn options_of_trace() {
        let args = parse("floodway trace vm1 --tcp 10.0.0.1:1->10.0.0.2:80 --syn --payload 9");
        let request = args.and_then(|args| args.request()).expect("accepted");
        let ends =
            |from: &str, to: &str| Ends { from: from.parse().unwrap(), to: to.parse().unwrap() };
        let expected = TracedFrame::Tcp(ends("10.0.0.1:1", "10.0.0.2:80"));
        assert_eq!((&*request.interface, request.what), ("vm1", expected));
        assert_eq!((request.payload, request.syn, request.vlan), (9, true, None));
        let args = parse("floodway trace up0 --arp 10.0.0.2 --vlan 10").expect("accepted");
        assert_eq!(args.request().map(|request| request.vlan), Some(Some(10)));
        assert!(parse("floodway trace vm1 --udp [fd00::1]:5->[fd00::2]:6 --json").is_some());
        for wrong in [
            "",
            " --tcp 10.0.0.1:1",
            " --tcp 10.0.0.1->10.0.0.2",
            " --arp ::1",
            " --frame 00 --arp 10.0.0.1",
            " --udp 1.1.1.1:1->1.1.1.2:2 --syn",
            " --frame 00 --vlan 1",
            " --arp 1.1.1.1 --vlan 4095",
        ] {
            assert!(parse(&format!("floodway trace vm1{wrong}")).is_none(), "{wrong}");
        }
    }
}
