//! Schedulers against schedules worked out by hand.

use std::collections::BTreeMap;

use floodway_sim::cpu::{
    Change, CpuEvent, Cpus, Credit, CreditConfig, Debit, Eevdf, EevdfConfig, MachineEvent, PcpuId,
    RoundRobin, Scheduler, State, Step, VcpuId, VcpuSpec,
};
use floodway_sim::engine::Clock;
use floodway_sim::{Duration, Instant};

const MS: fn(u64) -> Duration = Duration::from_millis;
const AT: fn(u64) -> Instant = Instant::from_millis;
const FOREVER: Duration = Duration::from_secs(1_000_000);

#[derive(Clone, Copy, Debug)]
enum Event {
    Cpu(CpuEvent),
    /// The vCPU wakes up with this much to do.
    Wake(VcpuId, Duration),
}

impl From<MachineEvent> for Event {
    fn from(event: MachineEvent) -> Self {
        Self::Cpu(event.event)
    }
}

/// Processors, and what their vCPUs have to do.
struct Bench {
    cpus: Cpus,
    clock: Clock<Event>,
    todo: BTreeMap<u32, Duration>,
    done: Vec<(VcpuId, Instant)>,
}

impl Bench {
    fn new(pcpus: u32, scheduler: impl Scheduler + 'static, vcpus: &[VcpuSpec]) -> Self {
        let mut cpus = Cpus::new(0, pcpus, Box::new(scheduler));
        vcpus.iter().for_each(|spec| {
            cpus.add(spec, Instant::ZERO);
        });
        cpus.record();
        let mut clock = Clock::default();
        cpus.start(&mut clock);
        Self { cpus, clock, todo: BTreeMap::new(), done: Vec::new() }
    }

    fn wake(&mut self, at: Instant, vcpu: u32, work: Duration) {
        self.clock.at(at, Event::Wake(VcpuId(vcpu), work));
    }

    fn run(&mut self, end: Instant) {
        while let Some(event) = self.clock.next(end) {
            let mut step = match event {
                Event::Cpu(event) => self.cpus.handle(event, &mut self.clock),
                Event::Wake(vcpu, work) => {
                    *self.todo.entry(vcpu.0).or_default() += work;
                    self.cpus.wake(vcpu, &mut self.clock);
                    None
                }
            };
            while let Some(Step::Done(vcpu) | Step::Idle(vcpu)) = step {
                if matches!(step, Some(Step::Done(_))) {
                    self.done.push((vcpu, self.clock.now()));
                }
                step = match self.todo.remove(&vcpu.0) {
                    Some(work) => {
                        self.cpus.begin(vcpu, work, &mut self.clock);
                        None
                    }
                    None => self.cpus.block(vcpu, &mut self.clock),
                };
            }
        }
    }

    /// Who ran from when on pCPU 0, in milliseconds.
    fn schedule(&self) -> Vec<(f64, Option<u32>)> {
        let (mut schedule, mut current) = (Vec::new(), None);
        for Change { at, vcpu, state } in self.cpus.recorded() {
            let at = at.as_nanos() as f64 / 1e6;
            let next = match state {
                State::Running(PcpuId(0)) => Some(vcpu.0),
                _ if current == Some(vcpu.0) => None,
                _ => continue,
            };
            // Another one follows at once.
            if schedule.last() == Some(&(at, None)) {
                schedule.pop();
            }
            schedule.push((at, next));
            current = next;
        }
        schedule
    }

    fn ran(&self, vcpu: u32) -> Duration {
        self.cpus.stats(VcpuId(vcpu), self.clock.now()).ran
    }
}

fn hogs(n: u32, weight: u32) -> Vec<VcpuSpec> {
    vec![VcpuSpec::pinned(0, weight); n as usize]
}

