//! The switch's mechanisms in the simulated driver domain: each a [`Hook`](crate::machine::Hook) around the code of `floodway-core`.

mod describe;
pub mod inbound;
pub mod offload;
