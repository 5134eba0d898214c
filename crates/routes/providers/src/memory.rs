//! Provider `memory`: a simulated route table in this process.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use weft_model::SharedStr;
use weft_routes::{
    Moment, ProviderError, Route, Step,
    simulation::{Call, CallKind, Fault, Profile, Provider as Simulated},
};

use crate::{Answer, Calls, Capabilities, InstanceAddresses, Provider};

/// A route table in this process, with the delays, limits and faults of a simulated one: for tests
/// and benchmarks.
///
/// Clones share one table.
#[derive(Clone, Debug)]
pub struct MemoryProvider {
    table: Arc<Mutex<Simulated>>,
    profile: Profile,
    begun: Instant,
    calls: Calls,
    instances: Option<Arc<Mutex<InstanceAddresses>>>,
}

impl MemoryProvider {
    /// An empty table.
    pub fn new(profile: Profile, faults: Vec<Fault>) -> Self {
        Self {
            table: Arc::new(Mutex::new(Simulated::new(profile, faults))),
            profile,
            begun: Instant::now(),
            calls: Calls::default(),
            instances: None,
        }
    }

    /// Makes the provider report the addresses of these instances.
    #[must_use]
    pub fn with_instances(mut self, instances: InstanceAddresses) -> Self {
        self.instances = Some(Arc::new(Mutex::new(instances)));
        self
    }

    /// Changes the known instances.
    pub fn change_instances(&self, change: impl FnOnce(&mut InstanceAddresses)) {
        if let Some(instances) = &self.instances {
            change(&mut instances.lock());
        }
    }

    /// Counts calls in `calls`.
    #[must_use]
    pub fn counting(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }

    /// Metrics of the calls.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Reads the simulated provider, or changes it without the controller's knowledge.
    pub fn with_table<T>(&self, look: impl FnOnce(&mut Simulated) -> T) -> T {
        look(&mut self.table.lock())
    }

    /// Every route in the table.
    pub fn routes(&self) -> Vec<Route> {
        self.with_table(|table| table.table().values().cloned().collect())
    }

    fn now(&self) -> Moment {
        Moment::after_start(self.begun.elapsed())
    }

    async fn call(&self, call: Call) -> Answer<Option<Vec<Route>>> {
        let begun = self.with_table(|table| table.begin(&call, self.now()));
        let ending = async {
            tokio::time::sleep_until(self.begun + begun.answer_at.since_start()).await;
            self.with_table(|table| table.end(&call, &begun))
        };
        let result = self.calls.count(operation(call.kind()), ending).await;
        let rate = self.with_table(|table| table.rate());
        Answer { result, rate }
    }
}

fn operation(kind: CallKind) -> &'static str {
    match kind {
        CallKind::List => "list",
        CallKind::Create => "create",
        CallKind::Replace => "replace",
        CallKind::Delete => "delete",
    }
}

impl Provider for MemoryProvider {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            parallel: self.profile.parallel,
            quota: self.profile.quota,
            knows_instances: self.instances.is_some(),
            ..Capabilities::default()
        }
    }

    fn list(&self) -> BoxFuture<'_, Answer<Vec<Route>>> {
        Box::pin(async {
            let answer = self.call(Call::List).await;
            let missing = || ProviderError::Garbage("a list without routes".into());
            Answer {
                result: answer.result.and_then(|list| list.ok_or_else(missing)),
                rate: answer.rate,
            }
        })
    }

    fn apply<'a>(&'a self, step: &'a Step) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async {
            let answer = self.call(Call::Mutate(Box::new(step.clone()))).await;
            Answer {
                result: answer.result.map(drop),
                rate: answer.rate,
            }
        })
    }

    fn instance_addresses<'a>(
        &'a self,
        ids: &'a [SharedStr],
    ) -> BoxFuture<'a, Answer<InstanceAddresses>> {
        Box::pin(async {
            tokio::time::sleep(self.profile.list).await;
            let mut found = InstanceAddresses::new();
            self.change_instances(|known| {
                let known = ids.iter().filter_map(|id| known.get_key_value(id));
                found.extend(known.map(|(id, addresses)| (id.clone(), addresses.clone())));
            });
            let answer = async { Ok(found) };
            self.calls.count("instances", answer).await.into()
        })
    }
}