#[test]
fn round_robin_slices_last_a_quantum_and_blocking_keeps_the_rest() {
    let mut bench = Bench::new(1, RoundRobin::new(1, MS(30)), &hogs(3, 1024));
    bench.wake(AT(0), 0, FOREVER);
    bench.wake(AT(1), 1, MS(10));
    bench.wake(AT(2), 2, FOREVER);
    // 0 runs its quantum although others wake up; 1 blocks after 10; 2 runs to 70.
    bench.wake(AT(50), 1, MS(25));
    // 1 has 20 of its quantum left: it is stopped at 120 and ends its work in its next time slice.
    bench.run(AT(250));
    let expected = [
        (0.0, Some(0)),
        (30.0, Some(1)),
        (40.0, Some(2)),
        (70.0, Some(0)),
        (100.0, Some(1)),
        (120.0, Some(2)),
        (150.0, Some(0)),
        (180.0, Some(1)),
        (185.0, Some(2)),
        (215.0, Some(0)),
        (245.0, Some(2)),
    ];
    assert_eq!(bench.schedule(), expected);
    assert_eq!(bench.done, [(VcpuId(1), AT(40)), (VcpuId(1), AT(185))]);
}

/// | at | runs | pays | accounting: credits and priorities | queue |
/// |---|---|---|---|---|
/// | 0 | 0 | | | 1 2 |
/// | 30 | 1 | 0: -300 | only 0 is active: 0 UNDER | 2 0 |
/// | 60 | 2 | 1: -300 | 150 each: 150 UNDER, -150 OVER | 0 1 |
/// | 90 | 0 | 2: -300 | 100 each: 250 UNDER, -50 OVER, -200 OVER | 1 2 |
/// | 120 | 0 | 0: -50, but UNDER until accounting | 50 UNDER, 50 UNDER, -100 OVER | 1 2 |
/// | 150 | 1 | 0: -250 | -150 OVER, 150 UNDER, 0 UNDER | 0 2, sorted to 2 0 |
/// | 180 | 2 | 1: -150, behind 2 | | |
#[test]
fn credit_hogs_by_hand() {
    let mut bench = Bench::new(1, Credit::new(1, CreditConfig::xen_4_2()), &hogs(3, 256));
    (0..3).for_each(|v| bench.wake(AT(0), v, FOREVER));
    bench.run(AT(209));
    let expected = [
        (0.0, Some(0)),
        (30.0, Some(1)),
        (60.0, Some(2)),
        (90.0, Some(0)),
        (150.0, Some(1)),
        (180.0, Some(2)),
    ];
    assert_eq!(bench.schedule(), expected);
}

#[test]
fn credit_shares_by_weight() {
    let specs = [VcpuSpec::pinned(0, 256), VcpuSpec::pinned(0, 512), VcpuSpec::pinned(0, 256)];
    for debit in [Debit::Exact, Debit::Sampled] {
        let config = CreditConfig { debit, ..CreditConfig::xen_4_2() };
        let mut bench = Bench::new(1, Credit::new(1, config), &specs);
        (0..3).for_each(|v| bench.wake(AT(0), v, FOREVER));
        bench.run(AT(60_000));
        let shares = [0, 1, 2].map(|v| bench.ran(v).as_secs_f64() / 60.0);
        for (share, expected) in shares.iter().zip([0.25, 0.5, 0.25]) {
            assert!((share - expected).abs() < 0.02, "{debit:?}: {shares:?}");
        }
    }
}

