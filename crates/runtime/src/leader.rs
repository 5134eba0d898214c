//! Leader election on a Lease, with a deadline for everything the leader does.
//!
//! The rules are client-go's: compare-and-swap on the Lease's version, expiry judged by the local
//! time since the record was last seen to change, so that clocks of different machines are never
//! compared. In addition, the process can be elected again, and everything that acts as leader gets
//! a deadline (ADR 0005).

mod elector;
mod record;

pub use elector::{LeaderElector, LeaderStatus};
pub use record::{LeaderConfig, LeaderConfigError};
