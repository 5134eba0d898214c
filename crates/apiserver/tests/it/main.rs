//! Integration tests of the API server through its public interfaces.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test, as tests do"
)]

mod authorization;
mod cascades;
mod cases;
mod core;
mod cost;
mod fault_endpoint;
mod faults;
mod features;
mod go_clients;
mod kinds;
mod kube_rs;
mod limits;
mod persistence;
mod pod_proxy;
mod properties;
mod support;
mod tokens;
mod transport;
