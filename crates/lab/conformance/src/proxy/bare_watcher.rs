//! A client that only watches EndpointSlices: the part of a latency that no proxy can avoid.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use futures::TryStreamExt as _;
use kube::{
    Api,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
};
use parking_lot::Mutex;

use crate::proxy::cluster;

/// An event that is this late is lost, for example because the watch was opened again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs on a thread of its own until the program ends.
pub(crate) struct BareWatcher {
    /// Arrival of the last event of each slice.
    arrivals: Arc<Mutex<HashMap<String, Instant>>>,
}

impl BareWatcher {
    pub(crate) fn start(kubeconfig: &Path) -> anyhow::Result<Self> {
        let arrivals = Arc::new(Mutex::new(HashMap::new()));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (kubeconfig, of_thread) = (PathBuf::from(kubeconfig), arrivals.clone());
        thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    // Without it the figures that subtract it are left out, and nothing else.
                    if let Err(error) = watch(&kubeconfig, &of_thread).await {
                        eprintln!("[proxy] cannot watch EndpointSlices: {error:#}");
                        tokio::time::sleep(PATIENCE).await;
                    }
                }
            });
        });
        Ok(Self { arrivals })
    }

    /// Time from a write to the arrival of its event. None if it was not seen.
    pub(crate) fn latency(&self, slice: &str, sent: Instant) -> Option<Duration> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let arrived = self.arrivals.lock().get(slice).copied();
            if let Some(arrived) = arrived.filter(|arrived| *arrived >= sent) {
                return Some(arrived - sent);
            }
            if Instant::now() > deadline {
                return None;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Watches until the server ends the watch.
async fn watch(
    kubeconfig: &Path,
    arrivals: &Mutex<HashMap<String, Instant>>,
) -> anyhow::Result<()> {
    let client = cluster::client(kubeconfig).await?;
    let slices: Api<DynamicObject> = cluster::slices(&client);
    let list = slices
        .list_metadata(&ListParams::default().limit(1))
        .await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let parameters = WatchParams::default();
    let mut events = Box::pin(slices.watch(&parameters, &version).await?);
    while let Some(event) = events.try_next().await? {
        if let WatchEvent::Added(slice) | WatchEvent::Modified(slice) = event {
            let name = slice.metadata.name.unwrap_or_default();
            arrivals.lock().insert(name, Instant::now());
        }
    }
    Ok(())
}
