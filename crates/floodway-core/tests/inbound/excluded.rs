//! Connections whose headers are not to be touched, and segments that are not to be absorbed.

use floodway_core::inbound::{Config, Sink, Verdict, WindowClamp};
use floodway_core::offload::{Edit, Segment};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use crate::network::tuple;

const SYN_ACK: Flags = Flags::SYN.with(Flags::ACK);
const ACE: Flags = Flags::ECE.with(Flags::CWR);

/// What the clamp sends by itself.
#[derive(Default)]
struct Sent(Vec<(Segment, Edit)>);

impl Sink<Segment> for Sent {
    fn send(&mut self, frame: &Segment, edit: &Edit) {
        self.0.push((*frame, *edit));
    }
}

struct Clamp {
    port: WindowClamp<Segment>,
    now: Instant,
    flow: FiveTuple,
    sent: Sent,
}

impl Clamp {
    /// The clamp of a VM with so low a rate that every segment of it would be changed or held.
    fn new() -> Self {
        let config = Config { capacity: 100_000, burst: 10_000, ..Config::default() };
        let mut port = WindowClamp::new(config, 1);
        port.set_rate(100_000, Instant::ZERO);
        Self { port, now: Instant::from_millis(1), flow: tuple(0, 1), sent: Sent::default() }
    }

    fn vm_sends(&mut self, segment: &Segment) -> Verdict {
        self.now += Duration::from_micros(100);
        let keep = || Some(*segment);
        self.port.from_vm(self.now, &self.flow, segment, keep, &mut self.sent)
    }

    fn peer_sends(&mut self, segment: &Segment) {
        self.now += Duration::from_micros(100);
        let wire = u64::from(segment.len) + 78;
        self.port.tcp_from_network(self.now, &self.flow.reversed(), segment, wire);
    }

    fn excluded(&self) -> u64 {
        self.port.counters().iter().find(|(name, ..)| *name == "excluded").expect("a counter").2
    }

    /// The handshake, from whichever side; answers what became of the VM's SYN.
    fn open(&mut self, syn: &Segment, syn_ack: &Segment, passive: bool) -> Verdict {
        let (mut first, mut second) = (*syn, *syn_ack);
        (first.seq, second.seq, second.ack) = (Seq(1000), Seq(9000), Seq(1001));
        if passive {
            self.peer_sends(&first);
            let verdict = self.vm_sends(&second);
            self.peer_sends(&segment(1001, 9001, Flags::ACK));
            verdict
        } else {
            let verdict = self.vm_sends(&first);
            self.peer_sends(&second);
            let _ = self.vm_sends(&segment(1001, 9001, Flags::ACK));
            verdict
        }
    }

    /// The peer sends, the VM acknowledges and asks. Answers the verdicts that were anything else than to pass.
    fn use_it(&mut self, passive: bool) -> usize {
        let (vm, peer) = if passive { (9001, 1001) } else { (1001, 9001) };
        let mut changed = 0;
        for n in 0..50 {
            let mut data = segment(peer + 1000 * n, vm + 100 * n, Flags::ACK);
            data.len = 1000;
            self.peer_sends(&data);
            let ack = segment(vm + 100 * n, peer + 1000 * (n + 1), Flags::ACK);
            changed += usize::from(self.vm_sends(&ack) != Verdict::Pass(Edit::default()));
            let request = Segment { len: 100, ..ack };
            changed += usize::from(self.vm_sends(&request) != Verdict::Pass(Edit::default()));
        }
        let end = self.now + Duration::from_secs(1);
        while self.port.next_timeout() <= end {
            self.now = self.now.max(self.port.next_timeout());
            self.port.handle_timeout(self.now, &mut self.sent);
        }
        changed + self.sent.0.len()
    }
}

fn segment(seq: u32, ack: u32, flags: Flags) -> Segment {
    Segment { seq: Seq(seq), ack: Seq(ack), window: 4000, flags, ..Segment::default() }
}

fn syn(flags: Flags, unknown: bool) -> Segment {
    let mut segment = Segment { window: 64_000, ..segment(0, 0, flags) };
    (segment.options.mss, segment.options.window_scale) = (Some(1460), Some(7));
    segment.options.unknown = unknown;
    segment
}

