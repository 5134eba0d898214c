//! Integration tests of the program `weft`.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod arena;
mod beside_kube_proxy;
mod cni;
mod config;
mod dashboard;
mod deploy;
mod exit;
mod help;
mod ipam;
mod logs;
mod node;
mod proxy;
mod proxy_life;
mod proxy_nftables;
mod routes;
mod version;
mod weft;
