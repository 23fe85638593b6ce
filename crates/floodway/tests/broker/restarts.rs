//! What is left of data planes that died: nothing. Needs root and ip(8).

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use floodway_switch::testing::wait_until;

use crate::scene::{Scene, exchange};
use crate::uplinks::{in_namespace, uplink};

/// Deaths after which everything that is made once has been made, the heap's areas of threads included.
const SETTLING: u32 = 20;
/// Deaths in between two looks.
const RESTARTS: u32 = 100;
/// Deaths over which memory is looked at, for its least: how far a new process has got when it is looked at, and the heap's areas that it has by then, vary.
const LOOKS: u32 = 5;
/// KiB by which a process may be larger than before: half of what losing a page at each restart would be.
pub const SLACK: u64 = 200;
/// Mappings that it may have more: half of what losing one would be. The heap makes and drops some.
const MAPPINGS: u64 = 50;

/// What a process holds.
#[derive(Debug)]
pub struct Held {
    /// Descriptors, by what they are of.
    descriptors: BTreeMap<String, usize>,
    threads: usize,
}

impl Held {
    pub fn of(pid: u64) -> Self {
        let mut descriptors = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            // One that was closed in between is not there.
            let Ok(target) = fs::read_link(entry.unwrap().path()) else { continue };
            *descriptors.entry(kind(&target.to_string_lossy())).or_default() += 1;
        }
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
        Self { descriptors, threads }
    }

    /// Nothing is more than it was `before`.
    pub fn is_within(&self, before: &Self) -> bool {
        let known = |kind: &String| before.descriptors.get(kind).copied().unwrap_or(0);
        self.threads <= before.threads
            && self.descriptors.iter().all(|(kind, &count)| count <= known(kind))
    }
}

/// A descriptor's target without what tells it from others of its kind.
fn kind(target: &str) -> String {
    target.chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// How large a process is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// KiB that are there, without those of files: which pages of a program are there is up to the kernel.
    resident: u64,
    /// Ranges of addresses that it has mapped.
    mappings: u64,
}

impl Size {
    pub fn of(pid: u64) -> Self {
        let read = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
        let status = read("status");
        let field = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_end_matches("kB").trim().parse::<u64>().unwrap()
        };
        let mappings = read("maps").lines().count() as u64;
        Self { resident: field("RssAnon:") + field("RssShmem:"), mappings }
    }

    fn least(self, other: Self) -> Self {
        let resident = self.resident.min(other.resident);
        Self { resident, mappings: self.mappings.min(other.mappings) }
    }

    /// It is no larger than it was `before`, but for what a heap makes and drops.
    pub fn is_within(self, before: Self) -> bool {
        self.resident <= before.resident + SLACK && self.mappings <= before.mappings + MAPPINGS
    }
}

/// All files below `directory`.
pub fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn a_hundred_restarts_leave_no_descriptor_memory_or_file_behind() {
    in_namespace(|| {
        let offload = "[port.offload]\ntransmit = true\nreceive = true\n";
        let extra = format!("{offload}{}", uplink("tap", "fwt0"));
        let scene = Scene::launch(&extra, &["--longest-pause", "0", "--log", "warn"]);
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        let broker = scene.broker.id().into();
        let both = || [broker, scene.data_plane()];
        let mut restart = |number| {
            scene.kill_data_plane();
            exchange(&mut a, &mut b, number);
        };
        let mut least = |numbers: Range<u32>| {
            let sizes = numbers.map(|number| {
                restart(number);
                both().map(Size::of)
            });
            sizes.reduce(|[a, b], [c, d]| [a.least(c), b.least(d)]).unwrap()
        };
        let end = SETTLING + RESTARTS;
        least(0..SETTLING - LOOKS);
        let small = least(SETTLING - LOOKS..SETTLING);
        // One that answers has all its threads.
        scene.status().unwrap();
        let (before, files_before) = (both().map(Held::of), files(scene.directory.path()));
        least(SETTLING..end - LOOKS);
        let large = least(end - LOOKS..end);
        // A connection whose request was just answered may not be closed yet.
        let mut after = both().map(Held::of);
        wait_until(&format!("{after:?} to be as {before:?}"), || {
            after = both().map(Held::of);
            after.iter().zip(&before).all(|(after, before)| after.is_within(before))
        });
        assert_eq!(files(scene.directory.path()), files_before);
        for (after, before) in large.into_iter().zip(small) {
            assert!(after.is_within(before), "{after:?}, and {before:?} before");
        }
        let status = scene.status().unwrap();
        assert_eq!(status["switch"]["predecessors"]["count"], end);
    });
}
