//! TCP stacks that nobody here wrote, at both ends of an offloaded connection: smoltcp (a crate) and lwIP (Debian's
//! liblwip-dev), in virtual time against the engine alone, and in real time through a whole switch with a TAP
//! uplink, where Linux is a third.
//!
//! What must hold, whatever the path does: each end reads exactly the bytes that the other one wrote (length and
//! SHA-256), then the end of the stream, with the offload on in either half, in both, or off.

mod app;
mod linux;
mod lwip;
#[path = "../netns/mod.rs"]
mod netns;
mod path;
mod random;
mod real_time;
mod smol;
mod stack;
mod virtual_time;
mod wire;
mod world;
