//! All access to the kernel: iptables programs, netlink, sysctls, addresses, bridges, routes.
//!
//! Everything here blocks the calling thread and acts in that thread's network namespace, except
//! [`routing`], which is asynchronous. Nothing here decides: callers choose what to read or write,
//! and get an error that names the failing call.
//!
//! Start reading at [`iptables`]; `raw.rs` holds the unsafe calls.

pub mod addresses;
pub mod bridge;
pub mod command;
pub mod conntrack_limits;
pub mod hostname;
pub mod iptables;
pub mod kernel_version;
pub mod namespace;
pub mod netfilter;
mod netlink;
pub mod nftables;
pub mod process;
pub mod processors;
mod raw;
pub mod routing;
pub mod sysctl;

pub use netlink::NetlinkError;
pub use rustix::io::Errno;
