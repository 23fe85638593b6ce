//! When connections begin and end.

/// Connections of one VM that begin and end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub vm: usize,
    /// Connections.
    pub count: u32,
    /// Seconds from the start.
    pub begin: u32,
    pub end: u32,
}

/// All connections of one variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule(pub Vec<Group>);

impl Schedule {
    /// `counts` is, for each VM, how many connections there are at the start and at the end. One comes or goes each
    /// `step` seconds, the last one early enough to be seen.
    pub fn new(counts: &[[u32; 2]], seconds: u32, step: u32) -> Self {
        let mut groups = Vec::new();
        for (vm, &[first, last]) in counts.iter().enumerate() {
            let steady = first.min(last);
            if steady > 0 {
                groups.push(Group { vm, count: steady, begin: 0, end: seconds });
            }
            for change in 1..=first.abs_diff(last) {
                let at = (change * step).min(seconds);
                let (begin, end) = if first < last { (at, seconds) } else { (0, at) };
                if begin < end {
                    groups.push(Group { vm, count: 1, begin, end });
                }
            }
        }
        Self(groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_change_by_one_each_step() {
        let schedule = Schedule::new(&[[3, 1], [2, 2], [0, 2], [0, 0]], 9, 2);
        let at = |second: u32, vm: usize| -> u32 {
            let alive =
                schedule.0.iter().filter(|g| g.vm == vm && g.begin <= second && second < g.end);
            alive.map(|group| group.count).sum()
        };
        assert_eq!([0, 2, 4, 8].map(|second| at(second, 0)), [3, 2, 1, 1]);
        assert_eq!([0, 2, 4, 8].map(|second| at(second, 1)), [2, 2, 2, 2]);
        assert_eq!([0, 2, 4, 8].map(|second| at(second, 2)), [0, 1, 2, 2]);
        assert_eq!([0, 8].map(|second| at(second, 3)), [0, 0]);
    }
}
