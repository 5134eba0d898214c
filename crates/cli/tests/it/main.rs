//! The program from the outside: what it prints and how it exits.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod apiserver;
mod arena;
mod beside_kube_proxy;
mod check;
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
mod routes;
mod testkit;
mod up;
mod version;
mod weft;
