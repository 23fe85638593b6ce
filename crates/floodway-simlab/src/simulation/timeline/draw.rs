//! Transfers as timelines, and as data.

use floodway_core::time::Instant;
use floodway_report::chart::timeline::{Colour, Content, Key, Lane, Panel, Timeline};
use floodway_sim::cpu::State;
use floodway_sim::flow::Side;
use floodway_sim::trace::{Passage, Point};
use serde::Serialize;

use super::path::Spent;
use super::play::{Seen, ends};
use super::schedule::{DRIVER, VM};
use super::table::ms;
use super::{Case, LONGEST_MS, PHASES, phases};

/// Colours: of data, of ACKs, of what may be sent.
const DATA: usize = 0;
const ACK: usize = 2;
const LIMIT: usize = 4;

/// What is to be drawn, and from when to when, in ms.
pub struct Picture<'a> {
    pub title: &'a str,
    pub from: f64,
    pub to: Option<f64>,
}

/// A transfer that was drawn. All times are in ms from its beginning, inside what is drawn.
#[derive(Clone, Debug, Serialize)]
pub struct Drawn {
    /// Seed of its run.
    pub seed: u64,
    /// Its round in the run.
    pub round: u32,
    /// Time of the whole transfer.
    pub whole_ms: f64,
    /// Beginnings and ends of its phases.
    pub phases: Vec<(&'static str, [f64; 2])>,
    /// Its critical path.
    pub path: Vec<(Spent, [f64; 2])>,
    /// When each vCPU ran, and when it waited for a pCPU: the driver domain's and those of the VMs.
    pub vcpus: Vec<Vcpu>,
    /// Packets of the connection.
    pub packets: Vec<PacketAt>,
    /// How many bytes might have been sent, by the congestion window.
    pub limits: Vec<[f64; 2]>,
    /// The VM sends.
    #[serde(skip)]
    outwards: bool,
    /// Packets and limits before what is drawn, with which curves begin.
    #[serde(skip)]
    earlier: (Vec<PacketAt>, Vec<[f64; 2]>),
}

/// What a vCPU did.
#[derive(Clone, Debug, Serialize)]
pub struct Vcpu {
    name: String,
    runs: Vec<[f64; 2]>,
    waits: Vec<[f64; 2]>,
}

#[cfg(test)]
impl Vcpu {
    /// When its last stretch ends.
    pub fn end(&self) -> f64 {
        self.runs.iter().chain(&self.waits).map(|stretch| stretch[1]).fold(0.0, f64::max)
    }
}

#[cfg(test)]
impl PacketAt {
    /// It is at this point.
    pub fn is(&self, point: &str) -> bool {
        self.point == point
    }
}

/// A packet at a point.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PacketAt {
    at: f64,
    point: &'static str,
    /// It is one of the sender's, and not an ACK for it.
    of_sender: bool,
    /// Where it ends in the sender's bytes, or up to where it acknowledges them.
    end: u32,
    /// Bytes of payload.
    bytes: u32,
}

impl Picture<'_> {
    /// The drawing of a transfer of each variant, and what is drawn as data.
    pub fn draw(&self, names: &[&str], seen: &[(&Case, u64, Seen)]) -> (String, Vec<Drawn>) {
        let whole = |(_, _, seen): &(&Case, u64, Seen)| {
            let [begun, ended] = ends(&seen.played.transfer);
            ms(ended.since(begun))
        };
        let longest = seen.iter().map(whole).fold(0.0, f64::max);
        let to = self.to.unwrap_or(longest.min(LONGEST_MS)).max(self.from);
        let window = [self.from, to];
        let drawn: Vec<_> =
            seen.iter().map(|(case, seed, seen)| drawn(case, *seed, seen, window)).collect();
        let panels: Vec<_> = names.iter().zip(&drawn).map(|(name, one)| panel(name, one)).collect();
        let mut spent: Vec<_> = drawn.iter().flat_map(|one| &one.path).map(|at| at.0).collect();
        spent.sort();
        spent.dedup();
        let mut notes = vec![
            "vCPUs: dark where it runs, light where it waits for its CPU. Packets: data and SYN in blue, ACKs in green; sent above the line, received below it.".to_owned(),
            "Bytes in KB: handed over by the sender (blue), sent to the network by the switch (orange), acknowledged by the peer (green), allowed by the congestion window (grey).".to_owned(),
        ];
        if self.from > 0.0 || to < longest {
            notes
                .push(format!("Cut: {:.1} to {to:.1} ms of {longest:.1} ms are shown.", self.from));
        }
        let key = |spent: Spent| Key { colour: colour(spent), name: spent.name().to_owned() };
        let alt: Vec<_> = panels.iter().map(|panel| panel.title.clone()).collect();
        let alt = format!("{}. {}", self.title, alt.join("; "));
        let timeline = Timeline {
            title: self.title.to_owned(),
            window,
            panels,
            legend: spent.into_iter().map(key).collect(),
            notes,
        };
        (timeline.render(&alt), drawn)
    }
}

