//! The service proxy of a node: what it tells about itself.
//!
//! [`health`] knows how well the syncs go and [`service_health`] how many endpoints each Service
//! has here; both are asked over HTTP. [`metrics`] holds the figures, [`pages`] shows them, on
//! addresses that [`listen`] waits for, and [`config_file`] notices a new configuration.

pub mod config_file;
pub mod health;
pub mod listen;
pub mod metrics;
pub mod pages;
pub mod service_health;
