//! What is left of data planes and brokers that died or were replaced: nothing. Needs root and ip(8).

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use floodway_switch::testing::message::GET_FEATURES;
use floodway_switch::testing::wait_until;

use crate::scene::{Scene, exchange};
use crate::upgrade::copy;
use crate::uplinks::{in_namespace, uplink};

/// Deaths after which everything that is made once has been made, the heap's areas of threads included.
const SETTLING: u32 = 20;
/// Brokers after which the data plane, which sees them all, is as large as it gets: seen to grow over the first 250, and not over the next 450.
const BROKERS_SETTLING: u32 = 300;
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

/// Restarts something a hundred times after `settling` times, and looks at the processes `of` the switch before and after: they hold no more, and are no larger.
fn leaves_nothing(
    scene: &mut Scene,
    settling: u32,
    of: fn(&Scene) -> Vec<u64>,
    mut restart: impl FnMut(&mut Scene, u32),
) {
    let mut least = |scene: &mut Scene, numbers: Range<u32>| -> Vec<Size> {
        let sizes = numbers.map(|number| {
            restart(scene, number);
            of(scene).into_iter().map(Size::of).collect::<Vec<_>>()
        });
        sizes.reduce(|a, b| a.into_iter().zip(b).map(|(a, b)| a.least(b)).collect()).unwrap()
    };
    let held = |scene: &Scene| of(scene).into_iter().map(Held::of).collect::<Vec<_>>();
    let end = settling + RESTARTS;
    least(scene, 0..settling - LOOKS);
    let small = least(scene, settling - LOOKS..settling);
    // One that answers has all its threads.
    scene.status().unwrap();
    let (before, files_before) = (held(scene), files(scene.directory.path()));
    least(scene, settling..end - LOOKS);
    let large = least(scene, end - LOOKS..end);
    // A connection whose request was just answered may not be closed yet.
    let mut after = held(scene);
    wait_until(&format!("{after:?} to be as {before:?}"), || {
        after = held(scene);
        after.iter().zip(&before).all(|(after, before)| after.is_within(before))
    });
    assert_eq!(files(scene.directory.path()), files_before);
    for (after, before) in large.into_iter().zip(small) {
        assert!(after.is_within(before), "{after:?}, and {before:?} before");
    }
}

const OFFLOAD: &str = "[port.offload]\ntransmit = true\nreceive = true\n";

#[test]
fn a_hundred_restarts_leave_no_descriptor_memory_or_file_behind() {
    in_namespace(|| {
        let extra = format!("{OFFLOAD}{}", uplink("tap", "fwt0"));
        let arguments = ["--longest-pause", "0", "--log", "warn"];
        let mut scene = Scene::launch(&extra, &arguments);
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        let both = |scene: &Scene| vec![scene.broker.id().into(), scene.data_plane()];
        leaves_nothing(&mut scene, SETTLING, both, |scene, number| {
            scene.kill_data_plane();
            exchange(&mut a, &mut b, number);
        });
        let status = scene.status().unwrap();
        assert_eq!(status["switch"]["predecessors"]["count"], SETTLING + RESTARTS);
    });
}

#[test]
fn a_hundred_brokers_leave_no_descriptor_memory_or_file_behind() {
    in_namespace(|| {
        let extra = format!("{OFFLOAD}{}", uplink("tap", "fwt0"));
        let mut scene = Scene::launch(&extra, &[]);
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        let data_plane = scene.data_plane();
        let those_that_stay = |scene: &Scene| vec![scene.data_plane(), scene.store()];
        leaves_nothing(&mut scene, BROKERS_SETTLING, those_that_stay, |scene, number| {
            scene.kill_broker();
            scene.start_broker();
            exchange(&mut a, &mut b, number);
            // The broker takes part in this.
            for vm in [&mut a, &mut b] {
                vm.frontend.get(GET_FEATURES).expect("an answer");
            }
        });
        assert_eq!(scene.data_plane(), data_plane);
    });
}

#[test]
fn a_hundred_upgrades_leave_no_descriptor_memory_or_file_behind() {
    in_namespace(|| {
        let extra = format!("{OFFLOAD}{}", uplink("tap", "fwt0"));
        let mut scene = Scene::launch(&extra, &["--log", "warn"]);
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        let program = copy(&scene, "next");
        let all = |scene: &Scene| vec![scene.broker.id().into(), scene.data_plane(), scene.store()];
        leaves_nothing(&mut scene, SETTLING, all, |scene, _| {
            scene.upgrade_to(&program);
            // One after the other: the processes of the one before are gone.
            wait_until("no more than three processes", || scene.processes().len() == 3);
        });
        exchange(&mut a, &mut b, 0);
        assert_eq!(
            scene.status().unwrap()["switch"]["programs"]["upgrades"]["count"],
            SETTLING + RESTARTS
        );
        for vm in [&mut a, &mut b] {
            vm.frontend.get(GET_FEATURES).expect("an answer");
        }
    });
}
