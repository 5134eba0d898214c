//! What makes the kernel agree with the model.

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
    /// full one failed too.
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

/// A sync that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct SyncError {
    /// What went wrong.
    pub message: String,
    /// What was given to the kernel, where it refused it; the beginning, if it was very long.
    pub input: Option<Arc<str>>,
    /// The failure of the partial sync that came before this full one, if one did.
    pub earlier: Option<Box<SyncError>>,
}

/// More of a refused input than this helps nobody.
const INPUT_LIMIT: usize = 256 << 10;

impl SyncError {
    /// A failure to read.
    pub fn reading(message: String) -> Self {
        Self {
            message,
            input: None,
            earlier: None,
        }
    }

    /// A failure to write this input.
    pub fn writing(message: String, input: &str) -> Self {
        let end = input.floor_char_boundary(INPUT_LIMIT);
        Self {
            input: Some(input[..end].into()),
            ..Self::reading(message)
        }
    }

    /// A full sync failed too, after a partial one had.
    #[must_use]
    pub fn after(self, earlier: Self) -> Self {
        Self {
            earlier: Some(Box::new(earlier)),
            ..self
        }
    }
}
