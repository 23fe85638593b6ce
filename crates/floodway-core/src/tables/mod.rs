//! What mechanisms keep flows in: a table that finds and forgets them, and the queue of their timers. Both allocate in chunks as they
//! grow, and name an entry by a [`FlowId`](flow_table::FlowId).

pub mod flow_table;
pub mod timer;
