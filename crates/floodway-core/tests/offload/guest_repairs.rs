//! I7 for connections that carry messages: nothing follows the last segment of one, so its ACK is delayed and its loss is
//! found by timers alone. `docs/src/theory/offload.md` says how far I7 goes ("How far I7 goes").

use floodway_core::offload::Config;
use floodway_core::time::Duration;
use proptest::prelude::*;

use crate::harness::cases::check;
use crate::harness::{Setup, World};
use crate::invariants::setup;

const MS: fn(u64) -> Duration = Duration::from_millis;
const LONG: Duration = Duration::from_secs(10_000);

/// Bytes from the guest, bytes to it, and milliseconds until the next message.
type Message = (i64, i64, u64);

fn messages() -> impl Strategy<Value = Vec<Message>> {
    prop::collection::vec((1..20_000_i64, 0..5_000_i64, 0..1_000_u64), 1..12)
}

/// A setup for which I7 is promised as far as paths, queues and windows go.
fn alive(mut setup: Setup, tlp: bool) -> Setup {
    setup.peer.buffer = setup.peer.buffer.max(60_000);
    setup.peer.ack_every = setup.peer.ack_every.max(2);
    setup.guest.tlp = tlp;
    setup.offload.min_rto = Config::default().min_rto;
    setup.mercy = Some(u32::from(setup.guest.sack && setup.peer.sack));
    for path in [&mut setup.to_peer, &mut setup.to_guest] {
        path.queue = path.queue.min(path.rate.unwrap_or(u64::MAX) * 20);
    }
    setup
}

fn exchange(world: &mut World, messages: &[Message]) {
    for &(up, down, wait) in messages {
        let now = world.now;
        world.guest.write(up, now);
        world.peer.write(down, now);
        world.run_for(MS(wait));
    }
    world.transfer(0, 0, LONG);
    world.check_i7();
}

/// Losses, ACKs that are delayed by up to 40 ms, and a guest with tail loss probes of its own.
#[test]
fn the_guest_repairs_no_message() {
    let case = (setup(50), messages(), any::<bool>(), 0..=40_u64);
    check(case, |(setup, messages, tlp, delay)| {
        let mut setup = alive(setup, tlp);
        setup.peer.delayed_ack = MS(delay);
        let mut world = World::new(Setup { name: "messages", ..setup });
        world.connect();
        exchange(&mut world, &messages);
    });
}

/// ACKs that are delayed by up to 500 ms, the limit of RFC 1122 section 4.2.3.2, are no reason to repeat anything, as long as
/// nothing is lost and both ends have SACK: without it only the switch's own timeout asks for them, which grows each time that
/// it was needless, until the guest's is the shorter one. Without the offload a guest times out on them.
#[test]
fn a_late_ack_makes_no_guest_repeat() {
    let case = (setup(0), messages(), any::<bool>(), 40..=500_u64);
    check(case, |(setup, messages, tlp, delay)| {
        let mut setup = alive(setup, tlp);
        setup.peer.delayed_ack = MS(delay);
        (setup.guest.sack, setup.peer.sack) = (true, true);
        for path in [&mut setup.to_peer, &mut setup.to_guest] {
            (path.queue, path.reorder, path.duplicate) = (1 << 30, 0, 0);
        }
        let mut world = World::new(Setup { name: "late-acks", ..setup });
        world.connect();
        exchange(&mut world, &messages);
    });
}

/// A handshake that was repeated leaves both ends with a first timeout of one second; what is lost after the first answer
/// to data is repaired in time all the same.
#[test]
fn a_repeated_handshake_is_forgotten_after_the_first_answer() {
    let syns = (0..3_u64, 0..3_u64);
    let case = (setup(50), messages(), any::<bool>(), 0..=40_u64, syns);
    check(case, |(setup, messages, tlp, delay, (to_peer, to_guest))| {
        let mut setup = alive(setup, tlp);
        setup.peer.delayed_ack = MS(delay);
        let losses = [setup.to_peer.loss, setup.to_guest.loss];
        (setup.to_peer.loss, setup.to_guest.loss) = (0, 0);
        let mut world = World::new(Setup { name: "syn-loss", ..setup });
        world.to_peer.drop_next = (0..to_peer).collect();
        world.to_guest.drop_next = (0..to_guest).collect();
        world.connect();
        world.transfer_some(1, 0);
        [world.to_peer.config.loss, world.to_guest.config.loss] = losses;
        exchange(&mut world, &messages);
    });
}
