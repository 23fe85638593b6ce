//! What an operator can choose.

use crate::time::Duration;

/// What the weight of a VM is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Its active connections, up to the cap: the paper's scheme.
    #[default]
    Connections,
    /// Its configured weight while it has an active connection.
    Fixed,
    /// Its configured weight, always: a static division of the link.
    Share,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Connections, Self::Fixed, Self::Share];

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Fixed => "fixed",
            Self::Share => "share",
        }
    }

    /// The weight of a VM with so many active connections. `cap` is the most that connections count
    /// for (zero: no cap), `configured` the VM's weight in the configuration.
    #[must_use]
    pub const fn weight(self, active: u32, cap: u32, configured: u32) -> u32 {
        match self {
            Self::Connections if cap != 0 && active > cap => cap,
            Self::Connections => active,
            Self::Fixed if active == 0 => 0,
            Self::Fixed | Self::Share => configured,
        }
    }
}

/// How the link into the host is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Capacity of the link in bytes per second, as frames take it: [`frame_overhead`](Self::frame_overhead)
    /// included. Zero switches the mechanism off.
    pub capacity: u64,
    /// No VM's rate is less, in bytes per second, as long as the capacity has that much for each.
    pub minimum: u64,
    /// Where weights come from.
    pub policy: Policy,
    /// Most connections of a VM that count; zero is no cap.
    pub weight_cap: u32,
    /// What a VM does not use is lent to the others.
    pub water_fill: bool,
    /// A connection that received nothing for this long is not active.
    pub idle: Duration,
    /// Bytes that may arrive at once: what the port in front of the host can queue for us.
    pub burst: u32,
    /// UDP beyond a VM's rate is dropped.
    pub police_udp: bool,
    /// Bytes that a frame takes on the link besides its own: on Ethernet 24 (preamble, frame check
    /// sequence, gap).
    pub frame_overhead: u32,
    /// Most connections that are known at once, for each VM.
    pub max_connections: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            capacity: 0,
            minimum: 125_000,
            policy: Policy::Connections,
            weight_cap: 64,
            water_fill: false,
            idle: Duration::from_millis(200),
            burst: 128 << 10,
            police_udp: false,
            frame_overhead: 24,
            max_connections: 16_384,
        }
    }
}

impl Config {
    /// How long the link takes for a burst: what arrives early by no more than this is in time.
    #[must_use]
    pub fn tolerance(&self) -> Duration {
        let nanos = u128::from(self.burst) * 1_000_000_000 / u128::from(self.capacity.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights() {
        let weights = |policy: Policy| [0, 3, 500].map(|active| policy.weight(active, 64, 7));
        assert_eq!(weights(Policy::Connections), [0, 3, 64]);
        assert_eq!(weights(Policy::Fixed), [0, 7, 7]);
        assert_eq!(weights(Policy::Share), [7, 7, 7]);
        assert_eq!(Policy::Connections.weight(500, 0, 7), 500);
    }

    #[test]
    fn a_burst_is_a_time() {
        let config = Config { capacity: 125_000_000, burst: 125_000, ..Config::default() };
        assert_eq!(config.tolerance(), Duration::from_millis(1));
        assert_eq!(Config::default().tolerance(), Duration::from_secs(1));
    }
}
