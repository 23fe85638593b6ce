//! The reader in this machine's kernel, frame by frame, attached to nothing. Needs root.

use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, ProgramInput};

use super::*;

const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GUEST: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
/// `TC_ACT_SHOT`, `TC_ACT_UNSPEC` and `TC_ACT_REDIRECT`.
const SHOT: u32 = 2;
const UNSPEC: u32 = u32::MAX;
const REDIRECT: u32 = 7;

const HELLO: u8 = 1;
const MANAGED_KIND: u8 = 2;
const OFFLINE: u8 = 3;

/// The reader, and the nonce that it has drawn as it says it.
struct Reader {
    loaded: Loaded,
    nonce: [u8; 8],
}

impl Reader {
    fn load() -> Self {
        let settings = Settings { algorithm: Algorithm::Reno, initial_window: None, plain: false };
        let loaded = Loaded::load(&settings, "cubic").expect("the kernel takes the programs");
        let mut reader = Self { loaded, nonce: [0; 8] };
        let (verdict, answer) = reader.run(&notice(HELLO, 300, &[0; 8]));
        assert_eq!(verdict, REDIRECT);
        reader.nonce.copy_from_slice(&answer[66..74]);
        assert_eq!(reader.nonce, reader.loaded.nonce.to_ne_bytes(), "as the loader says it");
        reader
    }

    /// The verdict, and the frame as it is then.
    fn run(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
        let mut programs = self.loaded.object.progs_mut();
        let reader = programs.find(|program| program.name() == READER_PROGRAM).expect("a reader");
        let mut after = vec![0; frame.len()];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut after),
            ..ProgramInput::default()
        };
        let verdict = reader.test_run(input).expect("a run").return_value;
        (verdict, after)
    }

    fn map(&self, name: &str) -> libbpf_rs::Map<'_> {
        self.loaded.object.maps().find(|map| map.name() == name).expect("a map")
    }

    /// Nanoseconds for which the latest heartbeat is valid, if there was any.
    fn lifetime_ns(&self) -> Option<u64> {
        let heartbeats = self.map(HEARTBEATS);
        let key = heartbeats.keys().next()?;
        let heartbeat = heartbeats.lookup(&key, MapFlags::ANY).expect("a look-up")?;
        Some(u64::from_ne_bytes(*heartbeat[8..].first_chunk().expect("a lifetime")))
    }

    /// The first of another epoch is answered, too, unless there was an answer just before.
    fn hear(&mut self, frame: &[u8]) {
        let verdict = self.run(frame).0;
        assert!([SHOT, REDIRECT].contains(&verdict), "{verdict}");
    }

    fn named(&self) -> usize {
        self.map(MANAGED).keys().count()
    }
}

fn notice(kind: u8, lifetime_ms: u16, nonce: &[u8]) -> Vec<u8> {
    let mut flow = [0; 40];
    flow[0] = 6;
    let [high, low] = lifetime_ms.to_be_bytes();
    let common = [0x46, 0x57, 1, kind, 0, 0, 0, 9, high, low, 0, 0];
    [&GUEST[..], &HOST, &[0x88, 0xb5], &common, &flow, nonce].concat()
}

#[test]
fn a_notice_without_the_nonce_is_answered_with_it_and_not_believed() {
    let mut reader = Reader::load();
    assert_ne!(reader.nonce, [0; 8]);
    let mut wrong = reader.nonce;
    wrong[7] ^= 1;
    for (kind, nonce) in [(HELLO, &[0; 8]), (MANAGED_KIND, &wrong), (OFFLINE, &[0xff; 8])] {
        std::thread::sleep(Duration::from_millis(25));
        let (verdict, answer) = reader.run(&notice(kind, 60_000, nonce));
        assert_eq!(verdict, REDIRECT, "kind {kind}");
        // Only the nearest bridge hears it, whoever has asked.
        assert_eq!(answer[..6], [0x01, 0x80, 0xc2, 0, 0, 0x0e]);
        assert_eq!(
            (&answer[6..12], &answer[12..18]),
            (&GUEST[..], &[0x88, 0xb5, 0x46, 0x57, 1, 4][..])
        );
        assert_eq!((&answer[24..26], &answer[66..]), (&[0, 1][..], &reader.nonce[..]));
    }
    assert_eq!((reader.lifetime_ns(), reader.named()), (None, 0));
}

