//! What becomes of a port's connections when its guest moves to another host, or comes from one.
//!
//! # Theory of operation
//! Only the port's thread changes what is here, between two messages of the front-end, so a ring neither starts nor stops meanwhile. It follows the [orders](Order) that the broker's
//! messages have become, and what it says goes back the same way.
//!
//! **A guest leaves.** A front-end that wants writes to be noted is about to move its guest ([`Device::note_migration`]):
//!
//! | state | until |
//! |---|---|
//! | *stays* | writes are to be noted. Without connections, or without a broker, it *drains* |
//! | *asks*: everything goes on | the answer: *goes* or *drains*. None within [`ANSWER_MS`]: *drains* |
//! | *goes*: everything goes on, into a file that is there already | the last ring has stopped, by a message or because the front-end has gone: all is written and set aside, *gone*; or *drains* if that cannot be |
//! | *gone*: connections stand still, and nothing of them is forgotten | the other host has them: they are forgotten. It has not, or nobody says so within [`RELEASE_MS`]: they are back, and *drain*. Or rings start again: they are back, and it *stays*, or *asks* again |
//! | *drains* | writes are not noted any more, or the front-end has gone |
//!
//! Asking and going end also when writes are not noted any more: the guest stays.
//!
//! What waits for the guest of these connections is dropped then, since it says what was said to the guest and not what the peer has said; it is kept besides, or sent again. Other frames follow the guest.
//!
//! **A guest comes.** Rings that are to start wait while something is *expected*, for at most [`ARRIVAL_MS`] from then on. What comes for the guest meanwhile goes the way of a guest that is not there: nobody has been told
//! that it is here. When its connections have come they are taken in, with what is owed in the journal, and then the rings start, in the same step. So no guest that runs here and in its
//! name something is acknowledged has connections elsewhere. What comes before the rings are to start waits here, and is thrown away if the front-end goes: then the guest goes on where it was.
//!
//! **Another process** finds nothing of this: what was set aside is brought back before it takes over ([`Device::end_moves`]), and if this one is killed, it is in the journal. Rings that wait are started by that process,
//! which has the connections. If only the broker goes, the port goes on [alone](Device::go_on_alone).
//!
//! **The switch stops**, or the port is removed: nobody will say whether the other host has what was set aside, and the journal ends. So it is brought back, and what it owes is reset.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use floodway_core::offload::Resumption;
use floodway_process::message::{ANSWER_MS, ARRIVAL_MS, FromDataPlane, RELEASE_MS};

use super::Device;
use crate::kept::flows::{FORMAT, Moved};
use crate::queues::rx::PendingFrame;
use crate::state::offload::moved::{Left, Order};
use crate::state::port::Port;

/// Where a port is with a guest that leaves.
#[derive(Default)]
pub(super) enum Departure {
    #[default]
    Stays,
    /// Until then for an answer.
    Asks(Instant),
    /// Into this file, of so many bytes.
    Goes(OwnedFd, u64),
    /// Until then for word of the other host.
    Gone(Instant),
    Drains,
}

/// Where a port is with a guest that comes.
#[derive(Default)]
pub(super) struct Arrival {
    /// Rings that are to start wait for what it moves with.
    expected: bool,
    /// They do, until then.
    waits: Option<Instant>,
    /// It is here.
    came: Option<Box<Moved>>,
}

fn number(port: &Port) -> u16 {
    port.id.index() as u16
}

fn leaving(port: &Port, leaving: bool) -> FromDataPlane {
    FromDataPlane::Leaving { port: number(port), leaving }
}

fn imported(port: &Port, found: Option<Resumption>) -> FromDataPlane {
    let Resumption { carried, online, .. } = found.unwrap_or_default();
    FromDataPlane::Imported { port: number(port), taken: found.is_some(), carried, online }
}

/// Lets the worker of `port` look what has become of its connections.
fn wake_worker(port: &Port) {
    port.waiting.store(true, Ordering::Release);
    port.waker.wake();
}

