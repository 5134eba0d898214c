//! Keeps nftables maps in step with the Services, behind a ruleset that never changes.
//!
//! `program` has the maps, chains and rules, which are the same for every cluster; `entry` says
//! which elements a Service becomes. [`Nftables`] keeps track of what was written (`state`),
//! collects what differs into transactions (`writer`) and commits them through a [`Kernel`].
//! docs/adr/0027 says why.

mod backend;
mod cleanup;
mod code;
mod collection;
mod connections;
mod dry_run;
mod entry;
mod fixed;
mod front;
mod host_kernel;
mod kernel;
mod loopback;
mod observed;
mod options;
mod order;
mod probe;
mod program;
mod repair;
mod scratch;
mod state;
mod text;
mod trace;
mod transaction;
mod watch;
mod writer;

pub use backend::Nftables;
pub use cleanup::{IN_FLIGHT, cleanup, is_own};
pub use connections::{Connections, CounterState, connections};
pub use dry_run::{differences, render};
pub use host_kernel::HostKernel;
pub use kernel::{Kernel, KernelError, Structure};
pub use loopback::loopback_rejections;
pub use options::{Counters, TableOptions};
pub use probe::{probe, probe_by};
pub use program::TABLE;
pub use trace::{Fate, Packet, Trace, trace, trace_live};
pub use watch::{Notifications, Watch};
