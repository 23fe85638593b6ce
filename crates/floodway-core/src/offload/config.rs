//! What an operator chooses for a port.

use std::time::Duration;

use super::budget::BufferPolicy;
use crate::congestion::Algorithm;

/// Which connections of a port are offloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalFlows {
    /// Those that end at the guest.
    #[default]
    Own,
    /// Those that the guest forwards for other hosts as well.
    Any,
}

impl LocalFlows {
    /// Every choice.
    pub const ALL: [Self; 2] = [Self::Own, Self::Any];

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Any => "any",
        }
    }
}

/// When bytes are acknowledged to the guest that its peer has not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyAck {
    /// Never: the guest's module lets it send further than its own window.
    #[default]
    Never,
    /// As long as no module of the guest is heard ([`Offload::hear_module`](super::Offload::hear_module)).
    WithoutModule,
    /// Always. The guest gets no notices.
    Always,
}

/// How what the guest sends is offloaded: [`Config::transmit`] and [`Config::early_ack`] under one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transmit {
    /// It is not.
    #[default]
    Off,
    /// By grants, for guests with the module.
    Module,
    /// By early acknowledgement, for guests without it.
    Agentless,
    /// By grants where the module is heard, and by early acknowledgement elsewhere.
    Auto,
}

impl Transmit {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Off, Self::Module, Self::Agentless, Self::Auto];

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Module => "module",
            Self::Agentless => "agentless",
            Self::Auto => "auto",
        }
    }

    /// Returns `true` if bytes may be acknowledged to a guest that its peer has not acknowledged.
    #[must_use]
    pub const fn may_owe(self) -> bool {
        matches!(self, Self::Agentless | Self::Auto)
    }
}

/// A kept frame counts for this many bytes at least: a peer that sends bytes one by one must not make us
/// keep millions of frames.
pub(super) const LEAST_FRAME: u32 = 512;

/// Which halves of the offload are on, and how they behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Congestion control for what the guest sends.
    pub transmit: bool,
    /// Acknowledgement of what the guest receives.
    pub receive: bool,
    /// Whose connections are offloaded.
    pub local: LocalFlows,
    /// The congestion control towards the network.
    pub congestion: Algorithm,
    /// First congestion window, in segments, 1 to 64 (RFC 6928: 10).
    pub initial_window: u8,
    /// How flows of the port share the budget.
    pub buffer: BufferPolicy,
    /// Bytes that the port's flows may have stored, unacknowledged or granted, 64 KiB to 1 GiB.
    pub budget: u32,
    /// Bytes kept of what was acknowledged for the guest.
    pub receive_budget: u32,
    /// Most flows that are known at once.
    pub max_flows: u32,
    /// Idle flows are forgotten after this; those that are online go offline first.
    pub idle: Duration,
    /// Smallest retransmission time-out towards the network. Well under the 200 ms of the guest's, so that a
    /// loss is repaired before the guest's own timer runs out (I7).
    pub min_rto: Duration,
    /// Whether what is stored is acknowledged to the guest before its peer has acknowledged it, as far as the rules of
    /// [early acknowledgement](super) allow. Guests without the module gain by it.
    pub early_ack: EarlyAck,
    /// Nothing is acknowledged early that takes longer than this to be acknowledged by the peer: the guest's smallest
    /// retransmission time-out (Linux: 200 ms), with a margin.
    pub early_ack_delay: Duration,
    /// Nothing is acknowledged early on a path whose smallest round trip is shorter than this, unless it is losing bytes.
    pub early_ack_min_rtt: Duration,
    /// A peer that is owed what was acknowledged early, and has not answered for this long, is dead: both ends are
    /// reset. Linux's time for 15 time-outs (`tcp_retries2`: 924.6 s), rounded up.
    pub peer_timeout: Duration,
}

impl Config {
    /// How what the guest sends is offloaded.
    #[must_use]
    pub const fn transmit_mode(&self) -> Transmit {
        match (self.transmit, self.early_ack) {
            (false, _) => Transmit::Off,
            (true, EarlyAck::Never) => Transmit::Module,
            (true, EarlyAck::Always) => Transmit::Agentless,
            (true, EarlyAck::WithoutModule) => Transmit::Auto,
        }
    }

    /// Changes how what the guest sends is offloaded.
    pub const fn set_transmit(&mut self, mode: Transmit) {
        (self.transmit, self.early_ack) = match mode {
            Transmit::Off => (false, EarlyAck::Never),
            Transmit::Module => (true, EarlyAck::Never),
            Transmit::Agentless => (true, EarlyAck::Always),
            Transmit::Auto => (true, EarlyAck::WithoutModule),
        };
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            transmit: false,
            receive: false,
            local: LocalFlows::Own,
            congestion: Algorithm::Cubic,
            initial_window: 10,
            buffer: BufferPolicy::Prioritised,
            budget: 4 << 20,
            receive_budget: 4 << 20,
            max_flows: 65_536,
            idle: Duration::from_secs(600),
            min_rto: Duration::from_millis(100),
            early_ack: EarlyAck::Never,
            early_ack_delay: Duration::from_millis(150),
            early_ack_min_rtt: Duration::from_millis(1),
            peer_timeout: Duration::from_secs(925),
        }
    }
}
