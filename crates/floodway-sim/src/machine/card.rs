//! The network card as the driver domain sees it: packets that have come, and when it is interrupted for them.
//!
//! # Theory of operation
//! A card that interrupts for each packet keeps its host from working, so cards gather. Three settings cover what drivers of
//! gigabit cards do ([`Interrupts`]):
//!
//! - an interrupt comes `delay` after the first packet that waits, or with the `frames`-th, whichever is first (Linux `ethtool -C`,
//!   `rx-usecs` and `rx-frames`: tg3, bnx2);
//! - and never sooner than `gap` after the one before (e1000, `InterruptThrottleRate`);
//! - what was sent is reported `tx_delay` after the first packet that was handed over since the last interrupt, if no other interrupt
//!   comes before (`tx-usecs`). There is nothing to do then, but the driver domain is woken up for it.
//!
//! From an interrupt on the driver domain *polls*: it takes packets without further interrupts until it finds none (Linux
//! NAPI). So packets that come while it works cost no interrupt, and it may not see them without one.
//!
//! The ring is bounded: what finds it full is dropped.
//!
//! Invariant: while packets wait, the driver domain polls or an interrupt is on its way.

use crate::engine::Timer;
use crate::env::{Env, Event};
use crate::packet::{Fifo, PacketId, Pool};
use crate::{Duration, Instant};

/// How a card gathers interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupts {
    /// From the first packet that waits until the interrupt; zero: at once.
    pub delay: Duration,
    /// Packets that make an interrupt before that; zero: any number waits.
    pub frames: u32,
    /// Least time between interrupts; zero: none.
    pub gap: Duration,
    /// From the first packet that was handed over for sending until the interrupt for that; zero: none.
    pub tx_delay: Duration,
}

impl Interrupts {
    /// One for each packet that comes while the driver domain does not poll, none for what was sent.
    pub const EACH: Self =
        Self { delay: Duration::ZERO, frames: 1, gap: Duration::ZERO, tx_delay: Duration::ZERO };
}

#[derive(Debug)]
pub(super) struct Card {
    machine: u32,
    slots: u32,
    interrupts: Interrupts,
    rx: Fifo,
    polled: bool,
    last: Option<Instant>,
    timer: Timer,
    /// When the timer is due; never if it is not armed.
    due: Instant,
}

impl Card {
    pub(super) fn new(machine: u32, slots: u32, interrupts: Interrupts) -> Self {
        Self {
            machine,
            slots,
            interrupts,
            rx: Fifo::default(),
            polled: false,
            last: None,
            timer: Timer::NONE,
            due: Instant::NEVER,
        }
    }

    /// A packet has come over the link; says whether it interrupts now.
    pub(super) fn on_packet(&mut self, packet: PacketId, env: &mut Env) -> bool {
        if self.rx.packets() >= self.slots {
            env.packets.remove(packet);
            return false;
        }
        self.rx.push(packet, &mut env.packets);
        if self.polled {
            return false;
        }
        let enough = self.interrupts.frames > 0 && self.rx.packets() >= self.interrupts.frames;
        let delay = if enough { Duration::ZERO } else { self.interrupts.delay };
        self.interrupt_after(delay, env)
    }

    /// A packet was handed over for sending.
    pub(super) fn on_sent(&mut self, env: &mut Env) {
        if !self.interrupts.tx_delay.is_zero() {
            self.interrupt_after(self.interrupts.tx_delay, env);
        }
    }

    /// An interrupt is wanted within `delay`; says whether it is now.
    fn interrupt_after(&mut self, delay: Duration, env: &mut Env) -> bool {
        let now = env.clock.now();
        let earliest = self.last.map_or(Instant::ZERO, |last| last + self.interrupts.gap);
        let at = (now + delay).max(earliest);
        if at <= now {
            self.interrupt(env);
            return true;
        }
        if at < self.due {
            self.due = at;
            if !env.clock.reschedule(self.timer, at) {
                self.timer = env.clock.at(at, Event::Card { machine: self.machine });
            }
        }
        false
    }

