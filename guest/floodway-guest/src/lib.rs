//! What the guest agent and the lab share: the frames on the wire between them, the requests and
//! replies in those frames, and the byte streams that both ends can make and check.

mod background;
pub mod frame;
pub mod protocol;
pub mod requests;
pub mod sockets;
pub mod stream;
pub mod transfer;
