//! Applications that make traffic, and record what became of it.
//!
//! | model | arrivals | connections |
//! |---|---|---|
//! | [`Bulk`] | one transfer per flow, endless or not | one each |
//! | [`Transfers`] | in rounds of several, with the times of each | a new one each |
//! | [`Series`] | a transfer when the one before is done | a new one each, as the vFlood paper's |
//! | [`Poisson`] | exponential gaps | a new one each, or permanent ones between all pairs |
//! | [`Queries`] | requests by one client at a time or by exponential gaps | permanent |
//! | [`Aggregate`] | a query to all workers at once, all answers awaited | permanent |
//! | [`Echo`] | datagrams back and forth | none |
//! | [`Tiers`] | operations of visitors who think, served by a front that calls other servers | permanent or a new one each |
//! | [`Replay`] | as a list says | a new one each, or permanent ones, as the list says |

mod aggregate;
mod bulk;
mod echo;
mod poisson;
mod queries;
mod record;
mod replay;
mod series;
mod sizes;
mod tiers;
mod transfers;

pub use aggregate::{Aggregate, AggregateConfig};
pub use bulk::{Bulk, BulkFlow};
pub use echo::{Echo, EchoConfig};
pub use poisson::{Pairing, Pending, Poisson, PoissonConfig};
pub use queries::{Arrivals, Queries, QueryConfig};
pub use record::{Record, Samples};
pub use replay::{Entry, Replay, Work};
pub use series::{Series, SeriesConfig};
pub use sizes::{Empirical, NotADistribution, Sizes};
pub use tiers::{Call, Operation, Request, Tier, Tiers, TiersConfig};
pub use transfers::{Transfer, Transfers, TransfersConfig};
