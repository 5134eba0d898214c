use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use weft_model::{IpFamily, SharedStr};
use weft_routes::{NextHopKind, Policy, ProviderError, RateLimit, Route, Step};

/// A table of routes that we do not hold ourselves.
///
/// Calls may run side by side as far as [`Capabilities::parallel`] allows. None is repeated inside
/// a provider: whoever calls knows about deadlines, limits and what has changed meanwhile. Whoever
/// drops a future gives up waiting and has to read the table before believing anything.
pub trait Provider: Send + Sync + 'static {
    /// Its name, as `--cloud-provider` has it.
    fn name(&self) -> &'static str;

    /// What it can do. Asked once.
    fn capabilities(&self) -> Capabilities;

    /// The identifier that the provider's routes use for the machine that `spec.providerID` names;
    /// `None` if that is no machine of this provider.
    fn instance(&self, provider_id: &str) -> Option<SharedStr> {
        Some(SharedStr::new(provider_id))
    }

    /// Makes what the routes need besides; called once by whoever is going to change them.
    fn prepare(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(async { Ok(()) })
    }

    /// Every route in the table, everybody's. Targets may be [`weft_routes::Target::Unknown`]:
    /// nodes are found by next hop.
    fn list(&self) -> BoxFuture<'_, Answer<Vec<Route>>>;

    /// Does one step. A replacement that failed half-way ends as [`ProviderError::Uncertain`].
    fn apply<'a>(&'a self, step: &'a Step) -> BoxFuture<'a, Answer<()>>;

    /// The addresses that these machines really have, for a provider with
    /// [`Capabilities::knows_instances`]; machines it does not know are absent.
    fn instance_addresses<'a>(
        &'a self,
        _instances: &'a [SharedStr],
    ) -> BoxFuture<'a, Answer<InstanceAddresses>> {
        Box::pin(async { Answer::ok(InstanceAddresses::new()) })
    }

    /// Waits until something outside changed the table; for ever where nobody tells.
    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// Machines and their addresses.
pub type InstanceAddresses = BTreeMap<SharedStr, Vec<IpAddr>>;

/// What came back from a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was asked for, or why not.
    pub result: Result<T, ProviderError>,
    /// What the response said about the calls that are left.
    pub rate: Option<RateLimit>,
}

impl<T> Answer<T> {
    /// Done, and nothing was said about limits.
    pub fn ok(value: T) -> Self {
        Self::from(Ok(value))
    }
}

impl<T> From<Result<T, ProviderError>> for Answer<T> {
    fn from(result: Result<T, ProviderError>) -> Self {
        Self { result, rate: None }
    }
}

/// What a provider can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The families that it routes.
    pub families: Vec<IpFamily>,
    /// What its routes lead to.
    pub next_hop: NextHopKind,
    /// How many mutations it takes at once.
    pub parallel: usize,
    /// How long its list may lag behind its mutations.
    pub settle: Duration,
    /// How many routes its table holds, if that is known.
    pub quota: Option<usize>,
    /// True if it can say which addresses a machine has.
    pub knows_instances: bool,
    /// True if reading the table costs nothing, so that it may be read every minute.
    pub free_lists: bool,
    /// Labels of a node on which its routes depend: a change of one triggers a pass, as a change of
    /// address does.
    pub trigger_labels: Vec<&'static str>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            families: IpFamily::ALL.to_vec(),
            next_hop: NextHopKind::Address,
            parallel: 1,
            settle: Duration::ZERO,
            quota: None,
            knows_instances: false,
            free_lists: false,
            trigger_labels: Vec::new(),
        }
    }
}

impl Capabilities {
    /// Says to the rules what the provider can do.
    pub fn fill(&self, policy: &mut Policy) {
        policy.families.clone_from(&self.families);
        policy.next_hop = self.next_hop;
        policy.quota = self.quota;
        policy.watch_provider_id = self.knows_instances;
    }
}

/// A provider that several tasks share.
pub type SharedProvider = Arc<dyn Provider>;
