#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | [`allowance`] | how much of a core front-ends may take |
//! | [`peer`] | the process at the other end of a socket |
//! | [`poll`] | waiting for descriptors |
//! | [`message`] | the messages between the two, and their bounds |
//! | [`fault`] | points at which tests end processes, in debug builds |
//! | [`channel`] | a socket that carries them, with descriptors in one direction |
//! | [`sealed`] | bytes that are handed over and do not change |
//! | [`store`] | the messages between broker and descriptor store |
//! | [`upgrade`] | which programs run |
//! | [`moves`] | how connections fare that follow VMs to other hosts |
//! | [`speaks`] | what a program says of itself before it is started in another's place |
//! | [`sandbox`] | what the data plane gives up before it starts |

pub mod allowance;
pub mod channel;
pub mod fault;
pub mod message;
pub mod moves;
pub mod peer;
pub mod poll;
pub mod sandbox;
pub mod sealed;
pub mod speaks;
pub mod store;
pub mod upgrade;
