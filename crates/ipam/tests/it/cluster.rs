//! A cluster in memory: an API server, agents, controllers, and the mail between them.

mod api;

pub(crate) use api::{Api, Conflict};
