//! What a guest says when data comes twice, while its ACK waits.

use floodway_core::inbound::{Config, Sink, Verdict, WindowClamp};
use floodway_core::offload::{Edit, Segment};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::SackBlock;

use crate::network::{MSS, tuple};

#[derive(Default)]
struct Left(Vec<Edit>);

impl Sink<Segment> for Left {
    fn send(&mut self, _: &Segment, edit: &Edit) {
        self.0.push(*edit);
    }
}

fn segment(seq: u32, ack: u32, len: u32, flags: Flags) -> Segment {
    Segment { seq: Seq(seq), ack: Seq(ack), len, window: 1000, flags, ..Segment::default() }
}

/// A port with one connection whose ACK of `Seq(ack)` waits.
fn waiting() -> (WindowClamp<Segment>, u32) {
    let rate = 100_000;
    let config = Config { capacity: rate, burst: 4096, ..Config::default() };
    let mut port = WindowClamp::new(config, 1);
    port.set_rate(rate, Instant::ZERO);
    let (now, flow) = (Instant::from_millis(1), tuple(0, 1));
    let mut syn = segment(0, 0, 0, Flags::SYN);
    syn.options.mss = Some(MSS as u16);
    syn.options.window_scale = Some(7);
    port.tcp_from_network(now, &flow.reversed(), &syn, 78);
    let answer = Segment { seq: Seq(100), ack: Seq(1), flags: Flags::SYN.with(Flags::ACK), ..syn };
    let _ = port.from_vm(now, &flow, &answer, || None, &mut Left::default());
    let mut ack = 1;
    port.tcp_from_network(now, &flow.reversed(), &segment(1, 101, 0, Flags::ACK), 78);
    for _ in 0..10 {
        port.tcp_from_network(now, &flow.reversed(), &segment(ack, 101, MSS, Flags::ACK), 1538);
        ack += MSS;
        let pure = segment(101, ack, 0, Flags::ACK);
        if port.from_vm(now, &flow, &pure, || Some(pure), &mut Left::default()) == Verdict::Absorb {
            return (port, ack);
        }
    }
    panic!("no ACK waited");
}

/// The guest repeats its ACK with a SACK block, and what leaves during that.
fn repeats(left: u32, right: u32) -> (Verdict, Vec<Edit>, u32) {
    let (mut port, ack) = waiting();
    let mut again = segment(101, ack, 0, Flags::ACK);
    let block = SackBlock { left: ack.wrapping_add(left), right: ack.wrapping_add(right) };
    again.options.set_sack_blocks(&[block]);
    let mut sent = Left::default();
    let now = Instant::from_millis(1) + Duration::from_micros(10);
    let verdict = port.from_vm(now, &tuple(0, 1), &again, || Some(again), &mut sent);
    (verdict, sent.0, ack)
}

#[test]
fn a_probe_of_the_sender_does_not_bring_its_turn_forward() {
    let (verdict, sent, _) = repeats(0_u32.wrapping_sub(MSS), 0);
    assert_eq!((verdict, sent.len()), (Verdict::Absorb, 0));
}

#[test]
fn a_hole_is_told_at_once_behind_the_ack_that_waited() {
    let (verdict, sent, ack) = repeats(MSS, 2 * MSS);
    assert!(matches!(verdict, Verdict::Pass(_)));
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].ack, Some(Seq(ack)));
}