fn colour(spent: Spent) -> Colour {
    let (number, light) = match spent {
        Spent::VmRuns => (0, false),
        Spent::VmWaitsForVms => (1, false),
        Spent::VmWaitsForDriver => (1, true),
        Spent::DriverRuns => (5, false),
        Spent::DriverWaitsForVms => (3, false),
        Spent::DriverWaitsForVm => (3, true),
        Spent::Blocked => (4, true),
        Spent::Network => (2, false),
        Spent::Peer => (2, true),
    };
    Colour { number, light }
}

fn drawn(case: &Case, seed: u64, seen: &Seen, [from, to]: [f64; 2]) -> Drawn {
    let transfer = &seen.played.transfer;
    let [begun, ended] = ends(transfer);
    let at = |time: Instant| ms(time.since(begun));
    let inside = |stretch: &[f64; 2]| stretch[1] > from && stretch[0] < to;
    let stretches = seen.played.path.iter();
    let path = stretches.map(|s| (s.spent, [at(s.from), at(s.to)])).filter(|s| inside(&s.1));
    let named = PHASES.into_iter().zip(phases(transfer));
    // Of what came after the transfer there is no record.
    let window = [from, to.min(at(ended))];
    let window = window.map(|ms| begun + std::time::Duration::from_secs_f64(ms / 1e3));
    let names = (0..=case.vms as usize).map(|n| match n {
        DRIVER => "driver domain".to_owned(),
        VM if case.outwards => "VM 1, sends".to_owned(),
        VM => "VM 1, receives".to_owned(),
        other => format!("VM {other}"),
    });
    let limits = seen.limits.iter();
    let limits = limits.map(|(time, bytes)| [at(*time), *bytes.min(&case.bytes) as f64]);
    let (earlier_limits, limits) =
        limits.filter(|limit| limit[0] <= to).partition(|limit| limit[0] < from);
    let (earlier, packets) =
        packets(&seen.passages, begun, to).into_iter().partition(|packet| packet.at < from);
    Drawn {
        seed,
        round: transfer.round,
        whole_ms: at(ended),
        phases: named.map(|(name, [a, b])| (name, [at(a), at(b)])).collect(),
        path: path.collect(),
        vcpus: names.enumerate().map(|(n, name)| vcpu(n, name, seen, window, begun)).collect(),
        packets,
        limits,
        outwards: case.outwards,
        earlier: (earlier, earlier_limits),
    }
}

fn vcpu(n: usize, name: String, seen: &Seen, window: [Instant; 2], begun: Instant) -> Vcpu {
    let (mut runs, mut waits) = (Vec::<[f64; 2]>::new(), Vec::<[f64; 2]>::new());
    for (from, to, states) in seen.schedule.between(window[0], window[1]) {
        let stretches = match states[n] {
            State::Blocked => continue,
            State::Waiting => &mut waits,
            State::Running(_) => &mut runs,
        };
        let (from, to) = (ms(from.since(begun)), ms(to.since(begun)));
        match stretches.last_mut() {
            Some(last) if last[1] >= from => last[1] = to,
            _ => stretches.push([from, to]),
        }
    }
    Vcpu { name, runs, waits }
}

/// The packets of a connection up to `to`.
fn packets(passages: &[Passage], begun: Instant, to: f64) -> Vec<PacketAt> {
    let of_sender = |passage: &&Passage| passage.packet.from == Side::Client;
    let first = passages.iter().find(of_sender).and_then(|passage| passage.packet.tcp());
    let Some(base) = first.map(|segment| segment.seq + 1) else { return Vec::new() };
    let one = |passage: &Passage| {
        let (segment, of_sender) = (passage.packet.tcp()?, passage.packet.from == Side::Client);
        let end = if of_sender { segment.seq + segment.len } else { segment.ack };
        // SYNs and FINs are outside of the bytes.
        let end = if end.before(base) { 0 } else { end.since(base) };
        let at = ms(passage.at.since(begun));
        let point = name(passage.point);
        (at <= to).then_some(PacketAt { at, point, of_sender, end, bytes: segment.len })
    };
    passages.iter().filter_map(one).collect()
}

