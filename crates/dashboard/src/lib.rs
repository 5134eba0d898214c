//! A live page of a cluster's network: nodes, pods and pools, routes, Services, a timeline of
//! changes with their cost, and the processes behind it.
//!
//! A [`Board`] holds a [`State`], the plain value that the page shows. [`ClusterFeed`] writes what
//! it derives from a cluster's objects; the playground writes the rest. A [`DashboardServer`]
//! serves the board to browsers. It is read-only unless it is given a [`Control`].

mod assets;
mod board;
mod control;
mod feed;
mod origin;
mod pages;
mod server;
pub mod state;
mod stream;
mod token;

pub use board::Board;
pub use control::{ActionError, Control};
pub use feed::{ClusterFeed, Objects, Source, SyncState, derive, objects};
pub use pages::Pages;
pub use server::{BindError, DashboardServer};
pub use state::State;
pub use token::{NoRandomness, Token};
pub use weft_listener::Reach;