#[test]
fn a_connection_with_known_options_is_held_to_the_rate() {
    for passive in [false, true] {
        let mut clamp = Clamp::new();
        clamp.open(&syn(Flags::SYN, false), &syn(SYN_ACK, false), passive);
        assert!(clamp.use_it(passive) > 50, "what the other tests look for would be seen");
        assert_eq!(clamp.excluded(), 0);
    }
}

#[test]
fn a_connection_whose_syn_or_syn_ack_has_an_unknown_option_is_never_changed() {
    for (first, second) in [(true, false), (false, true), (true, true)] {
        for passive in [false, true] {
            let mut clamp = Clamp::new();
            let (syn, syn_ack) = (syn(Flags::SYN, first), syn(SYN_ACK, second));
            let verdict = clamp.open(&syn, &syn_ack, passive);
            // A SYN of the VM leaves before it is known what the answer has.
            if passive || first {
                assert_eq!(verdict, Verdict::Pass(Edit::default()), "{first} {second} {passive}");
            }
            assert_eq!(clamp.use_it(passive), 0, "{first} {second} {passive}");
            assert_eq!(clamp.excluded(), 1);
            assert_eq!(clamp.port.connections(), 1);
        }
    }
}

#[test]
fn repeated_syns_of_an_excluded_connection_pass_and_others_begin_anew() {
    for passive in [false, true] {
        let mut clamp = Clamp::new();
        let (first, second) = (syn(Flags::SYN, true), syn(SYN_ACK, false));
        clamp.open(&first, &second, passive);
        assert_eq!(clamp.open(&first, &second, passive), Verdict::Pass(Edit::default()));
        // Without the option, as stacks do after a few tries.
        assert_eq!(
            clamp.open(&syn(Flags::SYN, false), &second, passive),
            Verdict::Pass(Edit::default())
        );
        assert_eq!(clamp.use_it(passive), 0);
        assert_eq!(clamp.excluded(), 1);
        // The ports are used again.
        let first = Segment { seq: Seq(5_001_000), ..syn(Flags::SYN, false) };
        let mut second = Segment { seq: Seq(5_009_000), ..syn(SYN_ACK, false) };
        second.ack = first.seq + 1;
        let verdict = if passive {
            clamp.peer_sends(&first);
            clamp.vm_sends(&second)
        } else {
            clamp.vm_sends(&first)
        };
        assert_ne!(verdict, Verdict::Pass(Edit::default()), "clamped");
    }
}

#[test]
fn a_connection_that_agrees_on_accurate_ecn_is_never_changed() {
    // A window update of ours would repeat an old counter of CE marks (RFC 9768).
    for syn_ack in [Flags::CWR, ACE] {
        for passive in [false, true] {
            let mut clamp = Clamp::new();
            let mut first = syn(Flags::SYN.with(ACE), false);
            first.ae = true;
            clamp.open(&first, &syn(SYN_ACK.with(syn_ack), false), passive);
            assert_eq!(clamp.use_it(passive), 0, "{syn_ack:?} {passive}");
            assert_eq!(clamp.excluded(), 1);
        }
    }
    // One that falls back to classic ECN is.
    let mut clamp = Clamp::new();
    let mut first = syn(Flags::SYN.with(ACE), false);
    first.ae = true;
    clamp.open(&first, &syn(SYN_ACK.with(Flags::ECE), false), false);
    assert!(clamp.use_it(false) > 50);
}

#[test]
fn an_unknown_option_in_mid_stream_is_neither_held_nor_absorbed() {
    let mut clamp = Clamp::new();
    clamp.open(&syn(Flags::SYN, false), &syn(SYN_ACK, false), false);
    let mut passed = 0;
    for n in 0..50 {
        let mut data = segment(9001 + 1000 * n, 1001 + 100 * n, Flags::ACK);
        data.len = 1000;
        clamp.peer_sends(&data);
        let mut ack = segment(1001 + 100 * n, data.end().0, Flags::ACK);
        ack.options.unknown = true;
        let request = Segment { len: 100, ..ack };
        for segment in [ack, ack, request, request] {
            let verdict = clamp.vm_sends(&segment);
            assert!(matches!(verdict, Verdict::Pass(_)), "{n}: {verdict:?}");
            passed += 1;
        }
        // Its like without the option may wait.
        let plain = Segment { options: Segment::default().options, ..ack };
        let _ = clamp.vm_sends(&plain);
    }
    assert_eq!(passed, 200);
    assert!(clamp.sent.0.iter().all(|(frame, _)| !frame.options.unknown), "a copy of the option");
}
