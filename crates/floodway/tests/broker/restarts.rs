//! What is left of data planes that died: nothing. Needs root and ip(8).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use floodway_switch::testing::wait_until;

use crate::scene::{Scene, exchange};
use crate::uplinks::{in_namespace, uplink};

/// Deaths after which everything that is made once has been made, the heap's areas of threads included.
const SETTLING: u32 = 20;
/// Deaths in between two looks.
const RESTARTS: u32 = 100;
/// KiB by which a process may be larger than before: half of what losing a page at each restart would be.
const SLACK: u64 = 200;
/// Mappings that it may have more: half of what losing one would be. The heap makes and drops some.
const MAPPINGS: u64 = 50;

/// What a process holds.
#[derive(Debug)]
struct Held {
    /// Descriptors, by what they are of.
    descriptors: BTreeMap<String, usize>,
    threads: usize,
}

impl Held {
    fn of(pid: u64) -> Self {
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
    fn is_within(&self, before: &Self) -> bool {
        let known = |kind: &String| before.descriptors.get(kind).copied().unwrap_or(0);
        self.threads <= before.threads
            && self.descriptors.iter().all(|(kind, &count)| count <= known(kind))
    }
}

/// A descriptor's target without what tells it from others of its kind.
fn kind(target: &str) -> String {
    target.chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// Ranges of addresses that a process has mapped.
fn mappings(pid: u64) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines().count() as u64
}

/// KiB of a process's memory that are there.
fn resident(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

/// All files below `directory`.
fn files(directory: &Path) -> Vec<String> {
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
        let look = || {
            let both = [broker, scene.data_plane()];
            let memory = both.map(|pid| (resident(pid), mappings(pid)));
            (both.map(Held::of), files(scene.directory.path()), memory)
        };
        let mut restart = |number| {
            scene.kill_data_plane();
            exchange(&mut a, &mut b, number);
        };
        (0..SETTLING).for_each(&mut restart);
        let before = look();
        (SETTLING..SETTLING + RESTARTS).for_each(&mut restart);
        let mut after = look();
        // A connection whose request was just answered may not be closed yet.
        wait_until(&format!("{:?} to be as {:?}", after.0, before.0), || {
            after = look();
            after.0.iter().zip(&before.0).all(|(after, before)| after.is_within(before))
        });
        assert_eq!(after.1, before.1);
        for (after, before) in after.2.into_iter().zip(before.2) {
            let is_bounded = after.0 <= before.0 + SLACK && after.1 <= before.1 + MAPPINGS;
            assert!(is_bounded, "{after:?} KiB and mappings, and {before:?} before");
        }
        let status = scene.status().unwrap();
        assert_eq!(status["switch"]["predecessors"]["count"], SETTLING + RESTARTS);
    });
}
