//! Keeps the kernel's iptables chains in step with the Services, with the rules that kube-proxy
//! would write.
//!
//! One sync is a comparison. Its vocabulary, in the order of the data flow:
//!
//! - [`PortRules`] are the rules of one Service port; [`fixed`] has the rules that exist without
//!   any Service.
//! - `State` is what was written last. Its `Expected` holds one hash per chain that should exist.
//! - `Observed` holds the same hashes as read from the kernel. A `Snapshot` is `Observed` with the
//!   kernel's [`Fingerprint`], which shows later whether another process has written since.
//! - A `Baseline` holds the kernel's own hash of each chain from a time when the chain was known to
//!   be right, so that a chain can be checked without printing its rules as text.
//! - A `Difference` lists the chains and jumps in which `Observed` deviates from `Expected`. A
//!   [`Plan`] is the input of `iptables-restore` that removes it.
//! - An `Update` is the plan of a partial sync, which follows from the changed Services alone and
//!   reads nothing. Its `Edits` are the single rules to insert into and delete from shared chains.
//!
//! [`Iptables`] ties this together and writes through a [`Kernel`].

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

pub use backend::{Iptables, Options, RestoreScope, differences, render};
pub use cleanup::cleanup;
pub use host_kernel::{HostKernel, OwnWrites};
pub use kernel::{Fingerprint, Kernel, KernelError, RawHash};
pub use plan::Plan;
pub use port_rules::{PortRules, port_rules};
pub use probe::supports_nfacct;
pub use shared::SharedChain;
