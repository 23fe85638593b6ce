//! What a switch behind a broker is given.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::kept::addresses::KeptAddress;
use crate::kept::counters::KeptCounters;
use crate::kept::flows::Arrived;
use crate::kept::journal::KeptJournal;
use crate::kept::turns::KeptTurns;
use crate::state::ports::Capacity;
use crate::state::supply::DeviceSupply;
use crate::stats::traffic_matrix::TrafficMatrix;

/// A port whose socket a broker holds.
#[derive(Debug)]
pub struct BrokerPort {
    /// Its number.
    pub number: usize,
    /// What tells it from others that have had the number.
    pub instance: u64,
    /// Its front-ends are at the other end.
    pub channel: OwnedFd,
    /// What was acknowledged for its guest; nothing is recorded if there is none.
    pub journal: Option<KeptJournal>,
}

/// An uplink whose device a broker holds.
#[derive(Clone, Debug)]
pub struct BrokerUplink {
    /// Its number among uplinks.
    pub number: usize,
    /// Where its device comes from.
    pub device: Arc<DeviceSupply>,
}

/// What a broker holds for a switch.
#[derive(Debug)]
pub struct Brokered {
    /// Ports, by index: as many as the configuration has.
    pub ports: BTreeMap<usize, BrokerPort>,
    /// Numbers that ports and uplinks can have.
    pub numbers: Capacity,
    /// Uplinks, in the order of the configuration.
    pub uplinks: Vec<BrokerUplink>,
    /// Counters of earlier data planes; from zero if there are none.
    pub counters: Option<KeptCounters>,
    /// Who has sent to whom under earlier data planes; from zero if there are none.
    pub pairs: Option<TrafficMatrix>,
    /// Addresses that earlier data planes had learned.
    pub addresses: Vec<KeptAddress>,
    /// Where workers note whose turn it is, if anybody reads it.
    pub turns: Option<KeptTurns>,
    /// Connections that another data plane has handed over, by the instances of ports.
    pub arrived: BTreeMap<u64, Arrived>,
    /// Another data plane has served the guests until now: frames for them wait until their rings are taken up.
    pub awaits_guests: bool,
}
