//! What is measured: frame sizes, flows, and how the client loads the switch with them.

use clap::ValueEnum;

/// Descriptors of each virtqueue: QEMU's default.
pub const QUEUE_SIZE: u32 = 256;
/// Bytes of a receive buffer of `vhgen`; the first one of a frame also holds the virtio-net header.
const RECEIVE_BUFFER: u32 = 2048;
const VNET_HEADER: u32 = 12;
const FLOWS: [u32; 2] = [1, 10_000];

/// The frames of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Frames {
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
}

impl Profile {
    /// In the order of measuring.
    pub const ALL: [Self; 3] = [Self::Standard, Self::Jumbo, Self::Offload];

    /// IP packet bytes that the ports take.
    pub const fn mtu(self) -> u32 {
        match self {
            Self::Jumbo => 9000,
            Self::Standard | Self::Offload => 1500,
        }
    }

    /// For progress lines.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Standard => "standard frames",
            Self::Jumbo => "jumbo frames",
            Self::Offload => "gso-packets",
        }
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub frames: Frames,
    /// Distinct source ports, visited round robin.
    pub flows: u32,
}

/// The cases of these frames, or of all when there are none.
pub fn all(only: &[Frames]) -> Vec<Case> {
    Frames::value_variants()
        .iter()
        .filter(|frames| only.is_empty() || only.contains(frames))
        .flat_map(|&frames| FLOWS.map(|flows| Case { frames, flows }))
        .collect()
}

impl Case {
    /// `64B 1 flow`, `64KB TSO 10000 flows`.
    pub fn name(&self) -> String {
        let frames = match self.frames {
            Frames::B64 => "64B",
            Frames::B1500 => "1500B",
            Frames::B9000 => "9000B",
            Frames::Tso => "64KB TSO",
        };
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
    /// and a burst cannot overrun the ring by more than the switch's own batch.
    pub const fn window(&self) -> Option<u32> {
        let buffers = (self.size() + VNET_HEADER).div_ceil(RECEIVE_BUFFER);
        if buffers == 1 { None } else { Some(QUEUE_SIZE / buffers) }
    }

    /// The configuration that it needs.
    pub const fn profile(&self) -> Profile {
        match self.frames {
            Frames::B64 | Frames::B1500 => Profile::Standard,
            Frames::B9000 => Profile::Jumbo,
            Frames::Tso => Profile::Offload,
        }
    }

    /// Least accepted ratio to OVS-DPDK's NORMAL action.
    pub const fn accepted_ratio_to_ovs(&self) -> f64 {
        match self.frames {
            Frames::B64 if self.flows == 1 => 1.0,
            Frames::B64 => 1.4,
            Frames::B1500 | Frames::Tso => 1.5,
            Frames::B9000 => 1.7,
        }
    }

    /// Least accepted ratio to testpmd, which looks at no frame.
    pub const fn accepted_ratio_to_testpmd(&self) -> f64 {
        match self.frames {
            Frames::B64 => 1.0,
            Frames::B1500 | Frames::B9000 | Frames::Tso => 1.4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_size_comes_with_few_and_many_flows() {
        let names: Vec<String> = all(&[Frames::B64, Frames::Tso]).iter().map(Case::name).collect();
        assert_eq!(
            names,
            ["64B 1 flow", "64B 10000 flows", "64KB TSO 1 flow", "64KB TSO 10000 flows"]
        );
        assert_eq!(all(&[]).len(), 8);
    }

    #[test]
    fn the_window_fits_into_the_receive_ring() {
        for case in all(&[]) {
            let buffers = (case.size() + VNET_HEADER).div_ceil(RECEIVE_BUFFER);
            assert!(
                case.window().is_none_or(|window| window * buffers <= QUEUE_SIZE && window > 1)
            );
        }
    }

    #[test]
    fn a_gso_packet_is_a_legal_ip_packet_of_whole_segments() {
        let case = Case { frames: Frames::Tso, flows: 1 };
        assert!(case.size() - 14 <= u32::from(u16::MAX));
        assert_eq!((case.size() - 54) % case.mss().unwrap(), 0);
    }
}
