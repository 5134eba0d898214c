//! Several clusters in one process.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use weft_runtime::{
    Action, AlreadyJoined, Change, Cluster, Clusters, Controller, ControllerState, ObjectKey,
    PendingReason, StopReason, reconcile_with,
};

use crate::harness::{Harness, Note, configmaps, drain_initial, eventually, next, reaches};

fn controller(
    cluster: &Cluster,
    harness: &Harness,
    count: &Arc<AtomicUsize>,
) -> Controller<ObjectKey> {
    let count = count.clone();
    Controller::builder(&format!("notes-{}", cluster.name()), cluster)
        .reconciles::<Note>(harness.spec())
        .build(reconcile_with(move |_| {
            count.fetch_add(1, SeqCst);
            async { Ok(Action::await_change()) }
        }))
}

#[tokio::test]
async fn a_cluster_joins_and_leaves_with_its_informers_and_controllers() {
    let (east, west) = (Harness::embedded().await, Harness::embedded().await);
    east.create("a", "1").await;
    west.create("b", "1").await;
    let clusters = Clusters::default();
    let join = |name: &str, harness: &Harness| {
        let cluster = Cluster::new(name, harness.client.clone());
        clusters.join(cluster.clone()).map(|()| cluster)
    };
    let eastern = join("east", &east).unwrap();
    let western = join("west", &west).unwrap();
    assert!(matches!(join("east", &east), Err(AlreadyJoined(name)) if name == "east"));
    let (in_east, in_west) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let first = controller(&eastern, &east, &in_east);
    let second = controller(&western, &west, &in_west);
    first.start();
    second.start();
    eventually("both work", || {
        in_east.load(SeqCst) == 1 && in_west.load(SeqCst) == 1
    })
    .await;
    let mut subscription = eastern.cache().informer::<Note>(&east.spec()).subscribe();
    drain_initial(&mut subscription).await;
    assert_eq!(east.server().stats().open_watches(&configmaps()), 1);

    assert!(clusters.leave("east").await);
    assert!(!clusters.leave("east").await);
    assert!(matches!(
        next(&mut subscription).await,
        Change::Closed(StopReason::ClusterLeft)
    ));
    reaches(&mut first.state(), |state| {
        *state == ControllerState::Waiting(PendingReason::ClusterLeft)
    })
    .await;
    eventually("no connection is left", || {
        east.server().stats().open_watches(&configmaps()) == 0
    })
    .await;
    assert_eq!(
        *second.state().borrow(),
        ControllerState::Running,
        "the other cluster goes on"
    );
    west.update("b", "2").await;
    eventually("the other cluster works", || in_west.load(SeqCst) == 2).await;

    let late = eastern.cache().informer::<Note>(&east.spec());
    assert!(
        late.lister().list().is_err(),
        "nothing starts on a cluster that left"
    );

    // The same cluster may join again.
    let again = join("east", &east).unwrap();
    let third = controller(&again, &east, &in_east);
    third.start();
    eventually("works again", || in_east.load(SeqCst) == 2).await;
}

#[tokio::test]
async fn leaving_waits_for_the_reconciles_of_the_cluster() {
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let alive = Arc::new(AtomicUsize::new(0));
    let count = alive.clone();
    let controller: Controller<ObjectKey> = Controller::builder("slow", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(reconcile_with(
            move |context: weft_runtime::Context<ObjectKey>| {
                let count = count.clone();
                async move {
                    count.fetch_add(1, SeqCst);
                    context.cancelled().cancelled().await;
                    tokio::task::yield_now().await;
                    count.fetch_sub(1, SeqCst);
                    Ok(Action::await_change())
                }
            },
        ));
    controller.start();
    eventually("at work", || alive.load(SeqCst) == 1).await;
    cluster.leave().await;
    assert_eq!(alive.load(SeqCst), 0);
    let manager = weft_runtime::Manager::builder("test", harness.cluster())
        .build()
        .unwrap();
    manager.add(&controller).unwrap();
    assert!(manager.leave("test").await);
    assert!(manager.controllers().is_empty(), "its name is free again");
}
