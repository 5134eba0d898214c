//! Keeps the kernel's iptables chains in step with the Services, as kube-proxy would have them.
//!
//! [`port_rules`] says which rules a Service port needs, [`fixed`] which are always there. A
//! [`Plan`] is the difference between what should be and what is, and prints as the input of
//! `iptables-restore`. [`Iptables`] keeps track and applies plans through a [`Kernel`].

mod backend;
mod baseline;
mod cleanup;
mod difference;
mod expected;
pub mod fixed;
mod host_kernel;
mod kernel;
mod names;
mod observed;
mod plan;
mod port_rules;
mod probe;
mod refused;
mod shared;
mod state;

pub use backend::{Iptables, Options, differences, render};
pub use cleanup::cleanup;
pub use difference::Finding;
pub use host_kernel::{HostKernel, OwnWrites};
pub use kernel::{Fingerprint, Kernel, KernelError, RawHash};
pub use plan::Plan;
pub use port_rules::{PortRules, port_rules};
pub use probe::supports_nfacct;
pub use shared::SharedChain;
