//! An unmodified controller of controller-runtime, with its informers and leader election.

use std::process::{Child, Command};

use serde_json::{Value, json};
use weft_apiserver::{ApiServer, Matcher, Verb};

use super::{peer, serve};
use crate::support::{self, Answer};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const SERVICES: &str = "/api/v1/namespaces/default/services";

struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Controller {
    /// Repeats a GET until the answer is as wanted, while the controller runs.
    async fn until(
        &mut self,
        server: &ApiServer,
        path: &str,
        wanted: impl Fn(&Answer) -> bool,
    ) -> Answer {
        for _ in 0..1200 {
            let answer = support::get(server, path).await;
            if wanted(&answer) {
                return answer;
            }
            assert!(self.0.try_wait().unwrap().is_none(), "the controller ended");
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        panic!("no answer of {path} was as wanted");
    }
}

fn definition() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_of_controller_runtime_works_unchanged() {
    let Some(binary) = peer("informers") else {
        return;
    };
    let (server, home) = serve().await;
    support::post(&server, DEFINITIONS, &definition()).await;
    let log = std::fs::File::create(home.path().join("log")).unwrap();
    let child = Command::new(binary)
        .env("KUBECONFIG", home.path().join("kubeconfig"))
        .stderr(log)
        .spawn();
    let mut controller = Controller(child.unwrap());
    let spec = json!({"ports": [{"port": 80}]});
    support::post(
        &server,
        SERVICES,
        &json!({"metadata": {"name": "web"}, "spec": spec}),
    )
    .await;

    let found = |answer: &Answer| answer.status.is_success();
    let map = format!("{}/web", support::MAPS);
    let noted = controller.until(&server, &map, found).await;
    let service = support::get(&server, &format!("{SERVICES}/web")).await;
    assert_eq!(noted.at("/data/address"), service.at("/spec/clusterIP"));
    assert_eq!(
        noted.at("/metadata/ownerReferences/0/uid"),
        service.at("/metadata/uid")
    );

    support::delete(&server, &map).await;
    let again =
        |answer: &Answer| found(answer) && answer.at("/metadata/uid") != noted.at("/metadata/uid");
    controller.until(&server, &map, again).await;

    let widget = json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"size": 1},
    });
    support::post(&server, WIDGETS, &widget).await;
    let path = format!("{WIDGETS}/w");
    let seen = |generation: i64| move |answer: &Answer| answer.at("/status/observed") == generation;
    controller.until(&server, &path, seen(1)).await;
    let change = json!({"spec": {"size": 2}});
    support::patch(&server, &path, "merge-patch+json", &change).await;
    controller.until(&server, &path, seen(2)).await;

    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let is_noted = |answer: &Answer| answer.text.contains("\"reason\":\"Noted\"");
    controller.until(&server, events, is_noted).await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/informers";
    let leader = support::get(&server, lease)
        .await
        .at("/spec/holderIdentity");
    assert!(leader.is_string(), "it leads: {leader}");

    let stats = server.stats();
    for resource in ["services", "configmaps", "secrets", "widgets"] {
        let streaming = Matcher::any()
            .verb(Verb::Watch)
            .resource(resource)
            .streaming_list(true);
        assert_eq!(
            stats.open_watches(&streaming),
            1,
            "one informer of {resource}"
        );
    }
    server
        .faults()
        .cut_watches(&Matcher::any(), weft_apiserver::Cut::MidFrame);
    let spec = json!({"ports": [{"port": 81}]});
    support::post(
        &server,
        SERVICES,
        &json!({"metadata": {"name": "late"}, "spec": spec}),
    )
    .await;
    controller
        .until(&server, &format!("{}/late", support::MAPS), found)
        .await;
}
