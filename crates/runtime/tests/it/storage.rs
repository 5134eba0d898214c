//! Storage behind the server: compaction, and the ways in which its state can be listed. Everything
//! here passes on the embedded server and on a real one.

use std::{collections::BTreeSet, path::Path};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use weft_runtime::{
    Cache, Change, InformerState, Kind, ListMode, MetadataOnly, Object as _, Subscription,
};

use crate::{
    harness::{Harness, Note, drain_initial, next, reaches},
    valve::Valve,
};

/// A kind that a server started by `cargo xtask kubernetes up` does not cache in memory, so that
/// compaction is visible.
fn ingresses() -> Kind {
    Kind::new("networking.k8s.io", "v1", "ingresses", "Ingress")
}

fn api(harness: &Harness) -> Api<DynamicObject> {
    let resource = ingresses().to_api_resource();
    Api::namespaced_with(harness.client.clone(), &harness.namespace, &resource)
}

async fn create(harness: &Harness, name: &str) {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let mut object = DynamicObject::new(name, &ingresses().to_api_resource());
    object.data = json!({"spec": {"defaultBackend": backend}});
    let api = api(harness);
    api.create(&PostParams::default(), &object).await.unwrap();
}

async fn change(harness: &Harness, name: &str) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"changed": name}}}));
    let parameters = PatchParams::default();
    api(harness).patch(name, &parameters, &patch).await.unwrap();
}

async fn delete(harness: &Harness, name: &str) {
    let parameters = DeleteParams::default();
    api(harness).delete(name, &parameters).await.unwrap();
}

/// Compacts the storage: only the present state is left.
async fn compact(harness: &Harness) {
    let Some(kubeconfig) = std::env::var_os("WEFT_TEST_KUBECONFIG") else {
        harness.server().faults().compact();
        return;
    };
    let newest = api(harness).list(&kube::api::ListParams::default()).await;
    let newest = newest.unwrap().metadata.resource_version.unwrap();
    let address_file = Path::new(&kubeconfig).with_file_name("etcd-address");
    let etcd = std::env::var("WEFT_TEST_ETCD")
        .or_else(|_| std::fs::read_to_string(address_file))
        .expect("WEFT_TEST_ETCD is set to the address of the etcd of WEFT_TEST_KUBECONFIG");
    let body = Bytes::from(json!({"revision": newest, "physical": true}).to_string());
    let request = Request::post(format!("{}/v3/kv/compaction", etcd.trim()))
        .body(Full::new(body))
        .unwrap();
    let client = legacy::Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let (parts, answer) = client.request(request).await.unwrap().into_parts();
    let answer: Value =
        serde_json::from_slice(&answer.collect().await.unwrap().to_bytes()).unwrap();
    // Another test may have compacted first.
    let done = answer["message"]
        .as_str()
        .is_some_and(|message| message.contains("has been compacted"));
    assert!(parts.status == StatusCode::OK || done, "{answer}");
}

/// The next `count` changes, each as a sign and a name.
async fn delivered(
    subscription: &mut Subscription<MetadataOnly>,
    count: usize,
) -> BTreeSet<String> {
    let mut delivered = BTreeSet::new();
    for _ in 0..count {
        delivered.insert(match next(subscription).await {
            Change::Added { new, .. } => format!("+{}", new.name()),
            Change::Updated { new, .. } => format!("~{}", new.name()),
            Change::Deleted {
                last,
                final_state_unknown: true,
            } => format!("-{}", last.name()),
            other => panic!("{other:?}: a watch that went on, not a list"),
        });
    }
    delivered
}

#[tokio::test]
async fn invariant_17_what_was_compacted_meanwhile_is_listed_again() {
    let harness = Harness::any().await;
    for list in [ListMode::Auto, ListMode::Paged(2)] {
        for name in ["kept", "changed", "removed"] {
            create(&harness, name).await;
        }
        let valve = Valve::open();
        let cache = Cache::new(valve.before(&harness.client));
        let spec = harness.spec().list(list);
        let informer = cache.informer_of::<MetadataOnly>(&ingresses(), &spec);
        let mut subscription = informer.subscribe();
        assert_eq!(drain_initial(&mut subscription).await.len(), 3, "{list:?}");

        valve.set_open(false);
        let mut state = informer.state();
        reaches(&mut state, |state| {
            matches!(state, InformerState::Retrying { .. })
        })
        .await;
        change(&harness, "changed").await;
        delete(&harness, "removed").await;
        create(&harness, "new").await;
        compact(&harness).await;
        valve.set_open(true);

        let expected = ["+new", "-removed", "~changed"].map(str::to_owned);
        let delivered = delivered(&mut subscription, expected.len()).await;
        assert_eq!(delivered, BTreeSet::from(expected), "{list:?}");
        change(&harness, "kept").await;
        let change = next(&mut subscription).await;
        assert!(
            matches!(&change, Change::Updated { new, .. } if new.name() == "kept"),
            "{list:?}: {change:?}"
        );
        for name in ["kept", "changed", "new"] {
            delete(&harness, name).await;
        }
    }
}

#[tokio::test]
async fn invariant_21_a_store_is_the_same_however_it_was_listed() {
    let harness = Harness::any().await;
    let names: Vec<String> = (0..7).map(|index| format!("n{index}")).collect();
    for name in &names {
        harness.create(name, "x").await;
    }
    for list in [ListMode::Auto, ListMode::Paged(2), ListMode::FromCache] {
        let cache = Cache::new(harness.client.clone());
        let informer = cache.informer::<Note>(&harness.spec().list(list));
        let mut subscription = informer.subscribe();
        // A list from the server's cache may be older than what was just written.
        let mut seen = BTreeSet::new();
        while seen.len() < names.len() {
            if let Change::Added { new, .. } = next(&mut subscription).await {
                assert!(
                    seen.insert(new.name().to_owned()),
                    "{list:?}: delivered twice"
                );
            }
        }
        assert!(seen.iter().eq(&names), "{list:?}: {seen:?}");
        informer.synced().await.unwrap();
        let updated = harness.update("n3", &format!("{list:?}")).await;
        let updated = updated.metadata.resource_version;
        loop {
            match next(&mut subscription).await {
                Change::Updated { new, .. } => {
                    assert_eq!(new.name(), "n3", "{list:?}");
                    if updated.as_deref() == Some(new.resource_version()) {
                        break;
                    }
                }
                Change::Synced => {}
                other => panic!("{list:?}: {other:?}"),
            }
        }
        assert_eq!(informer.lister().len(), Ok(names.len()), "{list:?}");
    }
}