const fn name(point: Point) -> &'static str {
    match point {
        Point::Queued => "queued",
        Point::Sent => "sent",
        Point::TakenFromVm => "taken-from-vm",
        Point::ToNetwork => "to-network",
        Point::PeerReceived => "peer-received",
        Point::PeerSent => "peer-sent",
        Point::AtCard => "at-card",
        Point::TakenFromCard => "taken-from-card",
        Point::ToVm => "to-vm",
        Point::Received => "received",
    }
}

fn panel(name: &str, drawn: &Drawn) -> Panel {
    let phases = drawn.phases.iter();
    let times = phases.clone().map(|(name, [from, to])| format!("{name} {:.2}", to - from));
    let title = format!(
        "{name}: {:.2} ms ({}); seed {}, round {}",
        drawn.whole_ms,
        times.collect::<Vec<_>>().join(", "),
        drawn.seed,
        drawn.round + 1
    );
    let lane =
        |name: &str, summary: String, content| Lane { name: name.to_owned(), summary, content };
    let phases = phases.map(|(name, stretch)| ((*name).to_owned(), *stretch)).collect();
    let path = drawn.path.iter().map(|(spent, stretch)| (colour(*spent), *stretch));
    let mut lanes = vec![
        lane("phase", "of the transfer".into(), Content::Phases(phases)),
        lane("spent with", spent_in_words(drawn), Content::Owners(path.collect())),
    ];
    for (n, vcpu) in drawn.vcpus.iter().enumerate() {
        let sum = |all: &[[f64; 2]]| all.iter().fold(0.0, |sum, [from, to]| sum + to - from);
        let summary = format!("runs {:.2} ms, waits {:.2} ms", sum(&vcpu.runs), sum(&vcpu.waits));
        let colour = [5, 0, 1, 3, 2, 4][n.min(5)];
        let (runs, waits) = (vcpu.runs.clone(), vcpu.waits.clone());
        lanes.push(lane(&vcpu.name, summary, Content::Shares { colour, runs, waits }));
    }
    for (name, [sent, received]) in [
        ("packets of VM 1", ["sent", "received"]),
        ("of the switch", ["to-network", "taken-from-card"]),
        ("of the peer", ["peer-sent", "peer-received"]),
    ] {
        lanes.push(marks(name, sent, received, drawn));
    }
    lanes.push(curves(drawn));
    Panel { title, lanes }
}

fn spent_in_words(drawn: &Drawn) -> String {
    let time = |wanted: Spent| {
        let own = drawn.path.iter().filter(|(spent, _)| *spent == wanted);
        own.fold(0.0, |sum, (_, [from, to])| sum + to - from)
    };
    let all = Spent::ALL.into_iter().map(|spent| (spent, time(spent)));
    let some = all.filter(|(_, ms)| *ms > 0.0);
    some.map(|(spent, ms)| format!("{} {ms:.2} ms", spent.name())).collect::<Vec<_>>().join(", ")
}

fn marks(name: &str, sent: &str, received: &str, drawn: &Drawn) -> Lane {
    let times = |point: &str| -> Vec<f64> {
        drawn.packets.iter().filter(|p| p.point == point).map(|p| p.at).collect()
    };
    let (above, below) = (times(sent), times(received));
    let is_outwards = |point: &str| matches!(point, "sent" | "to-network" | "peer-received");
    let colour = |point: &str| if is_outwards(point) == drawn.outwards { DATA } else { ACK };
    let summary = format!("{} sent, {} received", above.len(), below.len());
    let content = Content::Marks { above: (colour(sent), above), below: (colour(received), below) };
    Lane { name: name.to_owned(), summary, content }
}

fn curves(drawn: &Drawn) -> Lane {
    let highest = |point: &str, of_sender: bool| {
        let mut most = 0;
        let all = drawn.earlier.0.iter().chain(&drawn.packets);
        let own = all.filter(|p| p.point == point && p.of_sender == of_sender);
        let point = |p: &PacketAt| {
            most = most.max(p.end);
            [p.at, f64::from(most) / 1e3]
        };
        own.map(point).collect::<Vec<_>>()
    };
    let [sent, passed, heard] = match drawn.outwards {
        true => ["sent", "to-network", "at-card"],
        false => ["peer-sent", "to-vm", "to-network"],
    };
    let limits = drawn.earlier.1.iter().chain(&drawn.limits);
    let limits = limits.map(|[at, bytes]| [*at, bytes / 1e3]).collect();
    let curves = vec![
        (LIMIT, limits),
        (DATA, highest(sent, true)),
        (1, highest(passed, true)),
        (ACK, highest(heard, false)),
    ];
    let summary = "handed over, sent, acknowledged, allowed".to_owned();
    Lane { name: "bytes, KB".into(), summary, content: Content::Curves(curves) }
}
