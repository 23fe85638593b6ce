//! What is measured: frame sizes, flows, and how the client loads the switch with them.

use clap::ValueEnum;

/// Descriptors of each virtqueue: QEMU's default.
pub const QUEUE_SIZE: u32 = 256;
/// Bytes of a receive buffer of `vhgen`; the first one of a frame also holds the virtio-net header.
const RECEIVE_BUFFER: u32 = 2048;
const VNET_HEADER: u32 = 12;
const FLOWS: [u32; 2] = [1, 10_000];
/// Pause of a client that is busy for a tenth of the time.
const TENTH_US: u32 = 1_500;
/// Pause of a ping-pong, within which no switch should fall asleep.
const PING_US: u32 = 20;
/// Pause between ICMP echo requests to the host: with the time of an exchange, some 10 000 in a second.
const ECHO_US: u32 = 80;

/// Which cases to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// 64-byte UDP frames, headers touched.
    #[value(name = "64")]
    B64,
    /// 1500-byte UDP frames, every cache line touched.
    #[value(name = "1500")]
    B1500,
    /// 9000-byte UDP frames, every cache line touched.
    #[value(name = "9000")]
    B9000,
    /// GSO packets of 44 segments, every cache line touched.
    #[value(name = "tso")]
    Tso,
    /// Clients that pause between bursts.
    #[value(name = "bursts")]
    Bursts,
    /// Frames to the host and ICMP echo requests, over both kinds of uplinks.
    #[value(name = "uplinks")]
    Uplinks,
}

/// How a switch reaches its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// A tap, which is the host's own card.
    Tap,
    /// Packet sockets on one end of a veth pair, whose other end is the host's.
    Packet,
}

/// The frames of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    B64,
    B1500,
    B9000,
    Tso,
}

/// How a switch has to be configured for a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Frames of Ethernet's usual size, no offload.
    Standard,
    /// MTU 9000.
    Jumbo,
    /// TCP segmentation and checksum offload on.
    Offload,
    /// The same, and Floodway sleeps between bursts as its defaults have it.
    Bursts,
    /// The same, with one port and the host behind an uplink.
    Uplink(Uplink),
}

impl Profile {
    /// In the order of measuring.
    pub const ALL: [Self; 6] = [
        Self::Standard,
        Self::Jumbo,
        Self::Offload,
        Self::Bursts,
        Self::Uplink(Uplink::Tap),
        Self::Uplink(Uplink::Packet),
    ];

    /// IP packet bytes that the ports take.
    pub const fn mtu(self) -> u32 {
        match self {
            Self::Jumbo => 9000,
            Self::Standard | Self::Offload | Self::Bursts | Self::Uplink(_) => 1500,
        }
    }

    /// Whether GSO packets are passed on whole.
    pub const fn has_tso(self) -> bool {
        matches!(self, Self::Offload | Self::Bursts | Self::Uplink(_))
    }

    /// Whether Floodway sleeps as its defaults have it. Otherwise it polls, as others do.
    pub const fn sleeps(self) -> bool {
        matches!(self, Self::Bursts | Self::Uplink(_))
    }

    /// For progress lines.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Standard => "standard frames",
            Self::Jumbo => "jumbo frames",
            Self::Offload => "gso-packets",
            Self::Bursts => "bursts",
            Self::Uplink(Uplink::Tap) => "a tap as uplink",
            Self::Uplink(Uplink::Packet) => "packet sockets as uplink",
        }
    }
}

/// Frames that leave at once and are waited for, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    pub frames: u32,
    /// Pause after each, in microseconds.
    pub gap_us: u32,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub frames: Frames,
    /// Distinct source ports, visited round robin.
    pub flows: u32,
    /// None where rings are kept full.
    pub bursts: Option<Bursts>,
    /// None where frames go to another port. Single frames are ICMP echo requests.
    pub uplink: Option<Uplink>,
}

/// The cases of these groups, or of all when there are none.
pub fn all(only: &[Group]) -> Vec<Case> {
    let groups = Group::value_variants().iter();
    groups.filter(|group| only.is_empty() || only.contains(group)).flat_map(cases).collect()
}

fn cases(group: &Group) -> Vec<Case> {
    let frames = match group {
        Group::B64 => Frames::B64,
        Group::B1500 => Frames::B1500,
        Group::B9000 => Frames::B9000,
        Group::Tso => Frames::Tso,
        Group::Bursts => return bursts(),
        Group::Uplinks => return [Uplink::Tap, Uplink::Packet].map(to_host).concat(),
    };
    FLOWS.map(|flows| Case { frames, flows, bursts: None, uplink: None }).into()
}

/// As many GSO packets as the receive ring holds, by a client that is busy with them for some 150 µs: without a pause, half of the time and a tenth; and single
/// small frames.
fn bursts() -> Vec<Case> {
    let case = |frames, bursts| Case { frames, flows: 1, bursts: Some(bursts), uplink: None };
    let packets = |gap_us| case(Frames::Tso, Bursts { frames: 7, gap_us });
    let pings = |gap_us| case(Frames::B64, Bursts { frames: 1, gap_us });
    vec![packets(0), packets(150), packets(TENTH_US), pings(PING_US), pings(200), pings(5000)]
}

fn to_host(uplink: Uplink) -> Vec<Case> {
    let case = |frames, bursts| Case { frames, flows: 1, bursts, uplink: Some(uplink) };
    let echo = Some(Bursts { frames: 1, gap_us: ECHO_US });
    let full = [Frames::B64, Frames::B1500, Frames::Tso].map(|frames| case(frames, None));
    full.into_iter().chain([case(Frames::B64, echo)]).collect()
}

