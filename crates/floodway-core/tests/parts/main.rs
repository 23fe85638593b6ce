//! Parts other than the TCP offload and inbound rates: one binary, so that it is linked once.

mod mac_table;
mod qdisc;
mod source_guards;
mod source_policy;
