//! Reads the table: rows of events in the notation of packetdrill.

use floodway_core::offload::Ecn;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;

use super::row::{Event, Line, Row, Runs, SegmentText, Setup, Timestamps};

/// Time 0 of a script, so that the handshake before it has room.
pub const ZERO: Instant = Instant::from_millis(10_000);

/// Reads all rows of a file. Panics with file and line number if it is malformed.
pub fn rows(file: &'static str, text: &'static str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut reason = None;
    for (number, line) in text.lines().enumerate() {
        let at = || format!("{file}:{}: {line}", number + 1);
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let (name, title) = rest.split_once("] ").unwrap_or_else(|| panic!("{}", at()));
            let (source, rule) = title.split_once(": ").unwrap_or_else(|| panic!("{}", at()));
            rows.push(Row::new(file, name, source, rule));
            reason = None;
        } else {
            let row = rows.last_mut().unwrap_or_else(|| panic!("{}", at()));
            row.read(line, &mut reason).unwrap_or_else(|what| panic!("{}: {what}", at()));
        }
    }
    rows
}

impl Row {
    fn read(
        &mut self,
        line: &'static str,
        reason: &mut Option<&'static str>,
    ) -> Result<(), String> {
        if let Some(settings) = line.strip_prefix("set ") {
            return settings.split(' ').try_for_each(|word| self.setup.read(word));
        }
        if let Some(text) = line.strip_prefix("! ") {
            let key = text.split(':').next().unwrap_or(text);
            *reason = Some(key);
            return Ok(());
        }
        let (runs, rest) = match line.as_bytes()[0] {
            b'-' => (Runs::Off, &line[2..]),
            b'+' => (Runs::On, &line[2..]),
            _ => (Runs::Both, line.trim_start()),
        };
        let reason = reason.filter(|_| runs != Runs::Both);
        if runs != Runs::Both && reason.is_none() {
            return Err("a difference without a reason".into());
        }
        let (time, what) = rest.trim_start().split_once(' ').ok_or("no event")?;
        let seconds: f64 = time.parse().map_err(|_| "no time")?;
        let at = instant(seconds);
        if what == "end" {
            self.end = at;
            return Ok(());
        }
        if let Some(before) = self.lines.last().filter(|before| before.at > at) {
            return Err(format!("before the line above: {}", before.text));
        }
        let text = what.trim_start();
        let event = event(text)?;
        let lines = event.pieces().into_iter().map(|event| Line { runs, at, event, reason, text });
        self.lines.extend(lines);
        self.end = self.end.max(at + Duration::from_millis(5));
        Ok(())
    }
}

fn instant(seconds: f64) -> Instant {
    let micros = (seconds * 1e6).round() as i64 + 10_000_000;
    Instant::ZERO + Duration::from_micros(micros.try_into().unwrap_or(0))
}

impl Setup {
    fn read(&mut self, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse::<u32>().map_err(|_| format!("no number in {word}"));
        match key {
            "closed" => self.closed = true,
            "passive" => self.passive = true,
            "mss" => self.mss = number()? as u16,
            "wscale" => self.scale = value.parse().ok(),
            "win" => self.window = number()? as u16,
            "nosack" => self.sack = false,
            "push" => self.push = true,
            "ts" => self.timestamps = true,
            "ecn" => self.ecn = true,
            "rtt" => self.rtt = Duration::from_millis(number()?.into()),
            "rto" => {
                self.min_rto = Duration::from_millis(number()?.into());
                self.switch_min_rto = self.min_rto;
            }
            "switch-rto" => self.switch_min_rto = Duration::from_millis(number()?.into()),
            "no-mss" => (self.no_mss, self.mss) = (true, 536),
            "peer-mss" => self.peer_mss = Some(number()? as u16),
            "peer-wscale" => self.peer_scale = Some(value.parse().ok()),
            "syn-repeated" => self.syn_repeated = true,
            "iw" => self.initial_window = number()? as u8,
            "cc" => self.congestion = value.parse().map_err(|_| "no algorithm".to_owned())?,
            "only" => (self.transmit, self.receive) = (value == "transmit", value == "receive"),
            "early" => self.early = true,
            "ipv6" => self.ipv6 = true,
            _ => return Err(format!("unknown setting {word}")),
        }
        Ok(())
    }
}

impl Event {
    /// What is expected with `gso N` is expected in segments of that size.
    fn pieces(self) -> Vec<Self> {
        match &self {
            Self::Wire(text) if text.gso > 0 => text.segments().map(Self::Wire).collect(),
            Self::Vm(text) if text.gso > 0 => text.segments().map(Self::Vm).collect(),
            _ => vec![self],
        }
    }
}

