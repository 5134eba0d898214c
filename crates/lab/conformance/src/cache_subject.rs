//! Weft's side of the runtime comparison: a cache controlled by requests on standard input.
//!
//! It runs as a process of its own, like its peer `xtask/src/peers/cache.go`, which documents the
//! requests.

use std::{
    io::{self, BufRead as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{Config, config::KubeConfigOptions};
use tokio::{sync::mpsc, time};
use weft_runtime::{
    Action, Change, Cluster, Controller, Informer, Kinded, Object, ObjectKey, Subscription,
    WatchSpec, WithoutManagedFields, connect, reconcile_with,
};

use crate::runtime::protocol::{Answer, Request};

mod slim;

use slim::SlimPod;

/// Arguments of `cache-subject`.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Arguments {
    /// Keep whole Pods, without managedFields, instead of the few fields that a node agent reads.
    #[arg(long)]
    full: bool,
}

const LIMIT: Duration = Duration::from_mins(10);

/// Answers requests until `quit` or the end of standard input.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        if arguments.full {
            serve::<WithoutManagedFields<Pod>>().await
        } else {
            serve::<SlimPod>().await
        }
    })
}

async fn serve<K: Kinded>() -> anyhow::Result<()> {
    let config = Config::from_kubeconfig(&KubeConfigOptions::default()).await?;
    let cluster = Cluster::new("conformance", connect(&config, None)?);
    let mut subject = Subject::<K>::new(cluster);
    let mut requests = request_lines();
    while let Some(line) = requests.recv().await {
        let request: Request = line?.parse()?;
        if request == Request::Quit {
            break;
        }
        let answer = time::timeout(LIMIT, subject.handle(request))
            .await
            .with_context(|| format!("{request} did not end after {LIMIT:?}"))??;
        writeln!(io::stdout(), "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

/// Lines of standard input, read by a thread of its own because reading blocks.
fn request_lines() -> mpsc::Receiver<io::Result<String>> {
    let (sender, receiver) = mpsc::channel(1);
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A cache, and the updates that its consumers received.
struct Subject<K: Object> {
    cluster: Cluster,
    seen: Arc<Seen>,
    pods: Option<Informer<K>>,
    /// Kept, so that controllers start and stop on a shared informer.
    secrets: Option<Informer<Secret>>,
}

/// Updates that a consumer received.
#[derive(Default)]
struct Seen {
    updates: AtomicU64,
    /// Unix time of the last update in nanoseconds.
    last: AtomicU64,
}

impl<K: Kinded> Subject<K> {
    fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            seen: Arc::default(),
            pods: None,
            secrets: None,
        }
    }

    async fn handle(&mut self, request: Request) -> anyhow::Result<Answer> {
        let began = Instant::now();
        let took = || Answer::Seconds(began.elapsed().as_secs_f64());
        Ok(match request {
            Request::Cache => {
                let informer = self.informer();
                let seen = self.seen.clone();
                deliver(informer.subscribe(), move || seen.note()).await?;
                self.pods = Some(informer);
                took()
            }
            Request::Consumers(count) => {
                for _ in 0..count {
                    deliver(self.informer().subscribe(), || {}).await?;
                }
                took()
            }
            Request::Count => {
                let pods = self
                    .pods
                    .as_ref()
                    .context("cannot count Pods: the cache was not started")?;
                Answer::Count(pods.lister().len()?)
            }
            Request::Events(wanted) => self.events(wanted).await,
            Request::Cycle(count) => {
                for _ in 0..count {
                    self.cycle().await?;
                }
                took()
            }
            Request::Controllers(count) => {
                self.controllers(count).await?;
                took()
            }
            Request::Heap => Answer::Bytes(weft_heap::live()),
            Request::Tasks => {
                let metrics = tokio::runtime::Handle::current().metrics();
                Answer::Tasks(metrics.num_alive_tasks())
            }
            Request::Quit => bail!("quit has no answer"),
        })
    }

    fn informer(&self) -> Informer<K> {
        self.cluster.cache().informer(&WatchSpec::all())
    }

    async fn events(&self, wanted: u64) -> Answer {
        while self.seen.updates.load(SeqCst) < wanted {
            time::sleep(Duration::from_millis(5)).await;
        }
        let last = Duration::from_nanos(self.seen.last.load(SeqCst));
        Answer::Seen {
            updates: self.seen.updates.load(SeqCst),
            last: last.as_secs_f64(),
        }
    }

    async fn cycle(&self) -> anyhow::Result<()> {
        let cache = self.cluster.cache();
        let informer = cache.informer::<ConfigMap>(&WatchSpec::all());
        let key = informer.key().clone();
        let consumer = deliver(informer.subscribe(), || {}).await?;
        consumer.abort();
        drop(informer);
        cache.closed(&key).await;
        Ok(())
    }

    /// Starts and stops one controller, which reconciles every Secret each time.
    async fn controllers(&mut self, count: u32) -> anyhow::Result<()> {
        let cache = self.cluster.cache();
        let secrets = self
            .secrets
            .get_or_insert_with(|| cache.informer(&WatchSpec::all()));
        secrets.synced().await?;
        let expected = u32::try_from(secrets.lister().len()?)?;
        ensure!(
            expected > 0,
            "cannot run controllers: the cluster has no Secrets"
        );
        let done = Arc::new(AtomicU32::new(0));
        let all = Arc::new(tokio::sync::Notify::new());
        let (counted, notified) = (done.clone(), all.clone());
        let reconcile = reconcile_with(move |_| {
            if counted.fetch_add(1, SeqCst) + 1 == expected {
                notified.notify_one();
            }
            async { Ok(Action::await_change()) }
        });
        let controller: Controller<ObjectKey> = Controller::builder("cycled", &self.cluster)
            .reconciles::<Secret>(WatchSpec::all())
            .build(reconcile);
        for _ in 0..count {
            done.store(0, SeqCst);
            controller.start();
            all.notified().await;
            controller.stop().await;
        }
        Ok(())
    }
}

impl Seen {
    fn note(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        self.last
            .store(u64::try_from(now).unwrap_or(u64::MAX), SeqCst);
        self.updates.fetch_add(1, SeqCst);
    }
}

/// Starts a consumer of a subscription and waits until it has received the initial state.
async fn deliver<K: Object>(
    mut subscription: Subscription<K>,
    on_update: impl Fn() + Send + 'static,
) -> anyhow::Result<tokio::task::AbortHandle> {
    let mut synced = subscription.synced();
    let task = tokio::spawn(async move {
        while let Some(change) = subscription.next().await {
            match change {
                Change::Updated { .. } => on_update(),
                Change::Closed(reason) => {
                    eprintln!("[cache-subject] subscription closed: {reason:?}");
                    return;
                }
                _ => {}
            }
        }
    });
    synced.wait_for(|synced| *synced).await?;
    Ok(task.abort_handle())
}
