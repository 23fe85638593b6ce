//! TCP stacks that nobody here wrote, at both ends of an offloaded connection: smoltcp (a crate) and lwIP (Debian's
//! liblwip-dev), in virtual time against the engine alone.
//!
//! What must hold, whatever the path does: each end reads exactly the bytes that the other one wrote (length and
//! SHA-256), then the end of the stream, with the offload on in either half, in both, or off.

mod app;
mod lwip;
mod path;
mod random;
mod smol;
mod stack;
mod virtual_time;
mod wire;
mod world;
