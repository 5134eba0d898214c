//! The kernel's table as something that can be read and written.

use weft_host::nftables::{
    Chain, Change, Element, Ownership, Reason, Rule, Set, TableChange, Value,
};

/// Reads and writes the table of one family.
pub trait Kernel: Send {
    /// Commits all changes at once, or none of them. Returns the number of bytes sent.
    fn commit(&mut self, changes: &[Change]) -> Result<usize, KernelError>;

    /// The structure of the table, if it exists.
    fn structure(&mut self) -> Result<Option<Structure>, KernelError>;

    /// All elements of a set.
    fn elements(&mut self, set: &str) -> Result<Vec<Element>, KernelError>;

    /// The elements with these keys; those that do not exist are left out.
    fn get_elements(&mut self, set: &str, keys: &[Value]) -> Result<Vec<Element>, KernelError>;

    /// Maximum number of elements in one commit. There is none but that of bytes unless it says so.
    fn element_limit(&self) -> usize {
        usize::MAX
    }

    /// Maximum number of bytes in one commit. Falls after a commit that was [too
    /// large](KernelError::TooLarge) all the same, until it is too small to be the reason.
    fn byte_limit(&self) -> usize;

    /// Rises when another process may have changed the table. `None` if that is not known.
    fn foreign_changes(&mut self) -> Option<u64>;
}

/// Sets, chains and rules of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// The comment of the table.
    pub comment: Option<String>,
    /// The sockets that may change it.
    pub ownership: Ownership,
    /// Sets and maps.
    pub sets: Vec<Set>,
    /// Chains, with and without hooks.
    pub chains: Vec<Chain>,
    /// Rules, in their order within each chain.
    pub rules: Vec<Rule>,
}

/// A read or write that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A change was refused, and with it all of the commit.
    #[error("{message}")]
    Refused {
        /// The change, by its place.
        change: usize,
        /// The element, or the expression of a rule, by its place, if the kernel said so.
        element: Option<usize>,
        /// The kernel's error by what can be done about it.
        reason: Reason,
        /// The message about it.
        message: String,
    },
    /// The kernel takes fewer bytes at once. Nothing was done.
    #[error("cannot commit to nftables: {0} bytes are more than the socket sends at once")]
    TooLarge(usize),
    /// Anything else: nothing is known of the input, or of whether it was committed.
    #[error("{0}")]
    Failed(String),
}

/// A change as text, for reports.
pub(crate) fn describe(change: &TableChange) -> String {
    match change {
        TableChange::AddChain(chain) => format!("add chain {}", chain.name),
        TableChange::DeleteChain(chain) => format!("delete chain {chain}"),
        TableChange::AddRule(rule) => format!("add rule {}", rule.chain),
        TableChange::FlushChain(chain) => format!("flush chain {chain}"),
        TableChange::AddSet(set) => format!("add set {}", set.name),
        TableChange::AddElements { set, elements, .. } => {
            format!("add {} elements of {set}", elements.len())
        }
        TableChange::DeleteElements { set, elements, .. } => {
            format!("delete {} elements of {set}", elements.len())
        }
    }
}