/// A hog that is OVER, and a vCPU that wakes up with credits: BOOST.
#[test]
fn a_boosted_wake_up_preempts_after_the_rate_limit() {
    for (rate_limit, expected) in [(MS(1), 101.0), (Duration::ZERO, 100.25)] {
        let config = CreditConfig { rate_limit, ..CreditConfig::xen_4_2() };
        let mut bench = Bench::new(1, Credit::new(1, config), &hogs(2, 256));
        bench.wake(AT(0), 0, MS(99));
        // The hog blocks at 99 and goes on at 100.
        bench.wake(AT(100), 0, FOREVER);
        bench.wake(Instant::from_micros(100_250), 1, MS(2));
        bench.run(AT(110));
        // Both are UNDER, so the hog's wake-up at 100 boosted it: BOOST does not preempt BOOST.
        let at = |bench: &Bench| bench.schedule().iter().find(|s| s.1 == Some(1)).map(|s| s.0);
        assert_eq!(at(&bench), None, "until the hog's slice ends at 130");
        bench.run(AT(140));
        assert_eq!(at(&bench), Some(110.0 + 20.0));
        // With the small-flows paper's change it does, after the rate limit.
        let config = CreditConfig { boost_preempts_boost: true, ..config };
        let mut bench = Bench::new(1, Credit::new(1, config), &hogs(2, 256));
        bench.wake(AT(0), 0, MS(99));
        bench.wake(AT(100), 0, FOREVER);
        bench.wake(Instant::from_micros(100_250), 1, MS(2));
        bench.run(AT(110));
        assert_eq!(at(&bench), Some(expected));
        assert_eq!(
            bench.done[1],
            (VcpuId(1), Instant::from_nanos((expected * 1e6) as u64) + MS(2))
        );
    }
}

#[test]
fn a_tick_ends_the_boost() {
    let mut bench = Bench::new(1, Credit::new(1, CreditConfig::xen_4_2()), &hogs(2, 256));
    bench.wake(AT(0), 0, FOREVER);
    // The tick at 10 makes the hog UNDER: a wake-up at 15 preempts it at once (it ran for 15 ms).
    bench.wake(AT(5), 1, Duration::ZERO);
    bench.run(AT(6));
    assert_eq!(bench.schedule(), [(0.0, Some(0))], "at 5 the hog is still boosted");
    bench.run(AT(29));
    let mut other = Bench::new(1, Credit::new(1, CreditConfig::xen_4_2()), &hogs(2, 256));
    other.wake(AT(0), 0, FOREVER);
    other.wake(AT(15), 1, MS(3));
    other.run(AT(29));
    // The hog comes back with a new slice behind the boosted one.
    assert_eq!(other.schedule(), [(0.0, Some(0)), (15.0, Some(1)), (18.0, Some(0))]);
}

/// Both wake up BOOSTed, so that the second waits. The tick at 10 makes the first UNDER.
#[test]
fn a_tick_gives_the_core_to_who_is_boosted_only_if_it_is_told_to() {
    for (tick_preempts, expected) in [(false, 30.0), (true, 10.0)] {
        let config = CreditConfig { tick_preempts, ..CreditConfig::xen_3_3() };
        let mut bench = Bench::new(1, Credit::new(1, config), &hogs(2, 256));
        bench.wake(AT(0), 0, FOREVER);
        bench.wake(AT(5), 1, MS(2));
        bench.run(AT(35));
        assert_eq!(bench.schedule()[..2], [(0.0, Some(0)), (expected, Some(1))]);
        assert_eq!(bench.schedule()[2], (expected + 2.0, Some(0)));
    }
}

/// One hog alone on a pCPU: 300 credits come in and go out every 30 ms.
#[test]
fn credits_of_a_hog_by_hand() {
    let mut credit = Credit::new(1, CreditConfig::xen_4_2());
    credit.add(VcpuId(0), &VcpuSpec::pinned(0, 256));
    let mut tickled = Vec::new();
    credit.wake(VcpuId(0), AT(0), &mut tickled);
    assert_eq!(tickled, [PcpuId(0)]);
    let decision = credit.schedule(PcpuId(0), false, AT(0));
    assert_eq!((decision.next, decision.until), (Some(VcpuId(0)), AT(30)));
    let mut seen = Vec::new();
    for tick in 1..=6 {
        assert_eq!(credit.next_tick(), AT(10 * tick));
        credit.on_tick(AT(10 * tick), &mut tickled);
        seen.push(credit.credit(VcpuId(0)));
    }
    // Accounting at 30 comes before that tick's debit: -200 + 300 - 100, then the same again.
    assert_eq!(seen, [-100, -200, 0, -100, -200, 0]);
}

