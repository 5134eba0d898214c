//! The contract between the proxy and a backend that programs its Services into a kernel.
//!
//! A backend whose input is refused reports which Services own the refused rules;
//! [`Quarantine`](crate::Quarantine) then leaves those Services out and has the rest written.

use std::{
    collections::BTreeSet,
    error::Error,
    fmt,
    ops::{AddAssign, SubAssign},
    sync::Arc,
    time::Duration,
};

use weft_model::{ObjectKey, error_text};

use crate::{Desired, Service, Settings};

/// The part of the kernel's state that a sync reads and writes.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// All of it: reads what is there and writes what differs.
    Full,
    /// Only the rules of these Services; the rest is assumed to be as last written.
    Changed(&'a BTreeSet<ObjectKey>),
}

/// Programs Services into a kernel, for one family.
pub trait Backend: Send {
    /// Makes the kernel's rules match `desired`.
    ///
    /// A partial sync that fails is followed by a full one at once, so an error means that the full
    /// one failed too. The exception is a refusal with a known [`RuleOwner`]: then the next partial
    /// sync must name at least the same Services again and continues where this one stopped, so
    /// that one refused Service never costs a read of all rules.
    fn sync(
        &mut self,
        desired: &Desired,
        settings: &Settings,
        scope: Scope<'_>,
    ) -> Result<SyncReport, SyncError>;

    /// Compares the kernel's rules with what was last written and repairs differences.
    ///
    /// A cheap check comes first and ends the audit if nothing changed. Reading all rules costs
    /// more and is done only if there is [budget](ReadBudget::Available) for it.
    fn audit(&mut self, budget: ReadBudget) -> Result<AuditReport, SyncError>;
}

/// The budget of an audit for reading all rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBudget {
    /// All rules may be read.
    Available,
    /// Too much was read recently: only the cheap check is made.
    Spent,
}

/// The outcome of a successful sync.
#[derive(Clone, Debug, Default)]
pub struct SyncReport {
    /// True if all rules were read.
    pub full: bool,
    /// The failure of the partial sync that preceded this full one, if any.
    pub partial_failure: Option<SyncError>,
    /// Refusals on the way to this success; the Services at fault are quarantined.
    pub refusals: Vec<SyncError>,
    /// Bytes given to the kernel.
    pub bytes: usize,
    /// CPU time of the child processes that it started.
    pub children: Duration,
    /// Chains of all tables together.
    pub chains: ChainCount,
    /// Per table: rules that should exist, and rules written by this sync.
    pub rules: Vec<(&'static str, RuleCount)>,
    /// Elements of maps, of a backend that has them.
    pub elements: Option<ElementCount>,
    /// The failure to remove chains that are not needed any more, if any. They do no harm, and the
    /// next sync tries again.
    pub cleanup_failure: Option<String>,
    /// Service ports whose traffic policy allows only endpoints of this node, which has none.
    pub without_local_endpoints: WithoutLocalEndpoints,
}

impl SyncReport {
    /// Adds the report of a sync that followed this one: written amounts add up, totals are the
    /// later one's.
    pub(crate) fn absorb(&mut self, later: Self) {
        let earlier = std::mem::replace(self, later);
        self.full |= earlier.full;
        self.partial_failure = earlier.partial_failure.or(self.partial_failure.take());
        self.refusals.splice(0..0, earlier.refusals);
        self.bytes += earlier.bytes;
        self.children += earlier.children;
        self.chains.written += earlier.chains.written;
        self.chains.removed += earlier.chains.removed;
        for (table, count) in &mut self.rules {
            let of_table = earlier.rules.iter().find(|(name, _)| name == table);
            count.written += of_table.map_or(0, |(_, count)| count.written);
        }
        if let (Some(count), Some(earlier)) = (&mut self.elements, earlier.elements) {
            count.written += earlier.written;
        }
        self.cleanup_failure = self.cleanup_failure.take().or(earlier.cleanup_failure);
    }
}

/// Number of chains that a sync changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainCount {
    /// Created, replaced or edited.
    pub written: usize,
    /// Deleted from the kernel.
    pub removed: usize,
}

