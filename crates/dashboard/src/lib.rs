//! A live page of a cluster's network: nodes, pods and pools as a picture, routes, Services, a
//! timeline of changes with what they cost, and the processes behind it.
//!
//! A [`Board`] holds a [`State`], the plain value that the page shows. Whoever knows something
//! writes it there: [`ClusterFeed`] what a cluster's objects say, the playground the rest. A
//! [`DashboardServer`] shows the board to browsers. It only reads, unless it is given a
//! [`Control`].

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
pub use control::Control;
pub use feed::{ClusterFeed, Objects, Source, Standing, derive, objects};
pub use pages::Pages;
pub use server::{BindError, DashboardServer};
pub use state::State;
pub use token::{NoRandomness, Token};
pub use weft_listener::Reach;
