//! The kernel's rules as something that can be read and written.

use std::time::Duration;

/// Reads and writes the rules of one family.
pub trait Kernel: Send {
    /// All tables, as `iptables-save` prints them, line by line.
    fn save(&mut self, line: &mut dyn FnMut(&str)) -> Result<(), KernelError>;

    /// Writes as `iptables-restore --noflush` does: each table at once or not at all.
    fn restore(&mut self, input: &str) -> Result<(), KernelError>;

    /// Something that differs after a write of somebody else, and is cheap to ask for. `None`
    /// where the kernel has no such thing, or cannot tell right now.
    fn fingerprint(&mut self) -> Option<Fingerprint>;

    /// Processor time of the programs that ran since the last call.
    fn take_spent(&mut self) -> Duration;
}

/// Stands for a state of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// What the kernel says.
    pub values: Vec<u64>,
    /// Whether it differs after every write of others and after none of ours. Otherwise most
    /// writes of anybody change it.
    pub exact: bool,
}

/// A read or write that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KernelError(pub String);