/// Number of rules in one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Rules that should exist.
    pub total: usize,
    /// Rules written in this sync.
    pub written: usize,
}

/// Number of elements in the maps of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElementCount {
    /// Elements that should exist.
    pub total: usize,
    /// Elements added, replaced or deleted in this sync.
    pub written: usize,
    /// Fronts (address and port) that a Service names and another one has.
    pub contested: usize,
}

/// Service ports that drop traffic on this node, though they have endpoints elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutLocalEndpoints {
    /// Ports with internalTrafficPolicy Local.
    pub internal: usize,
    /// Ports with externalTrafficPolicy Local.
    pub external: usize,
}

impl WithoutLocalEndpoints {
    /// The ports of one Service.
    pub fn of(service: &Service) -> Self {
        let mut count = Self::default();
        for port in service.ports.iter().filter(|port| port.has_endpoints) {
            count.internal += usize::from(!port.has_internal_endpoints());
            count.external += usize::from(!port.has_external_endpoints());
        }
        count
    }
}

impl AddAssign for WithoutLocalEndpoints {
    fn add_assign(&mut self, other: Self) {
        self.internal += other.internal;
        self.external += other.external;
    }
}

impl SubAssign for WithoutLocalEndpoints {
    fn sub_assign(&mut self, other: Self) {
        self.internal -= other.internal;
        self.external -= other.external;
    }
}

/// The outcome of a successful audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditReport {
    /// A cheap check showed that nothing changed.
    Unchanged,
    /// Comparing the rules was deferred: the budget was spent, or what was written is not known.
    Postponed,
    /// All rules were read.
    Read {
        /// Differences found and repaired.
        repaired: Vec<Repair>,
        /// CPU time of the child processes that it started.
        children: Duration,
    },
}

/// A deviation from what was written, which an audit found and repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The table.
    pub table: &'static str,
    /// The part of the table.
    pub part: RepairedPart,
    /// The way in which it deviated.
    pub deviation: Deviation,
}

/// The part of a table that deviated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairedPart {
    /// The table as a whole.
    Table,
    /// A chain with its rules.
    Chain(Box<str>),
    /// A map of verdicts.
    VerdictMap(&'static str),
    /// This number of elements of other maps and sets.
    Elements(usize),
}

/// The way in which a part of a table deviates from what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deviation {
    /// It is missing or its content differs.
    Differs,
    /// It should not exist.
    LeftOver,
    /// The built-in chain has no jump to one of our chains.
    LacksJump,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            table,
            part,
            deviation,
        } = self;
        match part {
            RepairedPart::Table => write!(f, "{table} {deviation}"),
            RepairedPart::Chain(chain) => write!(f, "{table} {chain} {deviation}"),
            RepairedPart::VerdictMap(map) => write!(f, "{table} {map} {deviation}"),
            RepairedPart::Elements(count) => write!(f, "{table} elements: {count}"),
        }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Differs => "differs",
            Self::LeftOver => "is left over",
            Self::LacksJump => "lacks a jump",
        })
    }
}

/// An error of a kernel or of the program that writes to it. Shared, because the error of a sync is
/// kept by several reports.
pub type SyncCause = Arc<dyn Error + Send + Sync>;

