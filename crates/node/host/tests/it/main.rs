//! Integration tests against the kernel; each test has network namespaces of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod addresses;
mod conntrack;
mod detection;
mod iptables;
mod netfilter;
mod nftables;
mod routing;
mod rules;
mod support;
mod sysctl;
