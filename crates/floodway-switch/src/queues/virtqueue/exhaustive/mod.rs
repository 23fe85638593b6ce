//! The descriptor walk and the ring indices against slow and obvious models, for everything that a guest can write in small rings.
//!
//! # Theory of operation
//! Nothing is random here. [`Choices`] goes through all runs of a program that makes choices: a run repeats the choices of the run before
//! but for the last one that has alternatives left. A guest's memory is such a program: what a descriptor holds is chosen when the model first
//! reads it. Descriptors that the model does not read hold garbage; that the switch does not read them either is checked by counting its
//! reads. So all tables are covered, without visiting those that differ only where nobody looks.
//!
//! Each check comes twice: with bounds for every run of the tests, and with larger ones for `make prove`.

mod indices;
mod walk;

/// The choices of one run, to be repeated up to the last one.
#[derive(Default)]
struct Choices {
    /// What was chosen, and among how many.
    made: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    /// Returns one of the numbers below `options`, in some run each.
    fn choose(&mut self, options: usize) -> usize {
        if self.at == self.made.len() {
            self.made.push((0, options));
        }
        let (chosen, of) = self.made[self.at];
        assert_eq!(of, options, "a run is repeated as it was");
        self.at += 1;
        chosen
    }

    fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.choose(options.len())]
    }

    /// Goes to the next run; returns `false` when that was the last one.
    fn next_run(&mut self) -> bool {
        assert_eq!(self.at, self.made.len(), "all choices were repeated");
        self.at = 0;
        while let Some((chosen, options)) = self.made.pop() {
            if chosen + 1 < options {
                self.made.push((chosen + 1, options));
                return true;
            }
        }
        false
    }
}

/// Calls `run` for all choices; returns how many runs there were.
fn all_runs(mut run: impl FnMut(&mut Choices)) -> u64 {
    let mut choices = Choices::default();
    let mut runs = 0;
    loop {
        run(&mut choices);
        runs += 1;
        if !choices.next_run() {
            return runs;
        }
    }
}

#[test]
fn all_runs_are_all_combinations_once() {
    let mut seen = Vec::new();
    let runs = all_runs(|choices| {
        let first = choices.choose(3);
        // A run is as long as what was chosen makes it.
        let rest: Vec<_> = (0..first).map(|_| choices.pick(&['a', 'b'])).collect();
        seen.push((first, rest));
    });
    assert_eq!(runs, 1 + 2 + 4);
    let sorted = seen.clone();
    seen.dedup();
    assert_eq!(seen, sorted);
    assert!(seen.is_sorted() && seen.contains(&(2, vec!['b', 'a'])));
}
