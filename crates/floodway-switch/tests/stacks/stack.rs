//! What a TCP stack offers to the test: frames in and out, time, and one connection.

use floodway_core::time::Instant;

/// A TCP stack with one connection. Time never goes back; what is not given a time happens at the
/// latest one.
pub trait Stack {
    /// Opens the connection. A stack that was made to listen does nothing.
    fn connect(&mut self);
    /// A frame arrives.
    fn input(&mut self, now: Instant, frame: &[u8]);
    /// Runs the timers, and sends what can be sent.
    fn poll(&mut self, now: Instant);
    /// The frames sent since the last call, in order.
    fn take_output(&mut self) -> Vec<Vec<u8>>;
    /// When [`poll`](Self::poll) has to be called next.
    fn next_timeout(&mut self) -> Instant;
    /// Queues bytes for transmission. Returns how many of `data` were taken.
    fn send(&mut self, data: &[u8]) -> usize;
    /// Everything sent has been acknowledged.
    fn is_all_acknowledged(&mut self) -> bool;
    /// Reads at most `most` received bytes.
    fn recv(&mut self, most: usize) -> Vec<u8>;
    /// Ends the stream to the other side; receiving goes on.
    fn close(&mut self);
    /// Resets the connection.
    fn abort(&mut self);
    fn status(&self) -> Status;
    /// The state, for a person who looks for the reason of a failure.
    fn detail(&self) -> String {
        format!("{:?}", self.status())
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The handshake is done.
    pub established: bool,
    /// The other side has ended its stream, and all of it was read.
    pub ended: bool,
    /// Both streams have ended and were acknowledged.
    pub closed: bool,
    /// The connection was reset or given up.
    pub reset: bool,
}

/// The addresses of an end.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Last byte of the MAC address and of the IPv4 address.
    pub own: u8,
    pub peer: u8,
}

/// The port on which every listener listens.
pub const PORT: u16 = 80;
