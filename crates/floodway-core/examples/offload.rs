//! The transmit offload alone, in virtual time: no sockets, no threads, no clock.
//!
//! A guest opens a connection and hands over 100 segments at once, as if it had no congestion window. The offload stores
//! them and sends what its own window allows; a peer 20 ms away acknowledges what arrives. A line for each round trip:
//! `cargo run -p floodway-core --example offload`

use std::net::Ipv4Addr;

use floodway_core::offload::{
    Config, Edit, FlowNotice, Link, Offload, Packet, Segment, Sink, SynthesizedSegment,
    Transmission, Verdict,
};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::{Flags, OptionSummary};

const MSS: u32 = 1460;
const SEGMENTS: u32 = 100;
const RTT: Duration = Duration::from_millis(20);
const GUEST: Seq = Seq(1_000);
const PEER: Seq = Seq(9_000);

/// What has left the switch in this round trip: bytes, and the end of the last segment.
#[derive(Default)]
struct Network {
    bytes: u32,
    end: Seq,
}

/// A frame is whatever its owner likes; here it is the number of the segment.
impl Sink<u32> for Network {
    fn release(&mut self, _frame: &u32, release: &Transmission) {
        self.bytes += release.len;
        self.end = release.seq + release.len;
    }
    fn to_network(&mut self, _: &SynthesizedSegment) {}
    fn to_guest(&mut self, _: &SynthesizedSegment) {}
    fn redeliver(&mut self, _: &u32, _: &Edit) {}
    fn heartbeat(&mut self, _: &Link, _: u16) {}
    fn notify_flow(&mut self, _: &FiveTuple, _: &Link, _: FlowNotice) {}
}

fn segment(seq: Seq, ack: Seq, len: u32, flags: Flags) -> Segment {
    let mut options = OptionSummary::default();
    if flags.contains(Flags::SYN) {
        (options.mss, options.window_scale) = (Some(MSS as u16), Some(7));
        options.sack_permitted = true;
    }
    Segment { seq, ack, len, flags, options, window: 8192, ..Segment::default() }
}

fn time(now: Instant) -> String {
    format!("{:>3} ms", now.since(Instant::ZERO).as_millis())
}

fn main() {
    let mut offload = Offload::new(Config { transmit: true, ..Config::default() }, 0x5eed);
    let mut network = Network::default();
    let mut now = Instant::from_millis(1);
    let (guest, peer) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 9));
    let flow = FiveTuple::v4(guest, peer, 6).with_ports(40_000, 80);
    let (reverse, link) = (flow.reversed(), Link::default());

    let syn = segment(GUEST, Seq(0), 0, Flags::SYN);
    offload.from_guest(now, &Packet::new(&flow, &link, &syn), || None, &mut network);
    let syn_ack = segment(PEER, GUEST + 1, 0, Flags::SYN.with(Flags::ACK));
    now += RTT;
    offload.from_network(now, &Packet::new(&reverse, &link, &syn_ack), || None, &mut network);
    let ack = segment(GUEST + 1, PEER + 1, 0, Flags::ACK);
    offload.from_guest(now, &Packet::new(&flow, &link, &ack), || None, &mut network);

    for n in 0..SEGMENTS {
        let data = segment(GUEST + 1 + n * MSS, PEER + 1, MSS, Flags::ACK);
        let packet = Packet::new(&flow, &link, &data);
        if let Verdict::Pass(_) = offload.from_guest(now, &packet, || Some(n), &mut network) {
            network.bytes += data.len;
            network.end = data.end();
        }
    }
    offload.flush(now, &mut network);

    let end = GUEST + 1 + SEGMENTS * MSS;
    loop {
        let (flows, _) = offload.flows(0, 1);
        let (sent, state) = (std::mem::take(&mut network.bytes), &flows[0]);
        println!("{}: sent {sent} bytes, cwnd {}, held {}", time(now), state.cwnd, state.held);
        now += RTT;
        let ack = segment(PEER + 1, network.end, 0, Flags::ACK);
        offload.from_network(now, &Packet::new(&reverse, &link, &ack), || None, &mut network);
        offload.flush(now, &mut network);
        if ack.ack == end {
            break;
        }
    }
    println!("{}: all is acknowledged", time(now));
}
