//! A whole cluster network on one machine: `weft up`.
//!
//! The embedded API server, and a world of namespaces that is gone with the process that made it.
//! Nodes and pods are network namespaces; Weft's agents are processes started as `deploy/` says;
//! what Kubernetes itself would do is done by stand-ins, which do nothing else: with Weft's
//! processes stopped, no route, rule, address or condition changes.
//!
//! Start reading at [`world`], which is entered through [`launch`]; [`demo`] is what a newcomer
//! sees.

mod agent;
mod applying;
pub mod churn;
mod cni;
mod cost;
pub mod demo;
pub mod directory;
mod doors;
mod kernel;
pub mod launch;
pub mod limits;
mod manifest;
mod network;
mod node;
pub mod page;
mod place;
mod pod_dialer;
mod program;
pub mod report;
mod standin;
pub mod traffic;
pub mod world;
