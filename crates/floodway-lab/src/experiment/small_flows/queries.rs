//! Queries at random times, each answered by some bytes of a VM.
//!
//! Times are those of a Poisson process, drawn before anything is asked: a query does not wait for the answer to the one
//! before, or slow answers would be asked for less often than quick ones. Each has a connection of its own; its time is
//! from the query's bytes being sent to the last byte of the answer, as the paper has it, and so without the handshake.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_guest::protocol::Listening;
use floodway_guest::transfer::{HEADER, Header};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use crate::net::Namespace;
use crate::vcpu;
use crate::vm::Vm;

/// Most queries at once. One that comes when there are so many waits, uncounted.
const WORKERS: usize = 64;
const BUFFER: usize = 256 << 10;
/// Longest time without progress.
const PATIENCE: Duration = Duration::from_secs(60);
/// Clients are the measuring instrument: they read as soon as there is something.
const PRIORITY: u32 = 1;

/// Queries of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// For the names of rows.
    pub name: String,
    /// Who is asked, in turns.
    pub vms: Vec<u32>,
    /// Bytes of an answer, at least 1.
    pub bytes: u64,
    /// Mean time between two queries, in microseconds, at least 100.
    pub gap_us: u64,
}

/// The VMs that answer.
pub(super) struct Servers<'a> {
    bytes: u64,
    sinks: Vec<(&'a Vm, Listening)>,
}

impl Query {
    pub(super) fn check(&self) -> Result<()> {
        let Self { name, vms, bytes, gap_us } = self;
        ensure!(!vms.is_empty(), "query {name:?}: vms: name at least one");
        ensure!(*bytes >= 1, "query {name:?}: bytes = {bytes}: at least 1");
        ensure!(*gap_us >= 100, "query {name:?}: gap_us = {gap_us}: at least 100");
        Ok(())
    }

    /// Starts a server in each VM.
    pub(super) fn serve<'a>(
        &self,
        vm: impl Fn(u32) -> Result<&'a Vm>,
        address: impl Fn(u32) -> Result<String>,
    ) -> Result<Servers<'a>> {
        let sinks = self.vms.iter().map(|&number| {
            let guest = vm(number)?;
            let any_port: SocketAddr = format!("{}:0", address(number)?).parse()?;
            Ok((guest, guest.agent().transfer_listen(any_port)?))
        });
        Ok(Servers { bytes: self.bytes, sinks: sinks.collect::<Result<_>>()? })
    }
}

impl Servers<'_> {
    /// Asks for as long as `length`, `gap` apart on average; answers the times in ms, in the order of asking.
    pub fn ask(
        self,
        clients: &Namespace,
        gap: Duration,
        length: Duration,
        seed: u64,
    ) -> Result<Vec<f64>> {
        let begins = arrivals(gap, length, seed);
        let times = crate::transfer::inside(clients, || self.ask_all(&begins))??;
        self.sinks.iter().try_for_each(|(vm, sink)| vm.agent().transfer_close(sink))?;
        Ok(times)
    }

    fn ask_all(&self, begins: &[Duration]) -> Result<Vec<f64>> {
        let (next, start) = (AtomicUsize::new(0), Instant::now());
        let mut times = thread::scope(|scope| -> Result<Vec<(usize, f64)>> {
            let workers: Vec<_> =
                (0..WORKERS).map(|_| scope.spawn(|| self.work(begins, &next, start))).collect();
            let mut all = Vec::new();
            for worker in workers {
                all.extend(worker.join().map_err(|_| anyhow!("a thread panicked"))??);
            }
            Ok(all)
        })?;
        times.sort_unstable_by_key(|&(index, _)| index);
        Ok(times.into_iter().map(|(_, time)| time).collect())
    }

    /// Takes the next query that nobody has taken, until there is none.
    fn work(
        &self,
        begins: &[Duration],
        next: &AtomicUsize,
        start: Instant,
    ) -> Result<Vec<(usize, f64)>> {
        vcpu::set_fifo(0, PRIORITY)?;
        let (mut times, mut buffer) = (Vec::new(), vec![0; BUFFER]);
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(&begin) = begins.get(index) else { return Ok(times) };
            thread::sleep(begin.saturating_sub(start.elapsed()));
            let (_, sink) = &self.sinks[index % self.sinks.len()];
            let time = ask(sink.address, index as u64, self.bytes, &mut buffer)
                .with_context(|| format!("query to {}", sink.address))?;
            times.push((index, time.as_secs_f64() * 1e3));
        }
    }
}

fn ask(server: SocketAddr, id: u64, bytes: u64, buffer: &mut [u8]) -> std::io::Result<Duration> {
    let mut socket = TcpStream::connect(server)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let query = Header { id, bytes: HEADER as u64, reply_bytes: bytes, seed: 0 };
    let start = Instant::now();
    socket.write_all(&query.encode())?;
    let mut left = bytes;
    while left > 0 {
        let len = socket.read(buffer)?;
        if len == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        left = left.saturating_sub(len as u64);
    }
    Ok(start.elapsed())
}

/// Times of a Poisson process.
fn arrivals(gap: Duration, length: Duration, seed: u64) -> Vec<Duration> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let mut at = Duration::ZERO;
    let mut next = move || {
        // In (0, 1], so that its logarithm is finite.
        let uniform = 1.0 - generator.random::<f64>();
        at += gap.mul_f64(-uniform.ln());
        at
    };
    std::iter::repeat_with(&mut next).take_while(|&at| at < length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use floodway_guest::transfer::Sink;

    #[test]
    fn arrivals_are_a_poisson_process() {
        let (gap, length) = (Duration::from_millis(5), Duration::from_secs(100));
        let all = arrivals(gap, length, 7);
        assert_eq!(all, arrivals(gap, length, 7));
        assert!(all.is_sorted() && all.last().is_some_and(|&last| last < length));
        // 20 000 are expected, with a deviation of 141.
        assert!((19_400..20_600).contains(&all.len()), "{}", all.len());
        // The gaps' deviation is their mean.
        let gaps = || all.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3);
        let mean = gaps().sum::<f64>() / gaps().count() as f64;
        let variance = gaps().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps().count() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
    }

    #[test]
    fn a_query_gets_its_answer() {
        let sink = Sink::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut buffer = vec![0; BUFFER];
        for bytes in [1, 2048, 3_000_000] {
            let time = ask(sink.address(), 9, bytes, &mut buffer).unwrap();
            assert!(time > Duration::ZERO);
            assert_eq!(sink.take()[0].id, 9);
        }
        drop(sink);
        assert!(ask("127.0.0.1:1".parse().unwrap(), 0, 1, &mut buffer).is_err());
    }
}
