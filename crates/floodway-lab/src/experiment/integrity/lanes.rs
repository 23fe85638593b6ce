//! Streams between the VM and the other end: lanes side by side, one stream after the other in each.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use floodway_guest::stream::{self, Received, Sent};

use super::Direction;
use crate::agent::Listening;
use crate::experiment::testbed::Network;
use crate::experiment::transfer::far_end::FarEnd;
use crate::transfer::inside;
use crate::vm::Vm;

/// Any address and port.
const ANY: &str = "0.0.0.0:0";

/// Who exchanges streams, and which way.
pub struct Ends<'a> {
    pub guest: &'a Vm,
    pub far: &'a FarEnd<'a>,
    pub direction: Direction,
    /// Longest time without progress.
    pub patience: Duration,
}

/// What became of streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of the streams that are intact.
    pub intact_bytes: u64,
    /// Streams of which both ends have the same length and SHA-256.
    pub intact: u64,
    /// Others. A lane ends with the first.
    pub broken: u64,
    /// Why the first of them is broken.
    pub first_failure: Option<String>,
}

/// Where a lane's streams arrive.
enum Sink {
    Far(TcpListener),
    Guest(Listening),
}

/// Sends streams of these lengths in bytes, a list for each lane.
///
/// # Errors
/// When an end is gone. A stream that breaks is no error but an [`Outcome`].
pub fn run(ends: &Ends<'_>, lanes: &[Vec<u64>], seed: u64) -> Result<Outcome> {
    let mut total = Outcome::default();
    thread::scope(|scope| {
        let lanes: Vec<_> = (0_u64..)
            .zip(lanes)
            .map(|(index, lengths)| scope.spawn(move || ends.lane(lengths, seed + (index << 16))))
            .collect();
        for lane in lanes {
            total.add(lane.join().map_err(|_| anyhow!("a thread panicked"))??);
        }
        Ok(total)
    })
}

impl Ends<'_> {
    fn lane(&self, lengths: &[u64], seed: u64) -> Result<Outcome> {
        let sink = self.open()?;
        let mut outcome = Outcome::default();
        for (seed, &bytes) in (seed..).zip(lengths) {
            let (sent, received) = thread::scope(|scope| {
                let receiving = scope.spawn(|| self.receive(&sink));
                let sent = self.send(&sink, bytes, seed);
                let received = receiving.join().map_err(|_| anyhow!("a thread panicked"));
                (sent, received.and_then(|received| received))
            });
            outcome.judge(bytes, sent, received);
            if outcome.broken > 0 {
                break;
            }
        }
        if let Sink::Guest(listening) = &sink {
            self.guest.agent().stream_close(listening)?;
        }
        Ok(outcome)
    }

    fn open(&self) -> Result<Sink> {
        let any: SocketAddr = ANY.parse()?;
        Ok(match self.direction {
            Direction::Out => Sink::Far(inside(self.far.namespace(), || TcpListener::bind(any))??),
            Direction::In => Sink::Guest(self.guest.agent().stream_listen(any)?),
        })
    }

    fn receive(&self, sink: &Sink) -> Result<Received> {
        match sink {
            Sink::Far(listener) => Ok(stream::receive(listener, self.patience)?),
            Sink::Guest(listening) => self.guest.agent().stream_receive(listening, self.patience),
        }
        .context("receiver")
    }

    fn send(&self, sink: &Sink, bytes: u64, seed: u64) -> Result<Sent> {
        let to = |address: String, port| -> Result<SocketAddr> {
            Ok(SocketAddr::new(address.parse()?, port))
        };
        match sink {
            Sink::Far(listener) => {
                let port = listener.local_addr()?.port();
                let to = to(self.far.address(Network::Floodway), port)?;
                self.guest.agent().stream_send(to, bytes, seed, self.patience)
            }
            Sink::Guest(listening) => {
                let to = to(Network::Floodway.guest_address(0)?, listening.address.port())?;
                let send = || stream::send(to, bytes, seed, self.patience);
                inside(self.far.namespace(), send)?.map_err(Into::into)
            }
        }
        .context("sender")
    }
}

impl Outcome {
    fn judge(&mut self, bytes: u64, sent: Result<Sent>, received: Result<Received>) {
        let problem = match (sent, received) {
            (Ok(sent), Ok(received)) if received.bytes != bytes || sent.bytes != bytes => {
                format!("{bytes} bytes asked for, {} sent, {} received", sent.bytes, received.bytes)
            }
            (Ok(sent), Ok(received)) if sent.sha256 != received.sha256 => {
                format!(
                    "SHA-256 of {bytes} bytes: sent {}, received {}",
                    sent.sha256, received.sha256
                )
            }
            (Ok(_), Ok(_)) => {
                self.intact += 1;
                self.intact_bytes += bytes;
                return;
            }
            (sent, received) => {
                let errors = [sent.err(), received.err()].into_iter().flatten();
                errors.map(|error| format!("{error:#}")).collect::<Vec<_>>().join("; ")
            }
        };
        self.broken += 1;
        self.first_failure.get_or_insert(problem);
    }

    fn add(&mut self, other: Self) {
        self.intact_bytes += other.intact_bytes;
        self.intact += other.intact;
        self.broken += other.broken;
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(bytes: u64, sha256: &str) -> Result<Sent> {
        Ok(Sent { bytes, sha256: sha256.into(), elapsed_ns: 1 })
    }

    fn received(bytes: u64, sha256: &str) -> Result<Received> {
        Ok(Received { bytes, sha256: sha256.into(), data_ns: 1 })
    }

    #[test]
    fn a_stream_is_intact_only_if_length_and_digest_agree() {
        let mut outcome = Outcome::default();
        outcome.judge(10, sent(10, "aa"), received(10, "aa"));
        assert_eq!((outcome.intact, outcome.intact_bytes, outcome.broken), (1, 10, 0));
        outcome.judge(10, sent(10, "aa"), received(10, "ab"));
        assert!(outcome.first_failure.as_ref().is_some_and(|why| why.contains("SHA-256")));
        outcome.judge(10, sent(10, "aa"), received(9, "aa"));
        outcome.judge(10, Err(anyhow!("reset")), received(3, "aa"));
        outcome.judge(10, sent(10, "aa"), Err(anyhow!("reset")));
        assert_eq!((outcome.intact, outcome.intact_bytes, outcome.broken), (1, 10, 4));
    }

    #[test]
    fn the_first_failure_of_any_lane_is_kept() {
        let mut total = Outcome::default();
        total.judge(5, sent(5, "a"), received(5, "a"));
        let failed =
            Outcome { broken: 1, first_failure: Some("reset".into()), ..Outcome::default() };
        total.add(failed.clone());
        total.add(Outcome { first_failure: Some("later".into()), ..failed });
        let expected =
            Outcome { intact_bytes: 5, intact: 1, broken: 2, first_failure: Some("reset".into()) };
        assert_eq!(total, expected);
    }
}
