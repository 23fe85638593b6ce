//! Ports that data planes die of, and for how long their front-ends are kept away.
//!
//! # Theory of operation
//! What a guest puts into a ring may kill the process that serves it, then its successor, and so on, and with each of them the network of all other VMs. So a worker
//! notes whose turn it is before it does anything for a port, in memory that outlives it ([`StatePart::Turns`](floodway_process::message::StatePart::Turns)), and the broker
//! reads the notes when the process has gone. A port whose turn it was at [`TURNS`] crashes in a row is held to be the cause ([`Suspects`]).
//!
//! *Crashes* only: who kills a data plane by hand, or for want of memory, hits the turn of a busy port by chance. Deaths that are none leave the row as it is.
//!
//! **Being cut off** ([`CutOffs`]) means to have to connect again. The suspicion may be wrong, when a port's frames killed in another's receive ring, so
//! the first time has no further effect. A front-end that is cut off again is the cause, or comes back with it: its port stays without one for
//! [`FIRST_PAUSE`], twice as long each time, up to [`LONGEST_PAUSE`]. After [`FORGET`] without it all is forgotten; and a port that an
//! operator removes and adds is a new one. The same holds for front-ends of whose [messages](crate::session) data planes die.
//!
//! **Cost to the others**: [`TURNS`] restarts for each time that the front-end is let in.
//!
//! **Trust**: a data plane that was taken over can write any notes, and so cut off front-ends, whose interrupts and frames it has in its hands anyway.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use floodway_process::message::TURN_BYTES;

/// Crashes in a row in the turns of a port after which its front-end is cut off.
pub const TURNS: u32 = 3;
/// How long a port stays without a front-end when one is cut off for the second time.
pub const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest such time.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// A port that was left in peace for so long begins anew.
pub const FORGET: Duration = Duration::from_secs(3600);

/// Takes the notes of a data plane that has gone, for each worker the instance of the port whose turn it was. There are none afterwards.
///
/// # Errors
/// The memory cannot be read or written.
pub fn take_turns(notes: BorrowedFd<'_>, bytes: u64) -> io::Result<Vec<u64>> {
    let file = File::from(notes.try_clone_to_owned()?);
    let mut turns = Vec::new();
    for place in (0..bytes).step_by(TURN_BYTES) {
        let mut word = [0; size_of::<u64>()];
        file.read_exact_at(&mut word, place)?;
        turns.push(u64::from_ne_bytes(word));
        file.write_all_at(&[0; size_of::<u64>()], place)?;
    }
    Ok(turns)
}

/// Whose turns data planes crash in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspects {
    /// Crashes in a row, by instance.
    crashes: BTreeMap<u64, u32>,
}

impl Suspects {
    /// A data plane has crashed in these `turns`. Returns the instances of ports that are held to be the cause.
    pub fn on_crash(&mut self, turns: &[u64]) -> Vec<u64> {
        let before = std::mem::take(&mut self.crashes);
        for &instance in turns.iter().filter(|&&instance| instance != 0) {
            let count = before.get(&instance).map_or(1, |count| count + 1);
            self.crashes.insert(instance, count);
        }
        self.crashes
            .extract_if(.., |_, count| *count >= TURNS)
            .map(|(instance, _)| instance)
            .collect()
    }
}

/// Front-ends of a port that were cut off.
#[derive(Clone, Debug, Default)]
pub struct CutOffs {
    count: u32,
    /// Until when the port stayed without one.
    until: Option<Instant>,
}

impl CutOffs {
    /// One is cut off `now`. Returns how long the port is to stay without another.
    pub fn on_cut_off(&mut self, now: Instant) -> Duration {
        if self.until.is_some_and(|until| now.saturating_duration_since(until) >= FORGET) {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        let pause = match self.count {
            1 => Duration::ZERO,
            n => FIRST_PAUSE.saturating_mul(1 << (n - 2).min(16)).min(LONGEST_PAUSE),
        };
        self.until = Some(now + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use floodway_process::sealed;

    use super::*;

    #[test]
    fn notes_are_taken_once() {
        let bytes = 3 * TURN_BYTES as u64;
        let notes = File::from(sealed::fixed("turns", bytes).unwrap());
        notes.write_all_at(&7_u64.to_ne_bytes(), TURN_BYTES as u64).unwrap();
        assert_eq!(take_turns(notes.as_fd(), bytes).unwrap(), [0, 7, 0]);
        assert_eq!(take_turns(notes.as_fd(), bytes).unwrap(), [0; 3]);
        assert!(take_turns(notes.as_fd(), bytes + 1).is_err(), "longer than it is");
    }

    #[test]
    fn three_crashes_in_a_row_in_its_turn_are_too_many() {
        let mut suspects = Suspects::default();
        assert!(suspects.on_crash(&[5, 6]).is_empty() && suspects.on_crash(&[5, 0]).is_empty());
        assert!(suspects.on_crash(&[6, 0]).is_empty(), "5 is not in a row any more, 6 was not");
        assert!(suspects.on_crash(&[5, 6]).is_empty());
        assert_eq!(suspects.on_crash(&[6, 5]), [6]);
        assert!(suspects.on_crash(&[0, 6]).is_empty(), "from the start");
        assert!(suspects.on_crash(&[]).is_empty() && suspects == Suspects::default());
    }

    #[test]
    fn a_port_that_two_workers_serve_counts_once() {
        let mut suspects = Suspects::default();
        assert!((1..TURNS).all(|_| suspects.on_crash(&[5, 5]).is_empty()));
        assert_eq!(suspects.on_crash(&[5, 5]), [5]);
    }

    #[test]
    fn whoever_comes_back_with_it_is_kept_away_for_longer_each_time() {
        let mut cut_offs = CutOffs::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let pause = cut_offs.on_cut_off(now);
            now += pause + FORGET.mul_f64(0.9);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(cut_offs.on_cut_off(now + FORGET), Duration::ZERO, "forgotten");
        assert_eq!(cut_offs.on_cut_off(now + FORGET), FIRST_PAUSE);
    }
}
