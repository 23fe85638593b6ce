//! vhost-user: how a VM's front-end (QEMU, cloud-hypervisor, DPDK's virtio-user) attaches.
//!
//! # Theory of operation
//! Each port has a thread ([`connection`]) that owns its socket, as server or as client, and
//! serves one front-end at a time. Messages change the [`device`]; the device starts and stops the
//! port's rings under the queues' locks. The workers never see a message: they see queues that run
//! or do not.
//!
//! A ring runs from its `SET_VRING_KICK` on (not from the first kick: after a restart of the switch
//! the guest may be waiting for *us*): a receive ring only while it is enabled, a transmit ring once
//! it has been enabled; disabled again, its frames are taken and discarded. It stops at
//! `GET_VRING_BASE`, at a reset, when the memory that it lies in goes, and when the connection ends.
//! When the memory table or a ring's addresses change, the ring is set up again where it stood,
//! which its used ring tells (see [`crate::queues::virtqueue`]).
//!
//! Front-ends are not trusted: they may send any descriptor and take shared memory away ([`crate::queues::call`], [`crate::memory::mapping`],
//! [`crate::memory::sigbus`]). When memory has gone, the connection ends, the port is quarantined for a second, and the reason stands in the status until
//! another front-end comes.
//!
//! With a broker, the socket is the broker's, and messages come one by one through a channel ([`relay`]).
//!
//! Only what works is offered ([`features`]).

mod arrival;
pub mod connection;
pub mod device;
pub mod features;
pub mod messages;
pub mod relay;
