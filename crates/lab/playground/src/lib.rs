//! A whole cluster network on one machine: `weft-lab up`.
//!
//! It consists of the embedded API server and a "world" of namespaces that ends with the process that
//! made it. Nodes and pods are network namespaces. Weft's agents are processes with the command lines
//! of `deploy/`. Stand-ins replace the parts of Kubernetes that a network needs, and do nothing else:
//! with Weft's processes stopped, no route, rule, address or condition changes.
//!
//! Start reading at [`world`], which [`launch`] starts; [`demo`] is what `weft-lab up` shows.

mod agent;
pub mod churn;
mod cni;
mod cost;
pub mod demo;
pub mod directory;
mod kernel;
pub mod launch;
mod listeners;
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
