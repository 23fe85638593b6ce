//! What both simulators are given: hosts, switches, links, TCP's settings and a list of transfers, as text.
//!
//! One `key value...` line per item, `#` begins a comment. Nodes are numbered hosts first, then switches; times are
//! nanoseconds. The C++ program under `bench/ns3` reads the same.

use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// TCP's settings, of every stack. SACK is on, timestamps are off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Payload of a full segment.
    pub mss: u16,
    /// Initial window in segments.
    pub initial_window: u32,
    /// Receive window in bytes. It must never bind: ns-3 3.37 ends with a fault when a retransmission fills it to
    /// the byte.
    pub receive_buffer: u32,
    /// Longest delay of an ACK; zero acknowledges each segment.
    pub delayed_ack: Duration,
    /// Least retransmission timeout.
    pub min_rto: Duration,
    /// First timeout of a SYN.
    pub syn_rto: Duration,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            mss: 1460,
            initial_window: 10,
            receive_buffer: 256 << 20,
            delayed_ack: Duration::from_millis(40),
            min_rto: Duration::from_millis(200),
            syn_rto: Duration::from_secs(1),
        }
    }
}

/// A link, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The nodes that it joins.
    pub nodes: [u32; 2],
    /// Bits per second.
    pub rate: u64,
    /// One way.
    pub delay: Duration,
}

/// A connection that is opened and stays open, or a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// When it begins.
    pub start: Duration,
    /// The host that sends.
    pub from: u32,
    /// The host that receives.
    pub to: u32,
    /// Bytes of a transfer; `None` opens a connection.
    pub bytes: Option<u64>,
}

/// A scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scenario {
    /// Number of hosts.
    pub hosts: u32,
    /// Number of switches.
    pub switches: u32,
    /// Drop-tail limit of every queue, without the packet on the wire.
    pub queue_packets: u32,
    /// Wall time is counted from here on.
    pub measure_from: Duration,
    /// End of the run.
    pub until: Duration,
    /// TCP.
    pub tcp: Tcp,
    /// Links.
    pub links: Vec<Link>,
    /// In the order of time.
    pub work: Vec<Work>,
}

impl Scenario {
    /// The transfers, in order; reports name them by this order.
    pub fn transfers(&self) -> impl Iterator<Item = (Work, u64)> {
        self.work.iter().filter_map(|work| Some((*work, work.bytes?)))
    }

    /// As text.
    #[must_use]
    pub fn render(&self) -> String {
        let tcp = &self.tcp;
        let mut text = String::new();
        let mut line = |key: &str, values: &[u128]| {
            text.push_str(key);
            for value in values {
                let _ = write!(text, " {value}");
            }
            text.push('\n');
        };
        line("hosts", &[self.hosts.into()]);
        line("switches", &[self.switches.into()]);
        line("queue_packets", &[self.queue_packets.into()]);
        line("measure_from_ns", &[self.measure_from.as_nanos()]);
        line("until_ns", &[self.until.as_nanos()]);
        line("mss", &[tcp.mss.into()]);
        line("initial_window", &[tcp.initial_window.into()]);
        line("receive_buffer", &[tcp.receive_buffer.into()]);
        line("delayed_ack_ns", &[tcp.delayed_ack.as_nanos()]);
        line("min_rto_ns", &[tcp.min_rto.as_nanos()]);
        line("syn_rto_ns", &[tcp.syn_rto.as_nanos()]);
        for Link { nodes: [a, b], rate, delay } in &self.links {
            line("link", &[(*a).into(), (*b).into(), (*rate).into(), delay.as_nanos()]);
        }
        for Work { start, from, to, bytes } in &self.work {
            let place = [start.as_nanos(), (*from).into(), (*to).into()];
            match bytes {
                None => line("open", &place),
                Some(bytes) => line("transfer", &[&place[..], &[(*bytes).into()]].concat()),
            }
        }
        text
    }

    /// From text.
    ///
    /// # Errors
    /// With the number of the line that is wrong, or what does not fit together.
    pub fn parse(text: &str) -> Result<Self> {
        let mut scenario = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            scenario.item(line).with_context(|| format!("line {number}: `{line}`"))?;
        }
        scenario.check()?;
        Ok(scenario)
    }

    fn item(&mut self, line: &str) -> Result<()> {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(key) = words.next() else { return Ok(()) };
        let mut values = Values(words);
        match key {
            "hosts" => self.hosts = values.next()?,
            "switches" => self.switches = values.next()?,
            "queue_packets" => self.queue_packets = values.next()?,
            "measure_from_ns" => self.measure_from = values.time()?,
            "until_ns" => self.until = values.time()?,
            "mss" => self.tcp.mss = values.next()?,
            "initial_window" => self.tcp.initial_window = values.next()?,
            "receive_buffer" => self.tcp.receive_buffer = values.next()?,
            "delayed_ack_ns" => self.tcp.delayed_ack = values.time()?,
            "min_rto_ns" => self.tcp.min_rto = values.time()?,
            "syn_rto_ns" => self.tcp.syn_rto = values.time()?,
            "link" => self.links.push(Link {
                nodes: [values.next()?, values.next()?],
                rate: values.next()?,
                delay: values.time()?,
            }),
            "open" | "transfer" => self.work.push(Work {
                start: values.time()?,
                from: values.next()?,
                to: values.next()?,
                bytes: if key == "open" { None } else { Some(values.next()?) },
            }),
            _ => bail!("unknown item"),
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let nodes = self.hosts + self.switches;
        for Link { nodes: ends, .. } in &self.links {
            ensure!(ends.iter().all(|&end| end < nodes), "a link to node {ends:?} of {nodes}");
        }
        for work in &self.work {
            let known = work.from < self.hosts && work.to < self.hosts && work.from != work.to;
            ensure!(known, "work between hosts {} and {}", work.from, work.to);
        }
        ensure!(self.work.is_sorted_by_key(|work| work.start), "work goes back in time");
        Ok(())
    }
}

struct Values<'a>(std::str::SplitWhitespace<'a>);

impl Values<'_> {
    fn next<T: FromStr>(&mut self) -> Result<T> {
        let word = self.0.next().context("a number is missing")?;
        word.parse().ok().with_context(|| format!("`{word}` is no number that fits"))
    }

    fn time(&mut self) -> Result<Duration> {
        Ok(Duration::from_nanos(self.next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let work =
            |start, bytes| Work { start: Duration::from_nanos(start), from: 0, to: 1, bytes };
        let scenario = Scenario {
            hosts: 2,
            switches: 1,
            queue_packets: 100,
            measure_from: Duration::from_millis(3),
            until: Duration::from_secs(1),
            tcp: Tcp { initial_window: 3, ..Tcp::default() },
            links: vec![Link { nodes: [0, 2], rate: 1_000_000, delay: Duration::from_micros(7) }],
            work: vec![work(5, None), work(9, Some(1 << 33))],
        };
        assert_eq!(Scenario::parse(&scenario.render()).unwrap(), scenario);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let fails = |text: &str| format!("{:#}", Scenario::parse(text).unwrap_err());
        assert!(fails("hosts 2\nhots 3").starts_with("line 2: `hots 3`: unknown"));
        assert!(fails("mss 70000").contains("`70000` is no number"));
        assert!(fails("link 0").contains("missing"));
        assert!(fails("hosts 1\nlink 0 1 5 5").contains("[0, 1]"));
        assert!(fails("hosts 2\ntransfer 5 0 1 9\ntransfer 4 0 1 9").contains("back in time"));
        assert!(fails("hosts 2\ntransfer 5 1 1 9").contains("hosts 1 and 1"));
    }
}
