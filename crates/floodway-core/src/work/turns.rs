//! Whose turn it is, and how much it may cost.

/// Deficit round robin over the members of a set, which are numbered from 0.
///
/// # Theory of operation
/// A member's *credit* is what it may still spend; below zero it is in debt. In each round, [`begin`](Self::begin) adds a quantum to each
/// member's credit, and one without debt spends it in steps of whatever size until it is in debt or has nothing more
/// to do. What a step costs is known after it was taken, so the last step of a turn ends in debt. Where charges are estimates,
/// [`correct`](Self::correct) puts a turn right at its end.
///
/// What a member has not spent is lost when it has nothing more to do: nobody saves up. Debts stay, and are paid a quantum a round
/// whether the member wants a turn or not.
///
/// The thread never waits for a debt: when a round has served nobody, [`skip_rounds`](Self::skip_rounds) lets as many rounds pass at once
/// as the member with the least debt needs.
///
/// **Invariants**: a credit is at most a quantum. Over any number of rounds, two members that had something to do all the time differ
/// in what they have spent by at most the costs of one step of each, and a quantum more within a round: a turn ends with a credit between
/// zero and the negative cost of its last step, and both were given the same. With corrections, what the last turn of each
/// was corrected by comes on top.
#[derive(Clone, Debug)]
pub struct Turns {
    quantum: i64,
    credits: Box<[i64]>,
}

impl Turns {
    /// `members` members without credit, which may each spend `quantum` in a round (at least 1).
    #[must_use]
    pub fn new(members: usize, quantum: u32) -> Self {
        Self { quantum: i64::from(quantum.max(1)), credits: vec![0; members].into() }
    }

    /// Begins the turn of a member. Returns what it may spend; `None` if it is in debt and has to sit this round out.
    #[inline]
    pub fn begin(&mut self, member: usize) -> Option<u64> {
        let credit = self.credits.get_mut(member)?;
        *credit = credit.saturating_add(self.quantum).min(self.quantum);
        self.left(member)
    }

    /// What a member may still spend, at least 1; `None` if it is in debt.
    #[inline]
    #[must_use]
    pub fn left(&self, member: usize) -> Option<u64> {
        let credit = u64::try_from(*self.credits.get(member)?).ok()?;
        // Without debt there is always room for one step.
        Some(credit.max(1))
    }

    /// Takes over the credit or debt that member `theirs` of another set has there.
    pub fn carry_over(&mut self, member: usize, other: &Self, theirs: usize) {
        if let (Some(credit), Some(&carried)) =
            (self.credits.get_mut(member), other.credits.get(theirs))
        {
            *credit = carried.min(self.quantum);
        }
    }

    /// Charges a member, whether it is its turn or not.
    #[inline]
    pub fn charge(&mut self, member: usize, cost: u64) {
        if let Some(credit) = self.credits.get_mut(member) {
            *credit = credit.saturating_sub(i64::try_from(cost).unwrap_or(i64::MAX));
        }
    }

    /// Corrects what a member was charged in its turn: `by` nanoseconds more, or less if negative.
    #[inline]
    pub fn correct(&mut self, member: usize, by: i64) {
        if let Some(credit) = self.credits.get_mut(member) {
            *credit = credit.saturating_sub(by);
        }
    }

    /// A member has nothing more to do: it keeps its debts and loses its credit.
    #[inline]
    pub fn end(&mut self, member: usize) {
        if let Some(credit) = self.credits.get_mut(member) {
            *credit = (*credit).min(0);
        }
    }

    /// Lets a member pay what it owes in `rounds` rounds that have passed without it, in which it had nothing to do.
    pub fn sit_out(&mut self, member: usize, rounds: u64) {
        if let Some(credit) = self.credits.get_mut(member) {
            let paid = i64::try_from(rounds).unwrap_or(i64::MAX).saturating_mul(self.quantum);
            *credit = credit.saturating_add(paid).min(0);
        }
    }