/// Xen 3.3 accounts in a tick, after that tick's debit: who runs for the first time at it is active already. Its credits at the
/// third are -300 + 300; one that is found running only then has -100 + 300.
#[test]
fn sampled_debits_come_before_the_accounting() {
    for (runs_from, expected) in [(0, vec![-100, -200, 0]), (25, vec![0, 0, 200])] {
        let mut credit = Credit::new(1, CreditConfig::xen_3_3());
        credit.add(VcpuId(0), &VcpuSpec::pinned(0, 256));
        let (mut tickled, mut seen) = (Vec::new(), Vec::new());
        for tick in 1..=3 {
            if runs_from < 10 * tick && runs_from + 10 >= 10 * tick {
                credit.wake(VcpuId(0), AT(runs_from), &mut tickled);
                credit.schedule(PcpuId(0), false, AT(runs_from));
            }
            credit.on_tick(AT(10 * tick), &mut tickled);
            seen.push(credit.credit(VcpuId(0)));
        }
        assert_eq!(seen, expected);
    }
}

#[test]
fn an_idle_pcpu_takes_what_waits() {
    let free = [VcpuSpec::free(256); 3];
    let mut bench = Bench::new(2, Credit::new(2, CreditConfig::xen_4_2()), &free);
    (0..3).for_each(|v| bench.wake(AT(0), v, MS(30)));
    bench.run(AT(200));
    // 90 ms of work on two: no pCPU idles while somebody waits.
    let end = bench.done.iter().map(|d| d.1).max().unwrap();
    assert_eq!((bench.done.len(), end), (3, AT(60)));
    let pinned = [VcpuSpec::pinned(0, 256); 3];
    let mut bench = Bench::new(2, Credit::new(2, CreditConfig::xen_4_2()), &pinned);
    (0..3).for_each(|v| bench.wake(AT(0), v, MS(30)));
    bench.run(AT(200));
    assert_eq!(bench.done.iter().map(|d| d.1).max(), Some(AT(90)), "but not against affinity");
}

#[test]
fn eevdf_alternates_by_slice_and_shares_by_weight() {
    let config = EevdfConfig { slice: MS(3), tick: Duration::ZERO, run_to_parity: true };
    let mut bench = Bench::new(1, Eevdf::new(1, config), &hogs(2, 1024));
    (0..2).for_each(|v| bench.wake(AT(0), v, FOREVER));
    bench.run(AT(15));
    // After 3 ms the first is ahead of the mean: the other runs until it has had 3 ms, too.
    let expected =
        [(0.0, Some(0)), (3.0, Some(1)), (6.0, Some(0)), (9.0, Some(1)), (12.0, Some(0))];
    assert_eq!(bench.schedule()[..5], expected);
    let specs = [VcpuSpec::pinned(0, 1024), VcpuSpec::pinned(0, 2048)];
    let mut bench = Bench::new(1, Eevdf::new(1, config), &specs);
    (0..2).for_each(|v| bench.wake(AT(0), v, FOREVER));
    bench.run(AT(30_000));
    assert!((bench.ran(0).as_secs_f64() / 10.0 - 1.0).abs() < 0.01, "{:?}", bench.ran(0));
}

#[test]
fn eevdf_lets_a_sleeper_in_by_deadline() {
    // The hog's requests end at 5, 8, ... 20, 23. A sleeper with as long a slice that wakes up at 20.5 has its
    // deadline at 23.5, later than the hog's; one with a slice of 1 ms has it at 21.5.
    let cases = [(true, None, 23.0), (false, None, 23.0), (true, Some(MS(1)), 20.5)];
    for (run_to_parity, slice, expected) in cases {
        let config = EevdfConfig { slice: MS(3), tick: Duration::ZERO, run_to_parity };
        let hog = VcpuSpec::pinned(0, 1024);
        let mut bench = Bench::new(1, Eevdf::new(1, config), &[hog, VcpuSpec { slice, ..hog }]);
        bench.wake(AT(0), 1, MS(2));
        bench.wake(AT(2), 0, FOREVER);
        bench.wake(Instant::from_micros(20_500), 1, MS(1));
        bench.run(AT(40));
        let at = bench.schedule().iter().filter(|s| s.1 == Some(1)).nth(1).map(|s| s.0);
        assert_eq!(at, Some(expected), "{run_to_parity} {slice:?}");
    }
}