    /// The event of the timer, or the interrupt itself.
    pub(super) fn interrupt(&mut self, env: &mut Env) {
        env.clock.cancel(self.timer);
        self.due = Instant::NEVER;
        self.last = Some(env.clock.now());
        self.polled = true;
    }

    /// There is a packet to take. If the driver domain polls and finds none, it waits for an interrupt from now on.
    pub(super) fn poll(&mut self) -> bool {
        self.polled &= !self.rx.is_empty();
        self.polled
    }

    pub(super) fn take(&mut self, pool: &mut Pool) -> Option<PacketId> {
        self.rx.pop(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::data;

    const US: fn(u64) -> Duration = Duration::from_micros;

    /// Plays arrivals, at µs, to a card whose driver domain takes all at each interrupt; says when interrupts were.
    fn interrupts(of: Interrupts, arrivals: &[u64]) -> Vec<u64> {
        let mut env = Env::default();
        let mut card = Card::new(0, 512, of);
        let mut seen = Vec::new();
        for &at in arrivals {
            wait(Instant::from_micros(at), &mut card, &mut env, &mut seen);
            let id = env.packets.insert(data(1000, 0));
            if card.on_packet(id, &mut env) {
                drain(&mut card, &mut env, &mut seen);
            }
        }
        wait(Instant::from_millis(10), &mut card, &mut env, &mut seen);
        seen
    }

    fn wait(until: Instant, card: &mut Card, env: &mut Env, seen: &mut Vec<u64>) {
        while env.clock.next(until).is_some() {
            card.interrupt(env);
            drain(card, env, seen);
        }
    }

    fn drain(card: &mut Card, env: &mut Env, seen: &mut Vec<u64>) {
        seen.push(env.clock.now().as_nanos() / 1000);
        while card.poll() {
            let id = card.take(&mut env.packets).unwrap();
            env.packets.remove(id);
        }
    }

    #[test]
    fn without_moderation_each_packet_interrupts() {
        assert_eq!(interrupts(Interrupts::EACH, &[0, 12, 24]), [0, 12, 24]);
    }

    #[test]
    fn a_few_wait_for_the_timer_and_many_do_not() {
        let tg3 = Interrupts { delay: US(20), frames: 5, ..Interrupts::EACH };
        // One alone waits; the fifth of a dense burst does not.
        assert_eq!(interrupts(tg3, &[100]), [120]);
        assert_eq!(interrupts(tg3, &[0, 1, 2, 3, 4, 5]), [4, 25]);
        assert_eq!(interrupts(tg3, &[0, 12, 24]), [20, 44]);
    }

    #[test]
    fn a_throttled_card_keeps_its_distance() {
        let e1000 = Interrupts { gap: US(125), ..Interrupts::EACH };
        assert_eq!(interrupts(e1000, &[0, 12, 24, 200, 400]), [0, 125, 250, 400]);
    }

    #[test]
    fn who_polls_takes_what_comes_without_an_interrupt() {
        let mut env = Env::default();
        let mut card = Card::new(0, 2, Interrupts::EACH);
        for (n, interrupts) in [true, false, false].into_iter().enumerate() {
            let id = env.packets.insert(data(1000, 0));
            assert_eq!(card.on_packet(id, &mut env), interrupts, "packet {n}");
        }
        assert_eq!(card.rx.packets(), 2, "two slots");
        while card.poll() {
            let id = card.take(&mut env.packets).unwrap();
            env.packets.remove(id);
        }
        let id = env.packets.insert(data(1000, 0));
        assert!(card.on_packet(id, &mut env));
    }

    #[test]
    fn what_was_sent_is_reported_once_for_all() {
        let mut env = Env::default();
        let mut card = Card::new(0, 512, Interrupts { tx_delay: US(72), ..Interrupts::EACH });
        let mut seen = Vec::new();
        for at in [0, 10, 60] {
            wait(Instant::from_micros(at), &mut card, &mut env, &mut seen);
            card.on_sent(&mut env);
        }
        wait(Instant::from_millis(1), &mut card, &mut env, &mut seen);
        assert_eq!(seen, [72]);
    }
}