impl Case {
    /// `64B 1 flow`, `64KB TSO 10000 flows`, `7 x 64KB TSO, gap 150 us`, `64B to host, tap`.
    pub fn name(&self) -> String {
        let frames = match self.frames {
            Frames::B64 => "64B",
            Frames::B1500 => "1500B",
            Frames::B9000 => "9000B",
            Frames::Tso => "64KB TSO",
        };
        if let Some(uplink) = self.uplink {
            let way = match uplink {
                Uplink::Tap => "tap",
                Uplink::Packet => "packet sockets",
            };
            let what = if self.bursts.is_some() { "echo" } else { frames };
            return format!("{what} to host, {way}");
        }
        if let Some(Bursts { frames: count, gap_us }) = self.bursts {
            return format!("{count} x {frames}, gap {gap_us} us");
        }
        let plural = if self.flows == 1 { "" } else { "s" };
        format!("{frames} {} flow{plural}", self.flows)
    }

    /// Frame bytes without FCS.
    pub const fn size(&self) -> u32 {
        match self.frames {
            Frames::B64 => 64,
            Frames::B1500 => 1500,
            Frames::B9000 => 9000,
            // 44 segments of 1500-byte packets without TCP options, and Ethernet, IPv4 and TCP headers.
            Frames::Tso => 44 * 1460 + 54,
        }
    }

    /// Segment bytes of GSO packets.
    pub const fn mss(&self) -> Option<u32> {
        match self.frames {
            Frames::Tso => Some(1460),
            _ => None,
        }
    }

    /// Whether every cache line is written and read.
    pub const fn touches_all(&self) -> bool {
        !matches!(self.frames, Frames::B64)
    }

    /// Frames in flight at most: what the receive ring holds. None where one buffer takes a frame,
    /// and a burst cannot overrun the ring by more than the switch's own batch; or where no frame comes back.
    pub const fn window(&self) -> Option<u32> {
        if self.uplink.is_some() {
            return None;
        }
        let buffers = (self.size() + VNET_HEADER).div_ceil(RECEIVE_BUFFER);
        if buffers == 1 { None } else { Some(QUEUE_SIZE / buffers) }
    }

    /// The configuration that it needs.
    pub const fn profile(&self) -> Profile {
        if let Some(uplink) = self.uplink {
            return Profile::Uplink(uplink);
        }
        match self.frames {
            _ if self.bursts.is_some() => Profile::Bursts,
            Frames::B64 | Frames::B1500 => Profile::Standard,
            Frames::B9000 => Profile::Jumbo,
            Frames::Tso => Profile::Offload,
        }
    }

    /// Least accepted ratio to OVS-DPDK's NORMAL action, which always polls.
    pub const fn accepted_ratio_to_ovs(&self) -> Option<f64> {
        match self.frames {
            Frames::Tso if self.bursts.is_some() => Some(1.3),
            _ if self.bursts.is_some() => None,
            Frames::B64 if self.flows == 1 => Some(1.0),
            Frames::B64 => Some(1.4),
            Frames::B1500 | Frames::Tso => Some(1.5),
            Frames::B9000 => Some(1.7),
        }
    }

    /// Least accepted ratio to testpmd, which looks at no frame.
    pub const fn accepted_ratio_to_testpmd(&self) -> f64 {
        match self.frames {
            Frames::B64 => 1.0,
            Frames::B1500 | Frames::B9000 | Frames::Tso => 1.4,
        }
    }

    /// Whether it is single frames of which the next comes at once.
    pub fn is_ping_pong(&self) -> bool {
        self.frames == Frames::B64
            && self.uplink.is_none()
            && self.bursts.is_some_and(|bursts| bursts.gap_us == PING_US)
    }

    /// Greatest accepted part of the CPU time of a switch that always polls.
    pub fn accepted_cpu(&self) -> Option<f64> {
        let gap_us = self.bursts?.gap_us;
        (self.frames == Frames::Tso && gap_us == TENTH_US).then_some(0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_size_comes_with_few_and_many_flows() {
        let names: Vec<String> = all(&[Group::B64, Group::Tso]).iter().map(Case::name).collect();
        assert_eq!(
            names,
            ["64B 1 flow", "64B 10000 flows", "64KB TSO 1 flow", "64KB TSO 10000 flows"]
        );
        assert_eq!(all(&[]).len(), 22);
        let to_host = all(&[Group::Uplinks]);
        assert_eq!(to_host[0].name(), "64B to host, tap");
        assert_eq!(to_host[7].name(), "echo to host, packet sockets");
        assert_eq!(all(&[Group::Bursts])[1].name(), "7 x 64KB TSO, gap 150 us");
    }

    #[test]
    fn the_window_fits_into_the_receive_ring() {
        for case in all(&[]) {
            let buffers = (case.size() + VNET_HEADER).div_ceil(RECEIVE_BUFFER);
            assert!(
                case.window().is_none_or(|window| window * buffers <= QUEUE_SIZE && window > 1)
            );
            assert!(case.bursts.is_none_or(|bursts| bursts.frames * buffers <= QUEUE_SIZE));
        }
    }

    #[test]
    fn a_gso_packet_is_a_legal_ip_packet_of_whole_segments() {
        let case = Case { frames: Frames::Tso, flows: 1, bursts: None, uplink: None };
        assert!(case.size() - 14 <= u32::from(u16::MAX));
        assert_eq!((case.size() - 54) % case.mss().unwrap(), 0);
    }
}