/// When a vCPU began to run, in milliseconds, for each time that it did.
fn begins(bench: &Bench, vcpu: u32) -> Vec<f64> {
    bench.schedule().iter().filter(|s| s.1 == Some(vcpu)).map(|s| s.0).collect()
}

#[test]
fn eevdf_protects_nobody_who_has_had_more_than_its_share() {
    // The first has 3 ms, then the second 1 ms, and sleeps with a lag of 1 ms. At 4.5 ms it is back, with a virtual time of 1.5 beside 3.5: the
    // first is in the midst of its request, and ahead of the mean.
    let config = EevdfConfig { slice: MS(3), tick: Duration::ZERO, run_to_parity: true };
    let mut bench = Bench::new(1, Eevdf::new(1, config), &hogs(2, 1024));
    bench.wake(AT(0), 0, FOREVER);
    bench.wake(AT(0), 1, MS(1));
    bench.wake(Instant::from_micros(4_500), 1, MS(1));
    bench.run(AT(6));
    assert_eq!(begins(&bench, 1), [3.0, 4.5]);
}

#[test]
fn eevdf_protects_who_is_eligible_until_its_request_is_served() {
    // One of four times the weight has its deadline at 1.75 at once, earlier than the 3 of the one that runs, which is not ahead of the mean.
    for (run_to_parity, expected) in [(true, 3.0), (false, 1.0)] {
        let config = EevdfConfig { slice: MS(3), tick: Duration::ZERO, run_to_parity };
        let specs = [VcpuSpec::pinned(0, 1024), VcpuSpec::pinned(0, 4096)];
        let mut bench = Bench::new(1, Eevdf::new(1, config), &specs);
        bench.wake(AT(0), 0, FOREVER);
        bench.wake(AT(1), 1, MS(1));
        bench.run(AT(5));
        assert_eq!(begins(&bench, 1), [expected], "{run_to_parity}");
    }
}

#[test]
fn eevdf_gives_way_to_an_equal_deadline_whatever_the_numbers() {
    // At 3.5 ms the hog's request of 3 is served, and both ask for 3 ms more at the same virtual time.
    for (hog, sleeper) in [(0, 1), (1, 0)] {
        let config = EevdfConfig { slice: MS(3), tick: MS(4), run_to_parity: true };
        let mut bench = Bench::new(1, Eevdf::new(1, config), &hogs(2, 1024));
        bench.wake(AT(0), hog, FOREVER);
        bench.wake(Instant::from_micros(3_500), sleeper, MS(1));
        bench.run(AT(5));
        assert_eq!(begins(&bench, sleeper), [3.5]);
    }
}

#[test]
fn eevdf_ends_a_served_request_at_a_wake_up() {
    // The request of the first, 1 ms, would end at the tick at 4. The third wakes up at 2, behind the second.
    let config = EevdfConfig { slice: MS(1), tick: MS(4), run_to_parity: true };
    let mut bench = Bench::new(1, Eevdf::new(1, config), &hogs(3, 1024));
    (0..2).for_each(|v| bench.wake(AT(0), v, FOREVER));
    bench.wake(AT(2), 2, FOREVER);
    bench.run(AT(3));
    assert_eq!((begins(&bench, 1), begins(&bench, 2)), (vec![2.0], vec![]));
}

#[test]
fn eevdf_keeps_as_much_lag_as_a_tick() {
    // The first runs for a whole tick, so the second leaves with a lag of 1.75 ms: more than a slice. Back at 6 it has a virtual time of 2 beside 5.5.
    let config = EevdfConfig { slice: MS(1), tick: MS(4), run_to_parity: true };
    let mut bench = Bench::new(1, Eevdf::new(1, config), &hogs(2, 1024));
    bench.wake(AT(0), 0, FOREVER);
    bench.wake(AT(0), 1, Duration::from_micros(500));
    bench.wake(AT(6), 1, FOREVER);
    bench.run(AT(13));
    assert_eq!(begins(&bench, 0), [0.0, 4.5, 12.0]);
}

