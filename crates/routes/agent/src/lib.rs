//! Keeps routes to the nodes' pods at a provider.
//!
//! What to do is decided in `weft-routes` and done by `weft-providers`. Here is what lies between:
//! [`controller()`] watches nodes, calls the provider within the time left to lead, writes
//! conditions and events, and remembers which routes are ours.

mod announce;
mod blocks;
mod conditions;
mod controller;
mod egress;
mod instances;
mod ledger;
mod life;
pub mod metrics;
mod newcomers;
mod preview;
pub mod process;
mod record;
mod settings;
pub mod status;
mod views;

pub use announce::Announce;
pub use controller::{NAME, RoutesKey, RoutesParts, controller};
pub use egress::{Egress, EgressError};
pub use metrics::RoutesMetrics;
pub use preview::preview;
pub use settings::{Mode, RoutesSettings};
pub use status::StatusBoard;
pub use views::EXCLUDE_LABEL;
