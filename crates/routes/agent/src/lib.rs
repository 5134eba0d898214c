//! The route controller: keeps routes to the nodes' pods at a provider.
//!
//! Decisions are made in `weft-routes`, calls are executed by `weft-providers`. This crate connects
//! them: [`controller()`] watches nodes, calls the provider within the leadership term, writes
//! conditions and events, and records which routes are ours.

mod blocks;
mod conditions;
mod controller;
mod egress;
mod events;
mod machine;
pub mod metrics;
mod nodes;
mod preview;
pub mod process;
mod record;
mod report;
mod settings;
pub mod status;
mod views;
mod write;

pub use controller::{NAME, RoutesParts, controller};
pub use egress::{Egress, EgressError};
pub use events::RouteEvents;
pub use metrics::RoutesMetrics;
pub use preview::preview;
pub use settings::{Mode, RoutesSettings};
pub use status::StatusBoard;
pub use views::EXCLUDE_LABEL;
