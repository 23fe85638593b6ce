//! Whether a port's guest can be delivered to; [`stopped`](super::stopped) says what follows from that.

/// Redeliveries in a row, 16 minutes of them, after which a running guest is given up.
pub(super) const MAX_REDELIVERIES: u8 = 20;
/// Times that kept frames are sent after a guest that has moved, over 30 s. After another 32 s they are forgotten.
const MOVED_REDELIVERIES: u8 = 5;

/// Whether the port's guest can be delivered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestState {
    Running,
    /// It may run again, here or elsewhere.
    Stopped,
    /// It runs on another host.
    Moved,
}

impl GuestState {
    /// Most redeliveries in a row; `None` while nothing can be delivered.
    pub fn redeliveries(self) -> Option<u8> {
        match self {
            Self::Running => Some(MAX_REDELIVERIES),
            Self::Stopped => None,
            Self::Moved => Some(MOVED_REDELIVERIES),
        }
    }
}
