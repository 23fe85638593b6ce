//! What a switch carries while something of it is replaced: TCP between guests and their host, or a machine behind it, so over the uplink and through both offloads.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_guest::requests::{Client, Outcome, Plan};
use serde::Deserialize;

use super::{arrivals, joined};
use crate::experiment::iperf::{self, Amount, Place};
use crate::experiment::testbed::Network;
use crate::experiment::transfer::far_end::FarEnd;
use crate::net::Namespace;
use crate::transfer::inside;
use crate::vm::Vm;

/// How long connections may take to be made, and what is missing after the last event may take to come. Only ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);
/// Frames to the host that show that iperf3 is under way.
const UNDER_WAY: u64 = 200;
/// Many connections of which each asks now and then.
const REQUEST_BYTES: u64 = 512;
/// One connection that sends all the time, in one direction and then in the other one.
const STREAM_BYTES: u64 = 8_000_000;

/// What is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// A stream of iperf3 for each event: to the host and to the guest in turn.
    Iperf3,
    /// Many connections from the host, of which each asks now and then: others for each death of the data plane, else the same through five events.
    Requests,
    /// One connection through all events, which sends as much as it can, in both directions.
    Stream,
}

/// Whom it connects.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// At least one.
    pub guests: &'a [Vm],
    pub far: &'a FarEnd<'a>,
    pub host: &'a Namespace,
}

/// How much is carried.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Connections with each guest, of a load that has many.
    pub connections: u32,
    /// Bytes of a response of `requests`.
    pub response_bytes: u64,
    /// Between a response of `requests` and the next request.
    pub interval: Duration,
    /// How long iperf3 sends: more than the time before, during and after an event.
    pub seconds: u32,
}

impl Load {
    /// For the names of rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iperf3 => "iperf3",
            Self::Requests => "requests",
            Self::Stream => "stream",
        }
    }

    /// Carries the load, lets `work` do its own when all connections are under way, and ends the load when that is done. `number` tells loads of a run apart.
    /// Returns what `work` has returned, and what became of the connections.
    ///
    /// # Errors
    /// When a connection cannot be made, or what `work` says. One that is lost is no error.
    pub fn carry<T>(
        self,
        ends: Ends<'_>,
        size: Size,
        number: u64,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Outcome)> {
        let Some(plan) = self.plan(size, number << 32) else {
            return ends.iperf3(size.seconds, number, work);
        };
        let serve = |guest: &Vm| guest.agent().requests_serve("0.0.0.0:0".parse()?);
        let servers = ends.guests.iter().map(serve).collect::<Result<Vec<_>>>()?;
        let clients = (0_u32..).zip(&servers).map(|(index, server)| {
            let guest = Network::Floodway.guest_address(index as usize)?;
            let address = format!("{guest}:{}", server.address.port()).parse()?;
            let seed = plan.seed.wrapping_add(u64::from(index) << 16);
            Ok(Client::new(Plan { address, seed, ..plan.clone() }))
        });
        let result = ends.requests(&clients.collect::<Result<Vec<_>>>()?, work);
        for (guest, server) in ends.guests.iter().zip(&servers) {
            guest.agent().requests_close(server)?;
        }
        result
    }

    /// What a client does with each guest, but for the guest's address; nothing for iperf3.
    fn plan(self, size: Size, seed: u64) -> Option<Plan> {
        let (connections, interval, (request_bytes, response_bytes)) = match self {
            Self::Iperf3 => return None,
            Self::Requests => {
                (size.connections, size.interval, (REQUEST_BYTES, size.response_bytes))
            }
            Self::Stream => (1, Duration::ZERO, (STREAM_BYTES, STREAM_BYTES)),
        };
        let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let patience = PATIENCE;
        Some(Plan { address, connections, request_bytes, response_bytes, interval, seed, patience })
    }
}

impl Ends<'_> {
    fn requests<T>(
        self,
        clients: &[Client],
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Outcome)> {
        thread::scope(|scope| {
            let running: Vec<_> =
                clients.iter().map(|client| scope.spawn(move || self.ask(client))).collect();
            let begun = Instant::now();
            let is_warm = || clients.iter().all(Client::is_warm);
            let is_over = || running.iter().any(thread::ScopedJoinHandle::is_finished);
            while !is_warm() && !is_over() && begun.elapsed() < PATIENCE {
                thread::sleep(POLL);
            }
            let result = if is_warm() { work() } else { Err(anyhow!("requests get no answers")) };
            clients.iter().for_each(Client::stop);
            let mut total = Outcome::default();
            for client in running {
                total.add(joined(client)?);
            }
            let first = total.first_failure.clone();
            Ok((result.with_context(|| format!("first failure: {first:?}"))?, total))
        })
    }

    fn ask(self, client: &Client) -> Result<Outcome> {
        Ok(inside(self.far.namespace(), || client.run())??)
    }

    fn iperf3<T>(
        self,
        seconds: u32,
        number: u64,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Outcome)> {
        let guest = (Place::Guest(&self.guests[0]), Network::Floodway.guest_address(0)?);
        let far = (Place::Host(self.far.namespace()), self.far.address(Network::Floodway));
        let (from, to) = if number.is_multiple_of(2) { (guest, far) } else { (far, guest) };
        let amount = Amount::Seconds(seconds);
        let begin = arrivals::count(self.host)?;
        thread::scope(|scope| {
            let running = scope.spawn(|| iperf::transfer(from.0, to.0, &to.1, amount));
            while arrivals::count(self.host)? < begin + UNDER_WAY && !running.is_finished() {
                thread::sleep(POLL);
            }
            let result = work()?;
            let is_short = running.is_finished();
            let failure = joined(running).err().map(|error| format!("iperf3: {error:#}"));
            ensure!(!is_short || failure.is_some(), "iperf3 has ended already after {seconds} s");
            let lost = u64::from(failure.is_some());
            let outcome =
                Outcome { connections: 1, lost, first_failure: failure, ..Outcome::default() };
            Ok((result, outcome))
        })
    }
}
