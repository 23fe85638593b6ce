//! The class of a frame, and the code point that says it.
//!
//! Each guest has a meter of its own for each uplink: what it sends fills its own table, and no other's.

use std::sync::atomic::AtomicU64;

use floodway_core::egress::meter::{Config, CounterCells, Counters, Meter};
use floodway_core::egress::qdisc::Class;
use floodway_core::l2::PortId;
use floodway_core::time::Instant;
use floodway_wire::{FiveTuple, parse, traffic_class};

use super::Settings;
use crate::config::MeterConfig;
use crate::frame::{Frame, PREFIX_LEN};

/// Pairs of a guest that are looked at once a second whether they are idle. More go when new ones come.
const FORGET: u32 = 64;

/// What a frame says of itself.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// Addresses and ports; [`FiveTuple::NONE`] if there are none to be found.
    pub(super) flow: FiveTuple,
    /// DSCP and ECN, if it is IP.
    pub(super) traffic_class: Option<u8>,
}

/// Classes and tags of one uplink's frames.
pub(super) struct Tagger {
    config: MeterConfig,
    pair: Config,
    guests: usize,
    seed: u64,
    /// Words that all meters count in; each in its own if there are none.
    counters: Option<&'static [AtomicU64]>,
    /// By number of the guest; made when it first sends.
    meters: Vec<Option<Box<Meter>>>,
}

impl Tagger {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            config: settings.meter.clone(),
            pair: settings.meter.pair(settings.link.bits_per_second()),
            guests: settings.guests,
            seed: settings.seed,
            counters: settings.counters,
            meters: Vec::new(),
        }
    }

    /// The class of a frame of `source`.
    #[inline]
    pub(super) fn classify(
        &mut self,
        source: PortId,
        frame: &Frame<'_>,
        now: Instant,
    ) -> (Class, Option<Seen>) {
        if !self.config.enabled {
            return (Class::Low, None);
        }
        let seen = Seen::of(frame);
        let class = match self.class_of_uplink(source, &seen) {
            Some(class) => class,
            None => self.meter(source).classify(&seen.flow, frame.len, now),
        };
        (class, Some(seen))
    }

    /// The class that [`classify`](Self::classify) would give a frame; nothing is noted.
    pub(super) fn would_classify(&self, source: PortId, frame: &Frame<'_>, now: Instant) -> Class {
        if !self.config.enabled {
            return Class::Low;
        }
        let seen = Seen::of(frame);
        self.class_of_uplink(source, &seen).unwrap_or_else(|| {
            let classify = |meter: &Meter| meter.would_classify(&seen.flow, frame.len, now);
            // A guest that has sent nothing has no meter yet.
            self.meter_of(source.index())
                .map_or_else(|| classify(&Meter::new(self.pair, 0)), classify)
        })
    }

    /// The class of what another uplink sends, which is metered there or not at all. `None` for a guest.
    #[inline]
    fn class_of_uplink(&self, source: PortId, seen: &Seen) -> Option<Class> {
        let high = seen.traffic_class.is_some_and(|class| class >> 2 == self.config.high_dscp);
        (source.index() >= self.guests).then_some(if high { Class::High } else { Class::Low })
    }

    /// Writes the frame's first bytes with the code point of its class to `headers`, and answers how many there
    /// are; `None` if they are right as they are.
    #[inline]
    pub(super) fn retag(
        &self,
        source: PortId,
        class: Class,
        seen: &Seen,
        frame: &Frame<'_>,
        headers: &mut [u8; PREFIX_LEN],
    ) -> Option<usize> {
        let dscp = match class {
            Class::High => self.config.high_dscp,
            Class::Low => self.config.low_dscp,
        };
        let theirs = seen.traffic_class?;
        if !self.config.enabled || source.index() >= self.guests || theirs >> 2 == dscp {
            return None;
        }
        let len = frame.prefix.len().min(PREFIX_LEN);
        headers[..len].copy_from_slice(&frame.prefix[..len]);
        traffic_class::set_dscp(&mut headers[..len], dscp);
        Some(len)
    }

    /// Forgets idle pairs.
    pub(super) fn forget(&mut self, now: Instant) {
        self.meters.iter_mut().flatten().for_each(|meter| meter.forget(FORGET, now));
    }

    /// Pairs that are known, and what all meters have done.
    pub(super) fn sums(&self) -> (u64, Counters) {
        let mut pairs = 0;
        let mut sum = Counters::default();
        for meter in self.meters.iter().flatten() {
            pairs += u64::from(meter.len());
            let Counters { high, low, refused, capped, demoted, promoted } = meter.counters();
            sum.high += high;
            sum.low += low;
            sum.refused += refused;
            sum.capped += capped;
            sum.demoted += demoted;
            sum.promoted += promoted;
        }
        let kept = self.counters.and_then(CounterCells::kept);
        (pairs, kept.map_or(sum, |cells| cells.get()))
    }

    /// Frames are metered and tagged.
    pub(super) const fn is_enabled(&self) -> bool {
        self.config.enabled
    }

    /// The meter of guest `source`, if it ever sent anything.
    pub(super) fn meter_of(&self, source: usize) -> Option<&Meter> {
        self.meters.get(source)?.as_deref()
    }

    #[inline]
    fn meter(&mut self, source: PortId) -> &mut Meter {
        let index = source.index();
        if self.meters.len() <= index {
            self.meters.resize_with(index + 1, || None);
        }
        let (pair, seed) = (self.pair, self.seed ^ (index as u64).rotate_left(48));
        let counters = self.counters;
        self.meters[index].get_or_insert_with(|| Box::new(meter(pair, seed, counters)))
    }
}

/// The meter of a guest, which counts in the first of `counters`.
#[cold]
fn meter(config: Config, seed: u64, counters: Option<&'static [AtomicU64]>) -> Meter {
    let mut meter = Meter::new(config, seed);
    if let Some(cells) = counters.and_then(CounterCells::kept) {
        meter.count_in(cells);
    }
    meter
}

impl Seen {
    #[inline]
    pub(super) fn of(frame: &Frame<'_>) -> Self {
        match parse(frame.prefix, frame.len as usize) {
            Ok(meta) if meta.ip_len() > 0 => {
                Self { flow: meta.flow, traffic_class: Some(meta.traffic_class) }
            }
            Ok(_) => Self { flow: FiveTuple::NONE, traffic_class: None },
            // A switch on the way may look at the code point all the same.
            Err(_) => {
                let traffic_class = traffic_class::traffic_class(frame.prefix);
                Self { flow: FiveTuple::NONE, traffic_class }
            }
        }
    }

    /// Marks are possible.
    pub(super) fn is_ecn_capable(&self) -> bool {
        self.traffic_class.is_some_and(|class| class & 3 != 0)
    }
}
