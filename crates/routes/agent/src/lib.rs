//! Keeps routes to the nodes' pods at a provider.
//!
//! What to do is decided in `weft-routes` and done by `weft-providers`. Here is what lies between:
//! [`controller()`] watches nodes, calls the provider within the time left to lead, writes
//! conditions and events, and remembers which routes are ours.

mod blocks;
mod conditions;
mod controller;
mod egress;
mod events;
mod instances;
mod joining;
mod ledger;
pub mod metrics;
mod preview;
pub mod process;
mod record;
mod run;
mod settings;
pub mod status;
mod views;

pub use controller::{NAME, RoutesKey, RoutesParts, controller};
pub use egress::{Egress, EgressError};
pub use events::RouteEvents;
pub use metrics::RoutesMetrics;
pub use preview::preview;
pub use settings::{Mode, RoutesSettings};
pub use status::StatusBoard;
pub use views::EXCLUDE_LABEL;
