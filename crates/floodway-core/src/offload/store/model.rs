//! The scoreboard against a slow and obvious one: a list of ranges with their states, all of it walked for every question.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sent,
    Sacked,
    Lost,
    /// Sent again, as the so-manieth transmission of all.
    Again(u64),
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: Seq,
    end: Seq,
    state: State,
    /// Which frame it is of.
    frame: u32,
}

impl Range {
    fn len(&self) -> u32 {
        self.end.since(self.start)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Release { len: u32, mss: u32 },
    Sack { left: u32, len: u32 },
    LoseOldest,
    LoseOldestRepair,
    LoseFirst,
    Repair,
    ProbeLast,
    Acknowledge { part: u32 },
    Timeout,
    Undo,
    Cut { mss: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..4000_u32, 1..900_u32).prop_map(|(len, mss)| Op::Release { len, mss }),
        6 => (0..30_000_u32, 1..6_000_u32).prop_map(|(left, len)| Op::Sack { left, len }),
        4 => Just(Op::LoseOldest),
        2 => Just(Op::LoseOldestRepair),
        1 => Just(Op::LoseFirst),
        6 => Just(Op::Repair),
        1 => Just(Op::ProbeLast),
        2 => (0..1000_u32).prop_map(|part| Op::Acknowledge { part }),
        1 => Just(Op::Timeout),
        1 => Just(Op::Undo),
        1 => (1..900_u32).prop_map(|mss| Op::Cut { mss }),
    ]
}

struct Model {
    ranges: Vec<Range>,
    una: Seq,
    nxt: Seq,
    frames: u32,
    transmissions: u64,
}

impl Model {
    fn first(&self, is: impl Fn(&Range) -> bool) -> Option<usize> {
        self.ranges.iter().position(is)
    }

    fn bytes(&self, is: impl Fn(State) -> bool) -> u32 {
        self.ranges.iter().filter(|r| is(r.state)).map(Range::len).sum()
    }

    fn oldest_repair(&self) -> Option<usize> {
        let again = |r: &Range| if let State::Again(n) = r.state { Some(n) } else { None };
        let numbered = self.ranges.iter().enumerate().filter_map(|(i, r)| Some((again(r)?, i)));
        numbered.min().map(|(_, i)| i)
    }

    fn again(&mut self, index: usize) -> State {
        self.transmissions += 1;
        self.ranges[index].state = State::Again(self.transmissions);
        self.ranges[index].state
    }

    fn cut(&mut self, mss: u32) {
        let mut joined: Vec<Range> = Vec::new();
        for range in self.ranges.drain(..) {
            match joined.last_mut() {
                Some(last)
                    if last.state == State::Lost
                        && range.state == State::Lost
                        && last.frame == range.frame =>
                {
                    last.end = range.end;
                }
                _ => joined.push(range),
            }
        }
        for mut range in joined {
            while range.state != State::Sacked && range.len() > mss {
                let end = range.start + mss;
                self.ranges.push(Range { end, ..range });
                range.start = end;
            }
            self.ranges.push(range);
        }
    }
}

struct Both {
    store: Store<u32>,
    model: Model,
    /// The number of transmissions is the time of each.
    now: Instant,
}

impl Both {
    fn new(una: Seq) -> Self {
        let model = Model { ranges: Vec::new(), una, nxt: una, frames: 0, transmissions: 0 };
        Self { store: Store::new(una), model, now: Instant::ZERO }
    }

    fn run(&mut self, op: &Op) {
        self.now += std::time::Duration::from_nanos(1);
        match *op {
            Op::Release { len, mss } => self.release(len, mss),
            Op::Sack { left, len } => self.sack(self.model.una + left, self.model.una + left + len),
            Op::LoseOldest => {
                self.lose(Store::oldest_unknown, |m| m.first(|r| r.state == State::Sent));
            }
            Op::LoseOldestRepair => self.lose(Store::oldest_repair, Model::oldest_repair),
            Op::LoseFirst => self.lose(|s| s.place(0), |m| (!m.ranges.is_empty()).then_some(0)),
            Op::Repair => self.repair(),
            Op::ProbeLast => {
                let last = |m: &Model| m.ranges.iter().rposition(|r| r.state != State::Sacked);
                self.lose(Store::last_unsacked, last);
            }
            Op::Acknowledge { part } => self.acknowledge(part),
            Op::Timeout => {
                self.store.lose_everything();
                let unknown = |r: &&mut Range| r.state != State::Sacked;
                self.model.ranges.iter_mut().filter(unknown).for_each(|r| r.state = State::Lost);
            }
            Op::Undo => {
                self.store.forget_losses();
                let waits = |r: &&mut Range| r.state == State::Lost;
                self.model.ranges.iter_mut().filter(waits).for_each(|r| r.state = State::Sent);
            }
            Op::Cut { mss } => {
                self.store.cut(mss);
                self.model.cut(mss);
            }
        }
    }

