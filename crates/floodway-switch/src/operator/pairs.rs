//! Pairs of guests and destinations, page by page.

use std::sync::Arc;

use floodway_core::egress::meter::PairSummary;

use crate::api::control::{ControlError, MAX_PAGE, PairPage, PairQuery, PairStatus};
use crate::state::port::Port;
use crate::state::shared::Shared;

/// Pairs in a page if nobody says how many.
const PAGE: usize = 100;
/// Places of a table that are looked at under one hold of an uplink's lock: the packet path waits meanwhile.
const PLACES_AT_ONCE: u32 = 64;

/// Where a listing is: uplink, guest among those asked for, place in its table.
#[derive(Clone, Copy, Default)]
struct Cursor {
    uplink: usize,
    guest: usize,
    place: u32,
}

impl Cursor {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.');
        let cursor = Self {
            uplink: numbers.next()?.parse().ok()?,
            guest: numbers.next()?.parse().ok()?,
            place: numbers.next()?.parse().ok()?,
        };
        numbers.next().is_none().then_some(cursor)
    }
}

/// A page of pairs.
///
/// # Errors
/// There is no such port, or the cursor is none.
pub fn page(shared: &Shared, query: &PairQuery) -> Result<PairPage, ControlError> {
    let limit = query.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
    let only = query.port.as_deref().map(|name| shared.port(name)).transpose()?;
    let mut at = match &query.cursor {
        None => Cursor::default(),
        Some(text) => Cursor::parse(text)
            .ok_or_else(|| ControlError::BadCursor(text.chars().take(64).collect()))?,
    };
    let ports = shared.ports();
    let mut pairs = Vec::new();
    let uplinks = ports.uplinks();
    while let Some(uplink) = uplinks.get(at.uplink) {
        if at.guest >= ports.capacity() {
            at = Cursor { uplink: at.uplink + 1, ..Cursor::default() };
            continue;
        }
        let asked = |port: &&Arc<Port>| only.as_ref().is_none_or(|only| only.id == port.id);
        let next = match ports.get(at.guest).filter(asked) {
            None => None,
            Some(port) => {
                let places = PLACES_AT_ONCE.min((limit - pairs.len()) as u32);
                let now = shared.now();
                let (found, next) =
                    uplink.egress().with(|egress| egress.pairs(at.guest, at.place, places, now));
                let names = (port.config.name.as_str(), uplink.config.name.as_str());
                pairs.extend(found.iter().map(|pair| pair_status(names, pair)));
                next
            }
        };
        at = match next {
            Some(place) => Cursor { place, ..at },
            None => Cursor { guest: at.guest + 1, place: 0, ..at },
        };
        if pairs.len() >= limit {
            break;
        }
    }
    let more = at.uplink < uplinks.len();
    let next = more.then(|| format!("{}.{}.{}", at.uplink, at.guest, at.place));
    Ok(PairPage { pairs, next })
}

fn pair_status((port, uplink): (&str, &str), pair: &PairSummary) -> PairStatus {
    PairStatus {
        port: port.to_owned(),
        uplink: uplink.to_owned(),
        destination: pair.destination.map(|address| address.to_string()),
        class: pair.class.name().to_owned(),
        rate_bps: pair.rate.saturating_mul(8),
        tokens: pair.tokens,
        idle_ms: pair.idle.as_millis() as u64,
    }
}
