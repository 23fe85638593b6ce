//! Live migration: the front-end learns of every page that the switch writes.

use std::os::unix::fs::FileExt;

use floodway_switch::testing::frames::{number_of, numbered};
use floodway_switch::testing::memory::memfd;
use floodway_switch::testing::message::SET_FEATURES;
use floodway_switch::testing::{GuestConfig, TestMemory, wait_until};
use floodway_switch::vhost::features;

use crate::net::Net;

const PAGE: usize = 4096;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn pages(memory: &TestMemory) -> Vec<Vec<u8>> {
    let size: u64 = memory.layouts().map(|layout| layout.size).sum();
    memory.read(0, size as usize).chunks(PAGE).map(<[u8]>::to_vec).collect()
}

#[test]
fn pages_that_are_written_are_noted_while_that_is_wanted() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let log = memfd(1 << 16);
    let noted = || {
        let mut bits = vec![0; 1 << 16];
        log.read_at(&mut bits, 0).expect("the log");
        (0..bits.len() * 8).filter(|page| bits[page / 8] >> (page % 8) & 1 == 1).collect::<Vec<_>>()
    };
    let negotiated = b.guest.config.features;
    b.frontend().set_log_base(&log, 1 << 16).expect("the switch takes the log");

    a.send(&numbered(1, 2, 0, 1000));
    assert_eq!(number_of(&b.recv().1), Some(0));
    assert_eq!(noted(), [] as [usize; 0], "nobody asked for it yet");

    let logged = negotiated | features::LOG_ALL;
    b.frontend().request(SET_FEATURES, &words(&[logged]), &[]).expect("offered");
    let before = pages(&b.guest.memory);
    for number in 1..100 {
        a.send(&numbered(1, 2, number, 1000));
    }
    a.wait_sent();
    wait_until("all frames", || net.port(2).rx().packets == 100);
    let after = pages(&b.guest.memory);
    let changed: Vec<_> = (0..before.len()).filter(|&page| before[page] != after[page]).collect();
    assert!(changed.len() > 20, "{changed:?}");
    let noted_pages = noted();
    assert!(changed.iter().all(|page| noted_pages.contains(page)), "{changed:?} {noted_pages:?}");

    let plain = negotiated & !features::LOG_ALL;
    b.frontend().request(SET_FEATURES, &words(&[plain]), &[]).expect("offered");
    for number in 1..100 {
        assert_eq!(number_of(&b.recv().1), Some(number));
    }
    let count = noted().len();
    a.send(&numbered(1, 2, 100, 1000));
    assert_eq!(number_of(&b.recv().1), Some(100));
    assert_eq!(noted().len(), count);
}
