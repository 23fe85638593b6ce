//! What can be told of a flow.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use floodway_wire::FiveTuple;

/// Where the transmit side stands (vFlood, figure 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TxState {
    /// Passed through; the guest's own congestion window rules.
    #[default]
    Offline,
    /// The switch controls the flow and grants as the budget allows.
    Active,
    /// The budget allows no more grants now.
    NoBuffer,
    /// The switch is repairing a loss; grants stand still.
    PacketLoss,
    /// On its way offline: nothing new is granted, what is stored is being sent.
    Leaving,
}

/// Where the receive side stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RxState {
    /// The guest acknowledges for itself.
    #[default]
    Offline,
    /// In-order data is acknowledged for the guest.
    Active,
    /// No room to keep what would be acknowledged, or none in the guest's queue, or the guest's window is full.
    NoBuffer,
    /// Data came out of order, or with what only the guest can answer; the guest acknowledges until it has caught up.
    UnexpectedSeq,
}

/// Why a flow's transmit state changed last, or why the flow is never offloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The connection was just set up.
    #[default]
    Opened,
    /// Offload is off for the port.
    Disabled,
    /// The budget had no room when the flow could have come online.
    NoRoom,
    /// The budget is used up.
    BudgetUsed,
    /// There is room in the budget again.
    RoomAgain,
    /// Segments were lost.
    Loss,
    /// The retransmission timer ran out.
    Timeout,
    /// All that was lost has arrived.
    Recovered,
    /// The port is being drained.
    Draining,
    /// The guest has sent bytes past the switch, and did not repeat them.
    Gap,
    /// It was not used for long.
    Idle,
    /// It was to leave because it was not used, and is used again.
    UsedAgain,
    /// An earlier process owed it bytes; it is passed through.
    Adopted,
    /// Never offloaded: its SYN or SYN-ACK has an option that the switch does not know.
    UnknownOption,
    /// Never offloaded: its SYN or SYN-ACK carries data.
    SynData,
    /// Never offloaded: both sides agreed on AccECN (RFC 9768).
    AccurateEcn,
    /// Never offloaded: a part of its handshake was not seen.
    PartialHandshake,
    /// Never offloaded: the guest forwards it for another host.
    Forwarded,
}

macro_rules! names {
    ($type:ident: $($variant:ident = $name:literal,)+) => {
        impl $type {
            /// Its name on the control socket.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

names! { TxState:
    Offline = "OFFLINE",
    Active = "ACTIVE",
    NoBuffer = "NO_BUFFER",
    PacketLoss = "PACKET_LOSS",
    Leaving = "LEAVING",
}

names! { RxState:
    Offline = "OFFLINE",
    Active = "ACTIVE",
    NoBuffer = "NO_BUFFER",
    UnexpectedSeq = "UNEXPECTED_SEQ",
}

names! { Reason:
    Opened = "opened",
    Disabled = "disabled",
    NoRoom = "no_room",
    BudgetUsed = "budget_used",
    RoomAgain = "room_again",
    Loss = "loss",
    Timeout = "timeout",
    Recovered = "recovered",
    Draining = "draining",
    Gap = "gap",
    Idle = "idle",
    UsedAgain = "used_again",
    Adopted = "adopted",
    UnknownOption = "unknown_option",
    SynData = "syn_data",
    AccurateEcn = "accurate_ecn",
    PartialHandshake = "partial_handshake",
    Forwarded = "forwarded",
}

/// A flow, for `floodway flows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSummary {
    /// Addresses and ports in the guest's direction.
    pub flow: FiveTuple,
    /// Transmit side.
    pub tx: TxState,
    /// Receive side.
    pub rx: RxState,
    /// Why the transmit state changed last, or why the flow is never offloaded.
    pub reason: Reason,
    /// Congestion window towards the network, in bytes.
    pub cwnd: u32,
    /// Slow-start threshold, in bytes.
    pub ssthresh: u32,
    /// Bytes held: sent by the guest, not yet released.
    pub held: u32,
    /// Bytes released and not acknowledged.
    pub in_flight: u32,
    /// Bytes acknowledged to the guest that its peer has not acknowledged.
    pub owed: u32,
    /// Bytes granted that the guest has not sent.
    pub granted: u32,
    /// Smoothed round-trip time on the network.
    pub srtt: Option<Duration>,
    /// Bytes acknowledged for the guest that it has not acknowledged itself.
    pub kept: u32,
}