/// A failed sync or audit, classified by what the caller can do about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SyncError {
    /// The kernel's rules cannot be read.
    #[error("cannot read the kernel's rules")]
    Unreadable(#[source] SyncCause),
    /// The kernel's rules have not been read yet, so that differences from them are not known.
    #[error("the kernel's rules have not been read yet")]
    Unread,
    /// The kernel's rules are not those that were last written.
    #[error("the kernel's rules differ from what was last written")]
    Diverged(#[source] SyncCause),
    /// An input was checked and refused: the same input will be refused again.
    #[error(transparent)]
    Refused(Box<KernelRefusal>),
    /// An input was not checked: the program is missing, its lock is held, or memory, descriptors
    /// or time ran out. The same input may be accepted later.
    #[error("cannot write rules")]
    Unavailable {
        /// The error of the program or kernel.
        #[source]
        cause: SyncCause,
        /// The input, cut off after 256 KiB.
        input: Arc<str>,
    },
    /// A partial sync failed, and so did the full one that followed it.
    #[error("a full sync failed after a partial one")]
    Both {
        /// Error of the full sync.
        #[source]
        full: Box<SyncError>,
        /// Error of the partial sync.
        partial: Box<SyncError>,
    },
}

/// An input that the kernel, or the program that writes to it, refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rules were refused")]
pub struct KernelRefusal {
    /// The error of the program or kernel.
    #[source]
    pub cause: SyncCause,
    /// The line at fault, counted from 1, if the backend has lines and one was named.
    pub line: Option<usize>,
    /// The Services that the refused rules belong to.
    pub owner: RuleOwner,
    /// The input, cut off after 256 KiB.
    pub input: Arc<str>,
}

/// The Services that refused rules belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOwner {
    /// One Service.
    Service(ObjectKey),
    /// Several Services: rules of each of them were refused.
    Services(BTreeSet<ObjectKey>),
    /// At least one of these Services; the message does not say which.
    OneOf(BTreeSet<ObjectKey>),
    /// No Service: static rules, or rules that were to be deleted.
    NoService,
}

/// Bytes of a refused input that are kept for the report.
const INPUT_LIMIT: usize = 256 << 10;

impl KernelRefusal {
    /// The error of the program or kernel with its own causes, as text.
    pub fn message(&self) -> String {
        error_text(&*self.cause)
    }
}

impl SyncError {
    /// Rules that cannot be read.
    pub fn unreadable(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unreadable(cause.into().into())
    }

    /// An input that was checked and refused.
    pub fn refused(
        cause: impl Into<Box<dyn Error + Send + Sync>>,
        line: Option<usize>,
        owner: RuleOwner,
        input: &str,
    ) -> Self {
        Self::Refused(Box::new(KernelRefusal {
            cause: cause.into().into(),
            line,
            owner,
            input: beginning(input),
        }))
    }

    /// An input that was not checked.
    pub fn unavailable(cause: impl Into<Box<dyn Error + Send + Sync>>, input: &str) -> Self {
        Self::Unavailable {
            cause: cause.into().into(),
            input: beginning(input),
        }
    }

    /// The result of the full sync that follows this failure of a partial one.
    pub fn resolved_by(self, full: Result<SyncReport, Self>) -> Result<SyncReport, Self> {
        match full {
            Ok(report) => Ok(SyncReport {
                partial_failure: Some(self),
                ..report
            }),
            Err(full) => Err(Self::Both {
                full: Box::new(full),
                partial: Box::new(self),
            }),
        }
    }

    /// The input of the failed write; `None` if it failed before there was one.
    pub fn input(&self) -> Option<&Arc<str>> {
        match self {
            Self::Unreadable(_) | Self::Unread | Self::Diverged(_) => None,
            Self::Refused(refusal) => Some(&refusal.input),
            Self::Unavailable { input, .. } => Some(input),
            Self::Both { full, .. } => full.input(),
        }
    }

    /// The failure of the partial sync that preceded the full one.
    pub fn partial(&self) -> Option<&Self> {
        match self {
            Self::Both { partial, .. } => Some(partial),
            _ => None,
        }
    }

    /// The last refusal, if a refusal is the cause.
    pub fn refusal(&self) -> Option<&KernelRefusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Both { full, .. } => full.refusal(),
            Self::Unreadable(_) | Self::Unread | Self::Diverged(_) | Self::Unavailable { .. } => {
                None
            }
        }
    }
}

fn beginning(input: &str) -> Arc<str> {
    input[..input.floor_char_boundary(INPUT_LIMIT)].into()
}
