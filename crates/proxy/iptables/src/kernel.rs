//! The interface to the kernel's rules: the host's programs in production, a simulation in tests.

use std::{error::Error, time::Duration};

use weft_ruleset::{ChainName, Table};

/// Reads and writes the rules of one family.
pub trait Kernel: Send {
    /// Prints all tables as `iptables-save` does, line by line.
    fn save(&mut self, line: &mut dyn FnMut(&str)) -> Result<(), KernelError>;

    /// Writes as `iptables-restore --noflush` does: each table completely or not at all.
    fn restore(&mut self, input: &str) -> Result<(), KernelError>;

    /// A value that changes when another process writes, and is cheap to read. `None` if the kernel
    /// has none, or none at the moment.
    fn fingerprint(&mut self) -> Option<Fingerprint>;

    /// The rules of one existing chain, as [`save`](Self::save) prints them after the chain's name.
    fn chain_rules(&mut self, table: Table, chain: ChainName) -> Result<Vec<String>, KernelError>;

    /// Passes a hash of each of these chains, or of the built-in ones and all whose names begin
    /// with `KUBE-`. Chains that do not exist are left out. Costs a small part of
    /// [`save`](Self::save), and shows whether the rules are the same, but not which they are.
    ///
    /// Returns `false` if this kernel does not support it, which is the default.
    fn raw_chains(
        &mut self,
        _which: Option<&[(Table, ChainName)]>,
        _each: &mut dyn FnMut(Table, ChainName, RawHash),
    ) -> Result<bool, KernelError> {
        Ok(false)
    }

    /// CPU time of the child processes since the last call.
    fn take_cpu_time(&mut self) -> Duration;
}

/// A value that identifies a state of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Counters read from the kernel.
    pub values: Vec<u64>,
    /// True if it changes with every write of another process and with none of ours. Otherwise it
    /// changes with most writes, including ours.
    pub exact: bool,
}

/// The kernel's hash of a chain's rules in order: equal for equal rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHash(pub u64);

impl RawHash {
    /// The hash of a chain without rules, and of no other.
    pub const EMPTY: Self = Self(0);
}

/// A failed read or write.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// An input was checked and refused. The tables before the one at fault are written.
    #[error("rules were refused")]
    Refused {
        /// The lines at fault that were named, counted from 1; all in one table.
        lines: Vec<usize>,
        /// The error of the program or kernel.
        #[source]
        cause: Box<dyn Error + Send + Sync>,
    },
    /// Any other failure: the input may be valid.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}