impl Device {
    /// Notes whether the guest is about to move: front-ends want writes to be noted for nothing else.
    pub(super) fn note_migration(&mut self) {
        let port = Arc::clone(&self.port);
        let departure = std::mem::take(&mut self.departure);
        let may_follow = port.offload.is_active() && port.offload.moving.is_connected();
        self.departure = match (self.log_in_use().is_some(), departure) {
            (true, Departure::Stays) if may_follow => {
                port.offload.moving.say(leaving(&port, true));
                Departure::Asks(Instant::now() + Duration::from_millis(ANSWER_MS))
            }
            (true, Departure::Stays) => self.drain(),
            (false, Departure::Asks(_) | Departure::Goes(..)) => {
                port.offload.moving.say(leaving(&port, false));
                Departure::Stays
            }
            (false, Departure::Stays | Departure::Drains) => {
                port.on_migrating(false);
                Departure::Stays
            }
            (_, unchanged) => unchanged,
        };
    }

    /// It is known what becomes of connections, and the guest may still be about to move, or run again: nobody is asked once more.
    fn decided(&self) -> Departure {
        if self.log_in_use().is_some() { self.drain() } else { Departure::Stays }
    }

    fn drain(&self) -> Departure {
        self.port.on_migrating(true);
        Departure::Drains
    }

    /// Does what was ordered.
    pub fn follow_orders(&mut self) {
        let port = Arc::clone(&self.port);
        while let Some(order) = port.offload.moving.take() {
            match order {
                Order::Export(format, file, bytes) => self.export_into(format, file, bytes),
                Order::StayBehind => self.stay_behind(),
                Order::Released => self.release(),
                Order::Arriving(true) => self.arrival.expected = self.is_free(),
                Order::Arriving(false) => self.expect_nothing(),
                Order::Import(moved) => self.on_import(moved),
            }
        }
    }

