//! Unmodified watcher, controller and reflector of kube-rs.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    runtime::{
        Controller, WatchStreamExt as _,
        controller::Action,
        watcher::{self, Event},
    },
};
use serde_json::json;
use weft_apiserver::{ApiServer, Cut, Matcher};

use crate::support::{MAPS, config_map, delete, patch, post};

type Events =
    std::pin::Pin<Box<dyn Stream<Item = Result<Event<ConfigMap>, watcher::Error>> + Send>>;

fn watch(client: Client, streaming: bool) -> Events {
    let mut config = watcher::Config::default().labels("w=1");
    if streaming {
        config = config.streaming_lists();
    }
    let maps = Api::<ConfigMap>::default_namespaced(client);
    watcher::watcher(maps, config).default_backoff().boxed()
}

/// The next events as short texts, those of a relist between `[` and `]`; errors are skipped.
async fn received(events: &mut Events, count: usize) -> Vec<String> {
    let short = |event: Event<ConfigMap>| match event {
        Event::Init => "[".to_owned(),
        Event::InitApply(map) => map.name_any(),
        Event::InitDone => "]".to_owned(),
        Event::Apply(map) => format!("+{}", map.name_any()),
        Event::Delete(map) => format!("-{}", map.name_any()),
    };
    let known = events.filter_map(|event| std::future::ready(event.ok()));
    let told = known.take(count).map(short).collect();
    tokio::time::timeout(Duration::from_secs(60), told)
        .await
        .expect("too few events")
}

fn labelled(name: &str) -> serde_json::Value {
    let mut map = config_map(name);
    map["metadata"]["labels"] = json!({"w": "1"});
    map
}

#[tokio::test]
async fn its_watcher_follows_through_cuts_and_compactions() {
    for streaming in [false, true] {
        let server = ApiServer::builder().start().await.unwrap();
        let config = server.listening().unwrap().kube_config();
        for client in [server.client(), Client::try_from(config).unwrap()] {
            delete(&server, MAPS).await;
            post(&server, MAPS, &labelled("a")).await;
            let mut events = watch(client, streaming);
            assert_eq!(received(&mut events, 3).await, ["[", "a", "]"]);
            post(&server, MAPS, &labelled("b")).await;
            assert_eq!(received(&mut events, 1).await, ["+b"]);
            let path = format!("{MAPS}/a");
            let off = json!({"metadata": {"labels": {"w": null}}});
            patch(&server, &path, "merge-patch+json", &off).await;
            assert_eq!(
                received(&mut events, 1).await,
                ["-a"],
                "it left the selector"
            );

            server.faults().cut_watches(&Matcher::any(), Cut::Clean);
            post(&server, MAPS, &labelled("c")).await;
            assert_eq!(
                received(&mut events, 1).await,
                ["+c"],
                "resumed where it was"
            );
            server.faults().send_watch_error(
                &Matcher::any(),
                &weft_apiserver::InjectedWatchError::Expired,
            );
            delete(&server, &format!("{MAPS}/b")).await;
            server.faults().compact();
            assert_eq!(
                received(&mut events, 3).await,
                ["[", "c", "]"],
                "listed again"
            );
        }
    }
}

#[tokio::test]
async fn its_controller_reconciles_and_owns() {
    let server = ApiServer::builder().build();
    let client = server.client();
    let services = Api::<Service>::default_namespaced(client.clone());
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    // Each Service gets a ConfigMap by server-side apply.
    let reconcile = |service: Arc<Service>, client: Arc<Client>| async move {
        let maps = Api::<ConfigMap>::default_namespaced(Client::clone(&client));
        let address = service
            .spec
            .as_ref()
            .and_then(|spec| spec.cluster_ip.clone());
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": service.name_any(),
                "ownerReferences": [service.controller_owner_ref(&()).unwrap()],
            },
            "data": {"address": address},
        });
        let params = PatchParams::apply("test").force();
        maps.patch(&service.name_any(), &params, &Patch::Apply(&map))
            .await?;
        Ok::<_, kube::Error>(Action::await_change())
    };
    let controller = Controller::new(services.clone(), watcher::Config::default())
        .owns(maps.clone(), watcher::Config::default())
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_millis(10)),
            Arc::new(client),
        )
        .for_each(|_| std::future::ready(()));
    let running = tokio::spawn(controller);
    let made = async |name: &str, not: Option<String>| loop {
        if let Some(map) = maps.get_opt(name).await.unwrap()
            && map.uid() != not
        {
            return map;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let first = made("kubernetes", None).await;
    assert_eq!(first.data.as_ref().unwrap()["address"], "10.96.0.1");
    delete(&server, &format!("{MAPS}/kubernetes")).await;
    let second = made("kubernetes", first.uid()).await;
    assert_eq!(second.data, first.data, "made again when it went");
    delete(&server, "/api/v1/namespaces/default/services/kubernetes").await;
    while !maps
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running.abort();
}

#[tokio::test]
async fn its_reflector_holds_what_the_server_holds() {
    let server = ApiServer::builder().build();
    let (reader, writer) = kube::runtime::reflector::store();
    let maps = Api::<ConfigMap>::default_namespaced(server.client());
    let config = watcher::Config::default().streaming_lists();
    let stream = watcher::watcher(maps, config)
        .reflect(writer)
        .applied_objects();
    let running = tokio::spawn(async move { stream.try_for_each(|_| async { Ok(()) }).await });
    reader.wait_until_ready().await.unwrap();
    for number in 0..20 {
        post(&server, MAPS, &config_map(&format!("m{number}"))).await;
        if number % 3 == 0 {
            delete(&server, &format!("{MAPS}/m{number}")).await;
        }
    }
    while reader.state().len() != 13 || reader.state().iter().any(|map| map.name_any() == "m18") {
        tokio::task::yield_now().await;
    }
    running.abort();
}
