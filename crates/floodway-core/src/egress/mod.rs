//! What lies between a packet that leaves the host and its device: a [`meter`] says to which class it belongs, a
//! [queue](qdisc::scheduler) with a discipline for each source decides which one is next, and a [byte limit](qdisc::limit) or a
//! [rate](qdisc::shaper) when the device gets it.
//!
//! The parts are generic over what a packet is. Their composition is the caller's: the switch hands a frame to its device from where it lies
//! if nothing waits, and copies it only to queue it; the simulator's packets are owned by a pool, its card is a ring of descriptors, and
//! between meter and queue the driver domain spends time. What both need is here, what is left of each is its I/O.

pub mod meter;
pub mod qdisc;