    /// To be called when a round has served nobody. Lets rounds pass until some member that is in debt has its turn in the next
    /// one. Returns `false` if none is in debt.
    #[inline]
    pub fn skip_rounds(&mut self) -> bool {
        // The turn adds the last quantum itself.
        let Some(least) = self.credits.iter().copied().filter(|&c| c < 0).max() else {
            return false;
        };
        let quantum = self.quantum.unsigned_abs();
        let rounds = least.unsigned_abs().div_ceil(quantum) - 1;
        let paid = i64::try_from(rounds * quantum).unwrap_or(i64::MAX);
        for credit in self.credits.iter_mut().filter(|credit| **credit < 0) {
            *credit = credit.saturating_add(paid).min(0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a member spends in a round in which it always has something to do, in steps of `cost`.
    fn serve(turns: &mut Turns, member: usize, mut cost: impl FnMut() -> u64) -> u64 {
        let mut spent = 0;
        let mut left = turns.begin(member);
        while left.is_some() {
            let step = cost();
            spent += step;
            turns.charge(member, step);
            left = turns.left(member);
        }
        spent
    }

    #[test]
    fn a_debt_is_paid_a_quantum_a_round() {
        let mut turns = Turns::new(1, 100);
        assert_eq!(turns.begin(0), Some(100));
        turns.charge(0, 350);
        turns.end(0);
        assert_eq!([turns.begin(0), turns.begin(0), turns.begin(0)], [None, None, Some(50)]);
    }

    #[test]
    fn who_was_left_out_of_rounds_is_where_it_would_be_without() {
        let mut turns = [(); 2].map(|()| Turns::new(1, 100));
        for cost in [0, 30, 1050] {
            for rounds in 0..15 {
                turns.iter_mut().for_each(|turns| turns.charge(0, cost));
                for _ in 0..rounds {
                    turns[0].begin(0);
                    turns[0].end(0);
                }
                turns[1].sit_out(0, rounds);
                turns[0].end(0);
                let credits = turns.each_ref().map(|turns| turns.credits[0]);
                assert_eq!(credits[0], credits[1], "{cost} and {rounds} rounds");
            }
        }
    }

    #[test]
    fn nobody_saves_up() {
        let mut turns = Turns::new(1, 100);
        for _ in 0..10 {
            assert_eq!(turns.begin(0), Some(100));
            turns.charge(0, 10);
            turns.end(0);
        }
        turns.charge(0, 5);
        assert_eq!(turns.begin(0), Some(95));
        assert_eq!(turns.begin(0), Some(100), "at most a quantum, also without an end");
    }

    #[test]
    fn a_turn_that_cost_less_than_charged_is_given_the_difference_in_the_next_round() {
        let mut turns = Turns::new(1, 100);
        assert_eq!(turns.begin(0), Some(100));
        turns.charge(0, 120);
        assert_eq!(turns.left(0), None);
        turns.correct(0, -15);
        assert_eq!(turns.begin(0), Some(95));
        turns.charge(0, 96);
        turns.correct(0, 29);
        assert_eq!(turns.begin(0), Some(70), "or the next ones are shorter");
        turns.correct(0, -1000);
        assert_eq!(turns.begin(0), Some(100), "nobody saves up");
    }

    #[test]
    fn a_round_without_service_passes_at_once() {
        let mut turns = Turns::new(3, 100);
        assert!(!turns.skip_rounds());
        turns.charge(0, 1_000_001);
        turns.charge(1, 5_000_000);
        assert!(turns.skip_rounds());
        assert_eq!([turns.begin(0), turns.begin(1), turns.begin(2)], [Some(99), None, Some(100)]);
        turns.charge(2, u64::MAX);
        assert!(turns.begin(2).is_none() && turns.skip_rounds());
        assert_eq!(turns.begin(9), None, "no such member");
    }

    proptest! {
        /// Two members that are never done differ by a step of each, over any number of rounds.
        #[test]
        fn shares_are_fair_over_every_interval(
            quantum in 1_u32..10_000,
            steps in [proptest::collection::vec(1_u64..30_000, 1..20), proptest::collection::vec(1_u64..30_000, 1..20)],
            rounds in 1_usize..200,
        ) {
            let mut turns = Turns::new(2, quantum);
            let mut steps_of = steps.iter().map(|s| s.iter().cycle().copied()).collect::<Vec<_>>();
            let mut history = vec![[0, 0]];
            for _ in 0..rounds {
                let mut sum = history[history.len() - 1];
                let before = sum;
                for member in 0..2 {
                    let next = &mut steps_of[member];
                    sum[member] += serve(&mut turns, member, || next.next().unwrap());
                }
                if sum == before {
                    prop_assert!(turns.skip_rounds());
                }
                history.push(sum);
            }
            let largest = steps.iter().map(|s| s.iter().max().unwrap()).sum::<u64>();
            for (i, from) in history.iter().enumerate() {
                for to in &history[i..] {
                    let apart = (to[0] - from[0]).abs_diff(to[1] - from[1]);
                    prop_assert!(apart <= largest, "{from:?} {to:?}");
                }
            }
        }

        /// The thread is never idle: a round after `skip_rounds` serves somebody.
        #[test]
        fn a_debt_never_keeps_the_thread_from_working(quantum in 1_u32..1000, debts in proptest::collection::vec(0_u64..1_000_000, 1..10)) {
            let mut turns = Turns::new(debts.len(), quantum);
            for (member, &debt) in debts.iter().enumerate() {
                turns.charge(member, debt);
            }
            turns.skip_rounds();
            let served = (0..debts.len()).filter(|&member| turns.begin(member).is_some()).count();
            prop_assert!(served > 0);
        }
    }
}
