//! Which of two states is in force while a data plane is asked to change from one to the other.
//!
//! # Theory of operation
//! The next state is in force as soon as the data plane has been asked for it: if the data plane dies after that, its successor starts with the next state. So nobody has to
//! know how far it had come. A data plane that refuses has changed nothing, and the last state is in force again. It is trusted with that as with
//! the frames of its ports: one that lies is not as the broker believes it to be until it ends, and what it can reach is the same in both.
//!
//! **Invariants**: one state is in force, all of it, and it is one of those that were [proposed](Transaction::propose); an answer that nobody asked for changes nothing.

/// States of type `S`.
#[derive(Debug)]
pub struct Transaction<S> {
    in_force: S,
    /// The number of the change that is not answered, and the state before it.
    open: Option<(u64, S)>,
    changes: u64,
}

/// An answer to no change, or to another than the one that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it answers change {0}, which is not open")]
pub struct NotAsked(pub u64);

impl<S> Transaction<S> {
    /// Starts with `first` in force.
    #[must_use]
    pub fn new(first: S) -> Self {
        Self { in_force: first, open: None, changes: 0 }
    }

    /// The state that a data plane starts with.
    #[must_use]
    pub fn in_force(&self) -> &S {
        &self.in_force
    }

    /// The state in force, and the one before while a data plane may still be in that.
    pub fn states(&self) -> impl Iterator<Item = &S> {
        std::iter::once(&self.in_force).chain(self.open.as_ref().map(|(_, last)| last))
    }

    /// Returns `true` while a data plane owes an answer.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Puts `next` in force and waits for an answer to it. Returns the number of the change, or `next` if another one is open.
    ///
    /// # Errors
    /// Another change is open.
    pub fn propose(&mut self, next: S) -> Result<u64, S> {
        if self.is_open() {
            return Err(next);
        }
        self.changes += 1;
        let last = std::mem::replace(&mut self.in_force, next);
        self.open = Some((self.changes, last));
        Ok(self.changes)
    }

    /// Puts `next` in force while there is no data plane that could have a say. Returns the state before.
    ///
    /// # Errors
    /// A change is open.
    pub fn replace(&mut self, next: S) -> Result<S, S> {
        if self.is_open() { Err(next) } else { Ok(std::mem::replace(&mut self.in_force, next)) }
    }

    /// The data plane has made change `number`, or refuses it. Returns the state that is not in force any more.
    ///
    /// # Errors
    /// That change is not open.
    pub fn answer(&mut self, number: u64, is_made: bool) -> Result<S, NotAsked> {
        match self.open.take_if(|(open, _)| *open == number) {
            Some((_, last)) if is_made => Ok(last),
            Some((_, last)) => Ok(std::mem::replace(&mut self.in_force, last)),
            None => Err(NotAsked(number)),
        }
    }

    /// The data plane has ended. Returns the state before, if a change was open: that one is made.
    pub fn end(&mut self) -> Option<S> {
        self.open.take().map(|(_, last)| last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_proposed_is_in_force_unless_it_is_refused() {
        let mut states = Transaction::new('a');
        assert_eq!(states.propose('b'), Ok(1));
        assert_eq!((*states.in_force(), states.is_open()), ('b', true));
        assert_eq!(states.states().collect::<String>(), "ba");
        assert_eq!((states.propose('c'), states.replace('c')), (Err('c'), Err('c')));
        assert_eq!(states.answer(1, true), Ok('a'));
        assert_eq!(states.propose('c'), Ok(2));
        assert_eq!(states.answer(2, false), Ok('c'));
        assert_eq!((*states.in_force(), states.is_open()), ('b', false));
        assert_eq!(states.propose('d'), Ok(3));
        assert_eq!(states.end(), Some('b'), "whoever dies over it");
        assert_eq!((*states.in_force(), states.end()), ('d', None));
        assert_eq!(states.replace('e'), Ok('d'));
    }

    #[test]
    fn an_answer_that_nobody_asked_for_changes_nothing() {
        let mut states = Transaction::new('a');
        assert_eq!(states.answer(1, true), Err(NotAsked(1)));
        states.propose('b').unwrap();
        for number in [0, 2] {
            assert_eq!(states.answer(number, false), Err(NotAsked(number)));
            assert_eq!((*states.in_force(), states.is_open()), ('b', true));
        }
        states.answer(1, true).unwrap();
        assert_eq!(states.answer(1, false), Err(NotAsked(1)), "once");
    }
}
