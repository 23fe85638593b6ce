#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | [`framing`] | whole vhost-user messages from a front-end's socket |
//! | [`record`] | the messages that bring a new data plane to where the last one was |
//! | [`session`] | one front-end's connection, whatever happens to data planes |
//! | [`notices`] | what data planes show and cannot find out |
//! | [`port`] | a port's thread: its socket and its channel |
//! | [`uplink`] | devices of uplinks |
//! | [`journal`] | what data planes have acknowledged |
//! | [`layout`] | which ports there are, and changes of that |
//! | [`transaction`] | whether the state before a change is in force or the one after it |
//! | [`settings`] | what operators have set at run time |
//! | [`quarantine`] | ports that data planes die of, and for how long their front-ends are kept away |
//! | [`supervision`] | why a data plane ended, and when the next one starts |
//! | [`broker`] | starts data planes, one after the other |
//! | [`upgrade`] | another program in the place of the one that runs |
//! | [`vm`] | what tells a VM on all hosts |
//! | [`migration`] | connections that follow VMs to other hosts |
//! | [`store`] | the process that has a copy of all that, for the next broker |
//! | [`descriptors`] | how many the process must be allowed |

pub mod broker;
pub mod descriptors;
pub mod framing;
pub mod journal;
pub mod layout;
pub mod migration;
pub mod notices;
pub mod port;
mod process;
pub mod quarantine;
pub mod record;
pub mod session;
pub mod settings;
pub mod store;
pub mod supervision;
pub mod transaction;
pub mod upgrade;
pub mod uplink;
pub mod vm;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