#[test]
fn eevdf_judges_a_sleeper_by_the_mean_of_the_last_tick() {
    // At 3.5 it owes nothing any more, but nobody has looked since 1: it keeps its deadline of 3, and is before the other's.
    let config = EevdfConfig { slice: MS(3), tick: Duration::ZERO, run_to_parity: true };
    let mut bench = Bench::new(1, Eevdf::new(1, config), &hogs(2, 1024));
    bench.wake(AT(0), 0, MS(1));
    bench.wake(AT(0), 1, FOREVER);
    bench.wake(Instant::from_micros(3_500), 0, MS(1));
    bench.run(AT(6));
    assert_eq!(begins(&bench, 0), [0.0, 3.5]);
}

#[test]
fn eevdf_lets_a_sleeper_pay_back_what_it_overdrew() {
    // One that blocks at 2 ms, 1 ms ahead of the mean, has paid that back when the other one has run as long: it owes nothing when it wakes up.
    let config = EevdfConfig { slice: MS(3), tick: Duration::ZERO, run_to_parity: true };
    let mut bench = Bench::new(1, Eevdf::new(1, config), &hogs(2, 1024));
    bench.wake(AT(0), 0, MS(2));
    bench.wake(AT(0), 1, FOREVER);
    bench.wake(AT(10), 0, MS(1));
    bench.run(AT(20));
    // The request of the other one ends at 11.
    assert_eq!(begins(&bench, 0), [0.0, 11.0]);
}

#[test]
fn eevdf_lets_a_sleeper_that_still_owes_keep_its_deadline() {
    // At 2 ms it is ahead of the mean; at 2.5 it still is. Its request goes on at 5, when the other one's ends, and is over at 6; the next one ends at 9.
    let config = EevdfConfig { slice: MS(3), tick: Duration::ZERO, run_to_parity: true };
    let mut bench = Bench::new(1, Eevdf::new(1, config), &hogs(2, 1024));
    bench.wake(AT(0), 0, MS(2));
    bench.wake(AT(1), 1, FOREVER);
    bench.wake(Instant::from_micros(2_500), 0, FOREVER);
    bench.run(AT(10));
    assert_eq!((begins(&bench, 0), begins(&bench, 1)), (vec![0.0, 5.0], vec![2.0, 9.0]));
}

#[test]
fn changing_costs_time_and_being_preempted_costs_more() {
    let mut bench = Bench::new(1, RoundRobin::new(1, MS(10)), &hogs(2, 1024));
    bench.cpus.set_costs(MS(1), MS(2));
    bench.wake(AT(0), 0, MS(15));
    bench.wake(AT(0), 1, MS(5));
    bench.run(AT(100));
    // 0: 1 to switch, 9 done, preempted at 10. 1: 1 and 5, done at 16. 0: 1 and 2, 6 left, done at 25.
    assert_eq!(bench.done, [(VcpuId(1), AT(16)), (VcpuId(0), AT(25))]);
    let stats = bench.cpus.stats(VcpuId(0), AT(100));
    assert_eq!((stats.ran, stats.waited, stats.preempted), (MS(19), MS(6), 1));
}

#[test]
fn who_is_stopped_within_a_change_pays_for_the_next_one_only() {
    let mut bench = Bench::new(1, Credit::new(1, CreditConfig::xen_3_3()), &hogs(2, 256));
    bench.cpus.set_costs(MS(2), MS(0));
    bench.wake(AT(0), 0, MS(40));
    bench.wake(AT(20), 1, MS(1));
    bench.wake(AT(24), 1, MS(1));
    bench.run(AT(100));
    // 0: 2 to switch, 18 done, UNDER since 10. 1: done at 23. 0: stopped at 24 within its change. 1: done at 27. 0: 2, and 22 left.
    assert_eq!(bench.done, [(VcpuId(1), AT(23)), (VcpuId(1), AT(27)), (VcpuId(0), AT(51))]);
}
