//! The two machines of a connection whose handshake is done.

use super::receiver::Receiver;
use super::sender::Sender;

/// An established connection.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Connection<B> {
    pub rx: Receiver<B>,
    pub tx: Sender<B>,
}
