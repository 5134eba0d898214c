//! The caches and controllers that are compared.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ObjectList, WatchEvent},
    runtime::{
        controller,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use weft_runtime::{
    Action, Cache, Cluster, Controller, ControllerState, Informer, InformerState, ListMode,
    ObjectKey, WatchSpec, reconcile_with,
};

use crate::{
    pods::{SlimPod, pod_name},
    server::Server,
};

/// A cache of Pods.
pub(crate) trait Subject: Sized {
    /// Lists until synced.
    async fn fill(server: &Server) -> Self;
    fn len(&self) -> usize;
    /// Lists, then watches until the last prepared event is in the store.
    async fn follow(server: &Server);
}

/// The last event changes Pod 0, which no other event does.
const LAST: usize = 0;
const LISTED: &str = "1000";

async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(crate) struct Ours {
    informer: Informer<SlimPod>,
    _cache: Cache,
}

impl Ours {
    pub(crate) fn is_synced(&self) -> bool {
        matches!(*self.informer.state().borrow(), InformerState::Synced)
    }
}

impl Subject for Ours {
    async fn fill(server: &Server) -> Self {
        let cache = Cache::new(server.client());
        let informer = cache.informer::<SlimPod>(&WatchSpec::all().list(ListMode::Paged(500)));
        informer.synced().await.unwrap();
        Self {
            informer,
            _cache: cache,
        }
    }

    fn len(&self) -> usize {
        self.informer.lister().len().unwrap()
    }

    async fn follow(server: &Server) {
        let subject = Self::fill(server).await;
        let lister = subject.informer.lister();
        let key = ObjectKey::namespaced("team-0", &pod_name(LAST));
        until(|| {
            let pod = lister.get(&key).unwrap();
            pod.is_some_and(|pod| &*pod.metadata.resource_version != LISTED)
        })
        .await;
    }
}

pub(crate) struct Kube {
    store: Store<Pod>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Kube {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Subject for Kube {
    async fn fill(server: &Server) -> Self {
        let api: Api<Pod> = Api::all(server.client());
        let (store, writer) = reflector::store();
        let stream = reflector::reflector(writer, watcher(api, watcher::Config::default()));
        let task = tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while stream.next().await.is_some() {}
        });
        store.wait_until_ready().await.unwrap();
        Self { store, task }
    }

    fn len(&self) -> usize {
        self.store.len()
    }

    async fn follow(server: &Server) {
        let subject = Self::fill(server).await;
        let key = ObjectRef::new(&pod_name(LAST)).within("team-0");
        until(|| {
            let pod = subject.store.get(&key);
            pod.is_some_and(|pod| pod.metadata.resource_version.as_deref() != Some(LISTED))
        })
        .await;
    }
}

/// kube's client and store with the slim type. kube's `watcher` insists on full metadata, so its
/// parts are put together here as `watcher` does: typed lists by page, typed events, the writer.
pub(crate) struct KubeSlim {
    store: Store<SlimPod>,
    writer: reflector::store::Writer<SlimPod>,
}

impl Subject for KubeSlim {
    async fn fill(server: &Server) -> Self {
        let client = server.client();
        let (store, mut writer) = reflector::store::<SlimPod>();
        writer.apply_watcher_event(&watcher::Event::Init);
        let mut token: Option<String> = None;
        loop {
            let next = token
                .map(|token| format!("&continue={token}"))
                .unwrap_or_default();
            let request = Request::get(format!("/api/v1/pods?limit=500{next}")).body(Vec::new());
            let page: ObjectList<SlimPod> = client.request(request.unwrap()).await.unwrap();
            token = page.metadata.continue_.filter(|token| !token.is_empty());
            for pod in page.items {
                writer.apply_watcher_event(&watcher::Event::InitApply(pod));
            }
            if token.is_none() {
                break;
            }
        }
        writer.apply_watcher_event(&watcher::Event::InitDone);
        Self { store, writer }
    }

    fn len(&self) -> usize {
        self.store.len()
    }

    async fn follow(server: &Server) {
        let mut subject = Self::fill(server).await;
        let request = Request::get("/api/v1/pods?watch=true&resourceVersion=1000").body(Vec::new());
        let events = server
            .client()
            .request_events::<SlimPod>(request.unwrap())
            .await
            .unwrap();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.try_next().await.unwrap() {
            if let WatchEvent::Modified(pod) = event {
                let last = *pod.metadata.name == *pod_name(LAST);
                subject
                    .writer
                    .apply_watcher_event(&watcher::Event::Apply(pod));
                if last {
                    break;
                }
            }
        }
    }
}

/// Open watches of our controllers of one kind.
pub(crate) async fn our_controllers(server: &Server, count: usize) -> usize {
    let cluster = Cluster::new("bench", server.client());
    let controllers: Vec<Controller<ObjectKey>> = (0..count)
        .map(|index| {
            Controller::builder(&format!("c{index}"), &cluster)
                .reconciles::<SlimPod>(WatchSpec::all().list(ListMode::Paged(500)))
                .build(reconcile_with(|_| async { Ok(Action::await_change()) }))
        })
        .collect();
    for controller in &controllers {
        controller.start();
        let mut state = controller.state();
        state
            .wait_for(|state| *state == ControllerState::Running)
            .await
            .unwrap();
    }
    until(|| server.open_watches() > 0).await;
    let open = server.open_watches();
    for controller in &controllers {
        controller.stop().await;
    }
    until(|| server.open_watches() == 0).await;
    open
}

/// Open watches of kube's controllers of one kind.
pub(crate) async fn kube_controllers(server: &Server, count: usize) -> usize {
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let api: Api<Pod> = Api::all(server.client());
            let run = controller::Controller::new(api, watcher::Config::default()).run(
                |_, _: Arc<()>| async {
                    Ok::<_, std::io::Error>(controller::Action::await_change())
                },
                |_, _, _| controller::Action::await_change(),
                Arc::new(()),
            );
            tokio::spawn(run.for_each(|_| async {}))
        })
        .collect();
    until(|| server.open_watches() == count).await;
    let open = server.open_watches();
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    open
}

/// Live heap and tasks after `count` starts and stops, as multiples of those after ten.
pub(crate) async fn cycle_controller(server: &Server, count: usize) -> (f64, f64) {
    let cluster = Cluster::new("bench", server.client());
    let controller: Controller<ObjectKey> = Controller::builder("cycled", &cluster)
        .reconciles::<SlimPod>(WatchSpec::all().list(ListMode::Paged(500)))
        .concurrency(4)
        .build(reconcile_with(|_| async { Ok(Action::await_change()) }));
    let cycle = async |times: usize| {
        for _ in 0..times {
            controller.start();
            let mut state = controller.state();
            state
                .wait_for(|state| *state == ControllerState::Running)
                .await
                .unwrap();
            controller.stop().await;
        }
        until(|| cluster.cache().snapshot().is_empty() && server.open_watches() == 0).await;
        tokio::task::yield_now().await;
        let tasks = tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks();
        (weft_heap::live() as f64, tasks as f64)
    };
    let (heap_before, tasks_before) = cycle(10).await;
    let (heap_after, tasks_after) = cycle(count).await;
    (heap_after / heap_before, tasks_after / tasks_before)
}
