//! The contract between the proxy and what programs its Services into a kernel.
//!
//! A backend that is refused says whose rules were refused; [`Quarantine`](crate::Quarantine) then
//! leaves that Service out and has the rest written.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{AddAssign, SubAssign},
    sync::Arc,
    time::Duration,
};

use weft_model::ObjectKey;

use crate::{Service, Settings};

/// All Services of one family that should be served.
pub type Desired = BTreeMap<ObjectKey, Arc<Service>>;

/// How much of the kernel's state a sync looks at.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// All of it: read what is there, write what differs.
    Full,
    /// Only what these Services need; everything else is as it was last written.
    Changed(&'a BTreeSet<ObjectKey>),
}

/// Programs Services into a kernel, for one family.
pub trait Backend: Send {
    /// Makes the kernel agree with `desired`.
    ///
    /// A partial sync that fails is followed by a full one at once, so an error means that the
    /// full one failed too. The exception is a refusal that has an [`Owner`]: then the next partial
    /// sync, which must name again what this one named, goes on from where this one stopped. One
    /// refused Service never costs a look at all others.
    fn sync(
        &mut self,
        desired: &Desired,
        settings: &Settings,
        scope: Scope<'_>,
    ) -> Result<SyncReport, SyncError>;

    /// Compares the kernel with what was last written, and repairs what differs.
    ///
    /// Where a cheap look shows that nothing changed, that is all. Reading the whole state costs
    /// more, and is done only if `may_read`.
    fn audit(&mut self, may_read: bool) -> Result<AuditReport, SyncError>;
}

/// What a successful sync did.
#[derive(Clone, Debug, Default)]
pub struct SyncReport {
    /// Whether the whole state was looked at.
    pub full: bool,
    /// Why the partial sync before the full one failed, if one did.
    pub partial_failure: Option<SyncError>,
    /// What was refused on the way to this success; the Services at fault are quarantined.
    pub refusals: Vec<SyncError>,
    /// Bytes given to the kernel.
    pub bytes: usize,
    /// Processor time of the programs that were started for it.
    pub children: Duration,
    /// Chains of all tables.
    pub chains: ChainCount,
    /// For each table, rules that should be there and rules written now.
    pub rules: Vec<(&'static str, RuleCount)>,
    /// Service ports whose policy allows only endpoints of this node, of which there are none.
    pub without_local_endpoints: WithoutLocalEndpoints,
}

impl SyncReport {
    /// Adds a sync that followed this one: what was written adds up, what is there is the later's.
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
    }
}

/// Chains that a sync touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainCount {
    /// Created, replaced or edited.
    pub written: usize,
    /// Removed.
    pub removed: usize,
}

/// Rules of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Rules that should be there.
    pub total: usize,
    /// Rules written in this sync.
    pub written: usize,
}

/// Service ports that drop traffic on this node, though they have endpoints elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutLocalEndpoints {
    /// By internalTrafficPolicy.
    pub internal: usize,
    /// By externalTrafficPolicy.
    pub external: usize,
}

impl WithoutLocalEndpoints {
    /// Those of one Service.
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

/// What an audit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditReport {
    /// A cheap look was enough to know that nothing changed.
    Unchanged,
    /// Somebody else wrote something; what, is for an audit that may read.
    Postponed,
    /// The whole state was read.
    Read {
        /// What differed and was repaired: table, chain, and what was the matter.
        repaired: Vec<String>,
        /// Processor time of the programs that were started for it.
        children: Duration,
    },
}

/// A sync or audit that failed, by what can be done about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SyncError {
    /// The kernel's rules cannot be read, or are not known.
    #[error("{0}")]
    Unreadable(String),
    /// An input was judged and refused: the same input will be refused again.
    #[error("{}", .0.message)]
    Refused(Box<Refusal>),
    /// An input was never judged: the program is missing, its lock is held, or memory, descriptors
    /// or time ran out. The same input may be accepted later.
    #[error("{message}")]
    Unavailable {
        /// What went wrong.
        message: String,
        /// What was to be written; the beginning, if it is very long.
        input: Arc<str>,
    },
    /// A partial sync failed, and the full one that followed it did too.
    #[error("{full}")]
    Both {
        /// Why the full one failed.
        full: Box<SyncError>,
        /// Why the partial one failed.
        partial: Box<SyncError>,
    },
}

/// An input that the kernel or its program refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// What was said about it.
    pub message: String,
    /// The line at fault, counted from 1, where the backend has lines and one was named.
    pub line: Option<usize>,
    /// Whose rules were refused.
    pub owner: Owner,
    /// What was to be written; the beginning, if it is very long.
    pub input: Arc<str>,
}

/// Whose rules a refused input holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This Service's.
    Service(ObjectKey),
    /// Rules of each of these Services were refused.
    Services(BTreeSet<ObjectKey>),
    /// At least one of these Services is at fault; which, was not said.
    OneOf(BTreeSet<ObjectKey>),
    /// No Service's: rules that are always there, or rules that were to be deleted.
    NoService,
}

/// Of a refused input, the beginning of this many bytes is kept.
const INPUT_LIMIT: usize = 256 << 10;

impl SyncError {
    /// An input was refused.
    pub fn refused(message: String, line: Option<usize>, owner: Owner, input: &str) -> Self {
        Self::Refused(Box::new(Refusal {
            message,
            line,
            owner,
            input: beginning(input),
        }))
    }

    /// An input was never judged.
    pub fn unavailable(message: String, input: &str) -> Self {
        Self::Unavailable {
            message,
            input: beginning(input),
        }
    }

    /// A full sync failed with this, after a partial one had failed.
    #[must_use]
    pub fn after(self, partial: Self) -> Self {
        Self::Both {
            full: Box::new(self),
            partial: Box::new(partial),
        }
    }

    /// What was to be written, unless it failed before there was anything to write.
    pub fn input(&self) -> Option<&Arc<str>> {
        match self {
            Self::Unreadable(_) => None,
            Self::Refused(refusal) => Some(&refusal.input),
            Self::Unavailable { input, .. } => Some(input),
            Self::Both { full, .. } => full.input(),
        }
    }

    /// The failure of the partial sync that came before, if one did.
    pub fn partial(&self) -> Option<&Self> {
        match self {
            Self::Both { partial, .. } => Some(partial),
            _ => None,
        }
    }

    /// What was refused last, if it failed for that.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Both { full, .. } => full.refusal(),
            Self::Unreadable(_) | Self::Unavailable { .. } => None,
        }
    }
}

fn beginning(input: &str) -> Arc<str> {
    input[..input.floor_char_boundary(INPUT_LIMIT)].into()
}
