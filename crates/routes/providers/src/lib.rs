//! Route providers: one trait, and one module for each kind of route table.
//!
//! A provider executes single calls and reports their results; when to call it, for what and how
//! often is decided in `weft-routes`. `docs/providers.md` explains how to add one.

mod aws;
mod calls;
mod hcloud;
mod http;
#[cfg(feature = "memory")]
mod memory;
pub mod netlink;
mod open;
mod pages;
mod provider;
mod secret;

pub use aws::{
    AwsProvider, AwsSettings, AwsSettingsError, CloudConfig, CloudConfigError, TableChoice,
};
pub use calls::{CallOutcome, Calls};
pub use hcloud::{HcloudProvider, HcloudSettings, HcloudSettingsError, HcloudToken, TokenError};
#[cfg(feature = "memory")]
pub use memory::MemoryProvider;
pub use netlink::NetlinkProvider;
pub use open::{KNOWN, OpenError, open};
pub use provider::{Capabilities, Provider, SharedProvider};
pub use secret::Secret;
/// The answers of a provider, which the decisions of `weft-routes` take as input.
pub use weft_routes::{Answer, InstanceAddresses};
