//! The interface of route providers.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use weft_model::{IpFamily, SharedStr};
use weft_routes::{Answer, InstanceAddresses, NextHopKind, Policy, ProviderError, Route, Step};

/// A route table outside of this process.
///
/// Up to [`Capabilities::parallel`] calls may run at the same time. A provider retries nothing: the
/// caller knows deadlines, limits and what has changed meanwhile. A caller that drops a future has
/// to read the table before it assumes anything about the outcome.
pub trait Provider: Send + Sync + 'static {
    /// The name, as in `--cloud-provider`.
    fn name(&self) -> &'static str;

    /// Abilities and limits, read once.
    fn capabilities(&self) -> Capabilities;

    /// The instance ID in the provider's routes for the machine that `spec.providerID` names;
    /// `None` if it is not a machine of this provider.
    fn instance(&self, provider_id: &str) -> Option<SharedStr> {
        Some(SharedStr::new(provider_id))
    }

    /// Sets up what the routes need besides themselves. Called once before the first change, and
    /// not in observe mode.
    fn prepare(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(async { Ok(()) })
    }

    /// Every route in the table, foreign ones included. Targets may be
    /// [`weft_routes::RouteTarget::Unknown`]: nodes are found by next hop.
    fn list(&self) -> BoxFuture<'_, Answer<Vec<Route>>>;

    /// Carries out one step. A replacement that failed half-way ends as
    /// [`ProviderError::Uncertain`].
    fn apply<'a>(&'a self, step: &'a Step) -> BoxFuture<'a, Answer<()>>;

    /// The addresses of these instances according to the provider, where it has
    /// [`Capabilities::knows_instances`]; instances it does not know are absent.
    fn instance_addresses<'a>(
        &'a self,
        _instances: &'a [SharedStr],
    ) -> BoxFuture<'a, Answer<InstanceAddresses>> {
        Box::pin(async { Answer::ok(InstanceAddresses::new()) })
    }

    /// Waits until the table was changed from outside; for ever where the provider sends no
    /// notifications.
    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// Abilities and limits of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Address families that it routes.
    pub families: Vec<IpFamily>,
    /// Kind of next hop in its routes.
    pub next_hop: NextHopKind,
    /// Number of changes that may run at the same time.
    pub parallel: usize,
    /// Longest time by which its list lags behind its changes.
    pub settle: Duration,
    /// Capacity of the table in routes, if known.
    pub quota: Option<usize>,
    /// True if it reports the addresses of instances.
    pub knows_instances: bool,
    /// True if reading the table costs nothing, so that it may be read every minute.
    pub free_lists: bool,
    /// Node labels on which routes depend: a change of one triggers a pass, as a change of address
    /// does.
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
    /// Copies the abilities and limits into the planning rules.
    pub fn fill(&self, policy: &mut Policy) {
        policy.families.clone_from(&self.families);
        policy.next_hop = self.next_hop;
        policy.quota = self.quota;
        policy.watch_provider_id = self.knows_instances;
    }
}

/// A provider shared by several tasks.
pub type SharedProvider = Arc<dyn Provider>;