impl SegmentText {
    fn segments(&self) -> impl Iterator<Item = Self> {
        let size = u32::from(self.gso);
        (0..self.len.div_ceil(size)).map(move |n| {
            let (start, last) = (n * size, (n + 1) * size >= self.len);
            let flags = if last { self.flags } else { self.flags.without(Flags::PSH) };
            let len = if last { self.len - start } else { size };
            Self { seq: self.seq + i64::from(start), len, flags, gso: 0, ..self.clone() }
        })
    }
}

fn event(what: &str) -> Result<Event, String> {
    let (actor, rest) = what.split_once(' ').unwrap_or((what, ""));
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("no number: {text}"));
    Ok(match actor {
        "guest>" => Event::Guest(segment(rest)?),
        "peer>" => Event::Peer(segment(rest)?),
        "wire>" => Event::Wire(segment(rest)?),
        "vm>" => Event::Vm(segment(rest)?),
        "write" => Event::Write(number(rest)?),
        "close" => Event::Close,
        "too-big" => {
            let (seq, mtu) = rest.split_once(' ').ok_or("too-big SEQ MTU")?;
            Event::TooBig { seq: number(seq)?, mtu: number(mtu)? }
        }
        _ => return Err(format!("unknown event {actor}")),
    })
}

/// A segment as packetdrill writes it: `[ecn] flags first:last(length) ack N win N <options>`.
fn segment(text: &str) -> Result<SegmentText, String> {
    let mut segment = SegmentText::default();
    let (head, options) = text.split_once('<').map_or((text, None), |(h, o)| (h, Some(o)));
    let mut words = head.split_whitespace().peekable();
    segment.ecn = match words.peek().copied() {
        Some("[ect0]") => Ecn(2),
        Some("[ect1]") => Ecn(1),
        Some("[ce]") => Ecn::CE,
        _ => Ecn::NOT_ECT,
    };
    if segment.ecn != Ecn::NOT_ECT {
        words.next();
    }
    let letters = words.next().ok_or("no flags")?;
    segment.accurate_ecn = letters.starts_with('A');
    segment.flags = flags(letters.trim_start_matches('A'))?;
    let (start, rest) = words.next().and_then(|w| w.split_once(':')).ok_or("no range")?;
    let (end, len) = rest.trim_end_matches(')').split_once('(').ok_or("no length")?;
    let number = |text: &str| text.parse::<i64>().map_err(|_| format!("no number: {text}"));
    (segment.seq, segment.len) = (number(start)?, number(len)? as u32);
    if segment.seq + i64::from(segment.len) != number(end)? {
        return Err("the range has another length".into());
    }
    while let Some(word) = words.next() {
        let value = number(words.next().ok_or("no value")?)?;
        match word {
            "ack" => segment.ack = Some(value),
            "win" => segment.window = Some(value as u16),
            "gso" => segment.gso = value as u16,
            _ => return Err(format!("unknown field {word}")),
        }
    }
    if segment.flags.contains(Flags::ACK) != segment.ack.is_some() {
        return Err("flag and number of the ACK do not agree".into());
    }
    match options {
        Some(list) => segment.read_options(list.trim_end_matches('>'))?,
        None => return Ok(segment),
    }
    Ok(segment)
}

fn flags(text: &str) -> Result<Flags, String> {
    text.chars().try_fold(Flags(0), |flags, letter| {
        Ok(flags.with(match letter {
            'S' => Flags::SYN,
            'F' => Flags::FIN,
            'R' => Flags::RST,
            'P' => Flags::PSH,
            '.' => Flags::ACK,
            'U' => Flags::URG,
            'E' => Flags::ECE,
            'W' => Flags::CWR,
            '-' => Flags(0),
            _ => return Err(format!("unknown flag {letter}")),
        }))
    })
}

impl SegmentText {
    fn read_options(&mut self, list: &str) -> Result<(), String> {
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let words: Vec<_> = option.split_whitespace().collect();
            let number = |n: usize| words.get(n).and_then(|w| w.parse::<i64>().ok());
            match words[0] {
                "mss" => self.mss = number(1).map(|n| n as u16),
                "wscale" => self.scale = number(1).map(|n| n as u8),
                "sackOK" => self.sack_permitted = true,
                "noTS" => self.no_timestamps = true,
                "opt" => self.unknown = true,
                "TS" => {
                    let (value, echo) = number(2).zip(number(4)).ok_or("TS val N ecr N")?;
                    self.timestamps = Some(Timestamps { value: value as u32, echo: echo as u32 });
                }
                "sack" => {
                    for block in &words[1..] {
                        let (left, right) = block.split_once(':').ok_or("no block")?;
                        let edges = left.parse().ok().zip(right.parse().ok());
                        self.sack.push(edges.ok_or("no block")?);
                    }
                }
                other => return Err(format!("unknown option {other}")),
            }
        }
        Ok(())
    }
}