/// A switch that a moved guest comes to has its nonce from the one before, and nothing else.
#[test]
fn the_first_notice_of_another_epoch_is_answered() {
    let mut reader = Reader::load();
    let hear_epoch = |reader: &mut Reader, epoch: u8| {
        std::thread::sleep(Duration::from_millis(25));
        let mut frame = notice(HELLO, 300, &reader.nonce);
        frame[21] = epoch;
        let (verdict, answer) = reader.run(&frame);
        assert_eq!(reader.lifetime_ns(), Some(300_000_000), "it is believed");
        (verdict == REDIRECT).then_some(answer)
    };
    // Of epoch 9 was the notice that was answered first.
    for epoch in [8, 7] {
        let answer = hear_epoch(&mut reader, epoch).expect("an answer");
        assert_eq!((&answer[17..18], &answer[24..26]), (&[4][..], &[0, 1][..]));
        assert_eq!(answer[66..], reader.nonce);
        assert!(hear_epoch(&mut reader, epoch).is_none(), "the same once more");
    }
}

/// The kernel's verifier takes it, and sockets go on (nothing is named here).
#[test]
fn names_are_read_where_the_kernel_lets_them() {
    assert!(Reader::load().loaded.reads_names());
    let plain = Settings { algorithm: Algorithm::Reno, initial_window: None, plain: true };
    assert!(!Loaded::load(&plain, "cubic").expect("the kernel takes the programs").reads_names());
}

/// The kernel's verifier takes it; what it does needs a registration.
#[test]
fn older_connections_are_found_where_the_kernel_lets_them() {
    let is_taken = |plain| {
        let settings = Settings { algorithm: Algorithm::Reno, initial_window: None, plain };
        let loaded = Loaded::load(&settings, "cubic").expect("the kernel takes the programs");
        loaded.object.progs().any(|it| it.name() == OLDER_PROGRAM && it.autoload())
    };
    assert_eq!([false, true].map(is_taken), [true, false]);
}

#[test]
fn a_flood_of_forgeries_is_hardly_answered() {
    let mut reader = Reader::load();
    let forged = notice(HELLO, 300, &[0; 8]);
    let start = Instant::now();
    let answered = (0..1000).filter(|_| reader.run(&forged).0 == REDIRECT).count();
    let elapsed = start.elapsed();
    assert!(answered as u128 <= elapsed.as_millis() / 20 + 1, "{answered} in {elapsed:?}");
}

#[test]
fn a_notice_with_the_nonce_is_believed_for_a_second_at_most() {
    let mut reader = Reader::load();
    reader.hear(&notice(HELLO, 300, &reader.nonce));
    for (said_ms, believed_ms) in [(300, 300), (1000, 1000), (1001, 1000), (u16::MAX, 1000)] {
        assert_eq!(reader.run(&notice(HELLO, said_ms, &reader.nonce)).0, SHOT);
        assert_eq!(reader.lifetime_ns(), Some(believed_ms * 1_000_000));
    }
    assert_eq!(reader.run(&notice(MANAGED_KIND, 400, &reader.nonce)).0, SHOT);
    assert_eq!((reader.lifetime_ns(), reader.named()), (Some(400_000_000), 1));
    // A forged one takes nothing back.
    reader.run(&notice(OFFLINE, 0, &[7; 8]));
    assert_eq!(reader.named(), 1);
    assert_eq!(reader.run(&notice(OFFLINE, 0, &reader.nonce)).0, SHOT);
    assert_eq!(reader.named(), 0);
}

#[test]
fn what_is_no_notice_of_a_switch_is_not_answered() {
    let mut reader = Reader::load();
    std::thread::sleep(Duration::from_millis(25));
    // Another's nonce, a version and a kind that there is not, epoch 0, an older switch's heartbeat, and one to a group.
    let broken = |at: usize, value: u8| {
        let mut frame = notice(HELLO, 300, &[0; 8]);
        frame[at] = value;
        frame
    };
    for frame in [broken(17, 4), broken(16, 2), broken(17, 9), broken(21, 0), broken(0, 0xff)] {
        assert_eq!(reader.run(&frame).0, SHOT);
    }
    assert_eq!(reader.run(&notice(HELLO, 300, &[])[..60]).0, SHOT);
    assert_eq!(reader.run(&broken(15, 0)).0, UNSPEC, "another's experiment");
    assert_eq!(reader.lifetime_ns(), None);
    assert_eq!(reader.run(&notice(HELLO, 300, &[0; 8])).0, REDIRECT, "nothing was said before");
}
