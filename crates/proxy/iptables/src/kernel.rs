//! The kernel's rules as something that can be read and written.

use std::time::Duration;

use weft_ruleset::{ChainName, Table};

/// Reads and writes the rules of one family.
pub trait Kernel: Send {
    /// All tables, as `iptables-save` prints them, line by line.
    fn save(&mut self, line: &mut dyn FnMut(&str)) -> Result<(), KernelError>;

    /// Writes as `iptables-restore --noflush` does: each table at once or not at all.
    fn restore(&mut self, input: &str) -> Result<(), KernelError>;

    /// Something that differs after somebody else's write and is cheap to ask for. `None` where
    /// the kernel has no such thing, or does not tell now.
    fn fingerprint(&mut self) -> Option<Fingerprint>;

    /// The rules of one chain that exists, as [`save`](Self::save) has them behind its name.
    fn chain_rules(&mut self, table: Table, chain: ChainName) -> Result<Vec<String>, KernelError>;

    /// Hands on a hash for each of these chains, or for the built-in ones and all whose names begin
    /// with `KUBE-`. Those that do not exist are left out. Costs a small part of
    /// [`save`](Self::save), for which it says whether rules are the same, but not which.
    ///
    /// `false` if this kernel cannot, as by default.
    fn raw_chains(
        &mut self,
        _which: Option<&[(Table, ChainName)]>,
        _each: &mut dyn FnMut(Table, ChainName, RawHash),
    ) -> Result<bool, KernelError> {
        Ok(false)
    }

    /// Processor time of the programs that ran since the last call.
    fn take_cpu_time(&mut self) -> Duration;
}

/// Stands for a state of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// What the kernel says.
    pub values: Vec<u64>,
    /// Whether it differs after every write of somebody else and after none of ours. Otherwise it
    /// differs after most writes, ours as well.
    pub exact: bool,
}

/// Stands for the rules of a chain in their order: the same for the same rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHash(pub u64);

impl RawHash {
    /// Of a chain without rules, and of no other.
    pub const EMPTY: Self = Self(0);
}

/// A read or write that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// An input was judged and refused. The tables before the one at fault are written.
    #[error("{message}")]
    Refused {
        /// The lines at fault, counted from 1, as far as they were named; all in one table.
        lines: Vec<usize>,
        /// What was commented about it.
        message: String,
    },
    /// Anything else: nothing is known of the input.
    #[error("{0}")]
    Failed(String),
}