    fn release(&mut self, len: u32, mss: u32) {
        let start = self.model.nxt;
        let model = &mut self.model;
        model.frames += 1;
        let segment = Segment { seq: start, len, flags: Flags::ACK, ..Segment::default() };
        self.store.append(&segment, model.frames);
        self.store.released(start + len, self.now, mss);
        for from in (0..len).step_by(mss as usize) {
            let (start, end) = (start + from, start + (from + mss).min(len));
            model.ranges.push(Range { start, end, state: State::Sent, frame: model.frames });
        }
        model.nxt = start + len;
    }

    /// As [`Sender`](crate::offload::sender) does it.
    fn sack(&mut self, left: Seq, right: Seq) {
        let right = right.min(self.model.nxt);
        if !left.before(right) {
            return;
        }
        let mut bytes = 0;
        if let Some(first) = self.store.first_from(left) {
            let mut index = first.index + usize::from(first.start.before(left));
            while let Some(place) = self.store.next_unsacked(index)
                && !place.sent.end.after(right)
            {
                bytes += self.store.mark_sacked(place.index);
                index = place.index + 1;
            }
        }
        let before = self.model.bytes(|s| s == State::Sacked);
        let within = |r: &&mut Range| !r.start.before(left) && !r.end.after(right);
        self.model.ranges.iter_mut().filter(within).for_each(|r| r.state = State::Sacked);
        assert_eq!(bytes, self.model.bytes(|s| s == State::Sacked) - before);
    }

    fn lose(
        &mut self,
        of_store: impl Fn(&mut Store<u32>) -> Option<Place>,
        of_model: impl Fn(&Model) -> Option<usize>,
    ) {
        let (found, expected) = (of_store(&mut self.store), of_model(&self.model));
        assert_eq!(found.map(|place| place.index), expected);
        let Some(index) = expected else { return };
        let state = self.model.ranges[index].state;
        let news = !matches!(state, State::Sacked | State::Lost);
        assert_eq!(self.store.mark_lost(index), news);
        if news {
            self.model.ranges[index].state = State::Lost;
        }
    }

    fn repair(&mut self) {
        let expected = self.model.first(|r| r.state == State::Lost);
        assert_eq!(self.store.next_lost().map(|place| place.index), expected);
        if let Some(index) = expected {
            self.store.repaired(index, self.now);
            self.model.again(index);
        }
    }

    fn acknowledge(&mut self, part: u32) {
        let out = self.model.nxt.since(self.model.una);
        let ack =
            self.model.una + (u64::from(out) * u64::from(part) / 999).min(u64::from(out)) as u32;
        let freed = self.store.acknowledge(ack);
        let mut delivered = 0;
        for range in &mut self.model.ranges {
            let end = range.end.min(ack).max(range.start);
            delivered += if range.state == State::Sacked { 0 } else { end.since(range.start) };
            range.start = end;
        }
        self.model.ranges.retain(|range| range.len() > 0);
        self.model.una = ack;
        assert_eq!(freed.delivered, delivered);
    }

    fn compare(&mut self) {
        self.store.check();
        let model = &self.model;
        assert_eq!((self.store.snd_una(), self.store.snd_nxt()), (model.una, model.nxt));
        assert_eq!(self.store.records(), model.ranges.len());
        for (index, range) in model.ranges.iter().enumerate() {
            let place = self.store.place(index).unwrap();
            let Sent { end, sacked, lost, in_repair, .. } = place.sent;
            assert_eq!((place.start, end), (range.start, range.end));
            let state = match (sacked, lost, in_repair) {
                (true, false, false) => State::Sacked,
                (false, true, true) => State::Again(0),
                (false, true, false) => State::Lost,
                _ => State::Sent,
            };
            let expected =
                if let State::Again(_) = range.state { State::Again(0) } else { range.state };
            assert_eq!(state, expected);
        }
        let again = |s| matches!(s, State::Again(_));
        let (sacked, again) = (model.bytes(|s| s == State::Sacked), model.bytes(again));
        let lost = model.bytes(|s| s == State::Lost);
        assert_eq!(self.store.pipe(), model.nxt.since(model.una) - sacked - lost);
        assert_eq!((self.store.sacked(), self.store.lost()), (sacked, lost + again));
        let places = [
            (self.store.oldest_unknown(), model.first(|r| r.state == State::Sent)),
            (self.store.oldest_repair(), model.oldest_repair()),
            (self.store.next_lost(), model.first(|r| r.state == State::Lost)),
        ];
        for (place, expected) in places {
            assert_eq!(place.map(|place| place.index), expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn it_is_as_a_list_of_ranges(
        una in prop_oneof![any::<u32>(), Just(u32::MAX - 5_000)],
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut both = Both::new(Seq(una));
        for op in &ops {
            both.run(op);
            both.compare();
        }
    }

    /// Beyond the capacity of the first index, and with runs longer than its words.
    #[test]
    fn it_is_as_a_list_of_ranges_when_it_grows(
        ops in prop::collection::vec(op(), 1..30), segments in 100..700_u32,
    ) {
        let mut both = Both::new(Seq(7));
        for (n, op) in ops.iter().enumerate() {
            if n % 5 == 0 {
                both.run(&Op::Release { len: segments * 10, mss: 10 });
            }
            both.run(op);
            both.compare();
        }
    }
}