    /// When something is to be done without a message or an order.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let asks = match self.departure {
            Departure::Asks(until) | Departure::Gone(until) => Some(until),
            _ => None,
        };
        asks.into_iter().chain(self.arrival.waits).min()
    }

    /// Does what is due.
    pub fn on_time(&mut self) {
        let now = Instant::now();
        if matches!(self.departure, Departure::Asks(until) if until <= now) {
            tracing::info!(
                port = self.port.config.name,
                "nobody says whether another host takes connections: they go off the offload"
            );
            self.departure = self.drain();
        }
        if matches!(self.departure, Departure::Gone(until) if until <= now) {
            tracing::warn!(
                port = self.port.config.name,
                "nobody says whether another host has its connections: they are taken back"
            );
            self.stay_behind();
        }
        if self.arrival.waits.is_some_and(|until| until <= now) {
            tracing::info!(
                port = self.port.config.name,
                "the connections of the guest that has moved here do not come"
            );
            self.expect_nothing();
        }
    }

    fn export_into(&mut self, format: u32, file: OwnedFd, bytes: u64) {
        match self.departure {
            Departure::Asks(_) | Departure::Goes(..) if format == FORMAT => {
                self.departure = Departure::Goes(file, bytes);
                self.export_if_stopped();
            }
            Departure::Gone(_) => {}
            // Too late, or not in this way.
            _ => {
                self.stay_behind();
                self.say_exported(Left::default());
            }
        }
    }

    fn say_exported(&self, Left { online, bytes }: Left) {
        let port = number(&self.port);
        self.port.offload.moving.say(FromDataPlane::Exported { port, online, bytes });
    }

    fn is_stopped(&self) -> bool {
        self.port.pairs.iter().all(|pair| !pair.rx().is_running() && !pair.tx().is_running())
    }

    /// Sets connections aside if they are to go, and no ring runs any more.
    pub(super) fn export_if_stopped(&mut self) {
        if !matches!(self.departure, Departure::Goes(..)) || !self.is_stopped() {
            return;
        }
        let Departure::Goes(file, room) = std::mem::take(&mut self.departure) else { return };
        let port = &self.port;
        let left = port.offload.leave(file, room, port.nonce()).unwrap_or_else(|error| {
            tracing::error!(port = port.config.name, %error, "connections cannot be written");
            None
        });
        self.say_exported(left.unwrap_or_default());
        self.departure = match left {
            Some(_) => {
                self.drop_waiting();
                Departure::Gone(Instant::now() + Duration::from_millis(RELEASE_MS))
            }
            None => self.drain(),
        };
    }

    /// Drops what waits for a guest whose connections are set aside: it would be taken for the peer's at the other host, and says what was said to the guest.
    fn drop_waiting(&self) {
        let aside = self.port.offload.moving.aside();
        let Some(aside) = &*aside else { return };
        let is_of = |frame: &PendingFrame| aside.knows(&frame.bytes);
        self.port.pairs.iter().for_each(|pair| pair.rx().drop_waiting(is_of));
    }

    fn stay_behind(&mut self) {
        self.departure = match std::mem::take(&mut self.departure) {
            Departure::Asks(_) | Departure::Goes(..) => self.drain(),
            Departure::Gone(_) => {
                self.bring_back();
                self.decided()
            }
            unchanged => unchanged,
        };
    }

    fn bring_back(&self) {
        self.port.offload.bring_back();
        wake_worker(&self.port);
    }

    /// The other host has what is owed. If an earlier process has set it aside, this one has found it in the journal.
    fn release(&mut self) {
        match std::mem::take(&mut self.departure) {
            Departure::Gone(_) => {
                self.port.offload.forget();
                self.departure = self.decided();
            }
            departure if self.is_stopped() => {
                self.port.offload.forget_found();
                self.departure = departure;
            }
            departure => self.departure = departure,
        }
    }

    /// Rings start again: whoever was on the way to another host is still here.
    pub(super) fn return_from_move(&mut self) {
        if matches!(self.departure, Departure::Gone(_)) {
            self.departure = Departure::Stays;
            self.bring_back();
            self.port.offload.moving.say(leaving(&self.port, false));
            self.note_migration();
        }
    }

    /// No other host is to be reckoned with any more, and no ring starts here for that: the switch stops, or another process goes on with the port.
    pub fn end_moves(&mut self) {
        self.stay_behind();
        self.forget_arrival();
    }

    /// Nobody is there any more who speaks with other hosts, and the port goes on.
    pub fn go_on_alone(&mut self) {
        self.stay_behind();
        self.expect_nothing();
    }

    /// The front-end has gone, and its rings have stopped.
    pub(super) fn end_departure(&mut self) {
        let departure = std::mem::take(&mut self.departure);
        match departure {
            Departure::Asks(_) => self.port.offload.moving.say(leaving(&self.port, false)),
            Departure::Gone(_) => self.departure = departure,
            Departure::Stays | Departure::Goes(..) | Departure::Drains => {}
        }
    }

    /// No ring runs, and no connection is known.
    fn is_free(&self) -> bool {
        self.is_stopped() && self.port.offload.is_free()
    }

    /// Whether a ring may start now, and not when what its guest moves with has come. It is taken in if it has.
    pub(super) fn may_start(&mut self) -> bool {
        if self.arrival.came.is_some() {
            self.take_in();
        } else if self.arrival.expected {
            let until = Instant::now() + Duration::from_millis(ARRIVAL_MS);
            self.arrival.waits.get_or_insert(until);
            return false;
        }
        true
    }

    fn take_in(&mut self) {
        let Some(moved) = std::mem::take(&mut self.arrival).came else { return };
        let port = &self.port;
        let found = self.is_free().then(|| {
            port.nonce.store(moved.nonce, Ordering::Relaxed);
            port.offload.take_in(*moved, &port.policy)
        });
        tracing::info!(port = port.config.name, ?found, "a guest has come with its connections");
        port.offload.moving.say(imported(port, found));
    }

    /// The port's guest may have the addresses of these connections. Else the other host would have this one speak for others.
    fn may_take_in(&self, moved: &Moved) -> bool {
        let Port { policy, config, .. } = &*self.port;
        let refused =
            moved.carried.guests().find(|&(mac, ip)| policy.check_addresses(mac, ip).is_err());
        if let Some((mac, ip)) = refused {
            tracing::warn!(port = config.name, %mac, %ip, "a guest comes with connections that are not its own");
        }
        refused.is_none()
    }

    fn on_import(&mut self, moved: Option<Box<Moved>>) {
        let moved = moved.filter(|moved| self.may_take_in(moved));
        if !self.arrival.expected || moved.is_none() {
            self.port.offload.moving.say(imported(&self.port, None));
            return self.expect_nothing();
        }
        self.arrival.came = moved;
        if self.arrival.waits.is_some() {
            self.update_all();
        }
    }

    /// Nothing comes any more: rings that wait start.
    pub(super) fn expect_nothing(&mut self) {
        if self.forget_arrival() {
            self.update_all();
        }
    }

    /// Nothing comes any more. Returns `true` if rings wait.
    fn forget_arrival(&mut self) -> bool {
        let Arrival { waits, came, .. } = std::mem::take(&mut self.arrival);
        if came.is_some() {
            self.port.offload.moving.say(imported(&self.port, None));
        }
        waits.is_some()
    }
}
