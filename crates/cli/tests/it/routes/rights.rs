//! The manifest gives what is needed.

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::Value;
use weft_apiserver::{ApiServer, AuthorizationMode, Matcher, User, Verb};

use super::{
    providers::{hcloud, hcloud_table, with_hcloud},
    stage::{Stage, becomes, eventually},
};

#[test]
fn the_rights_in_the_manifest_are_enough() {
    let user = User::new("system:serviceaccount:kube-system:weft-routes", []);
    let server = ApiServer::builder()
        .authorization_mode(AuthorizationMode::Rbac)
        .token("routes", user);
    let stage = Stage::of(server);
    apply_rights(&stage);
    define_configs(&stage);
    let double = hcloud(&stage);
    let mut command = stage.routes("hcloud", &["--secure-port=0"]);
    let master = command.get_args().find_map(|argument| {
        let argument = argument.to_str().unwrap();
        argument.strip_prefix("--master=").map(str::to_owned)
    });
    let kubeconfig = stage.directory.path().join("kubeconfig");
    let text = KUBECONFIG.replace("SERVER", &master.unwrap());
    std::fs::write(&kubeconfig, text).unwrap();
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(["--leader-elect-resource-name=weft-routes", "--route-blocks"]);
    stage.add_node(1, "hcloud://1");
    // The machine of the second is another: an event.
    stage.add_node(2, "hcloud://19");
    let _running = stage.start("rights.log", with_hcloud(&mut command, &double));
    becomes(&Stage::routes_to([1]), || hcloud_table(&double));
    becomes(&Some("False/RouteCreated".to_owned()), || {
        stage.condition(1)
    });
    let stats = stage.server().stats();
    eventually("an event", || {
        let events = Matcher::any().verb(Verb::Create).resource("events");
        let written = stats.requests(&events);
        let came = written.iter().any(|record| record.status == 201);
        if came {
            Ok(())
        } else {
            Err(stage.log("rights.log"))
        }
    });
    eventually("NodeNetworkConfigs watched", || {
        let configs = Matcher::any()
            .resource("nodenetworkconfigs")
            .user_agent("weft");
        if stats.requests(&configs).is_empty() {
            return Err(stage.log("rights.log"));
        }
        Ok(())
    });
    let all = stats.requests(&Matcher::any().user_agent("weft"));
    let refused = all.iter().filter(|record| record.status == 403).count();
    assert_eq!(refused, 0, "{}", stage.log("rights.log"));
}

fn define_configs(stage: &Stage) {
    let definition = include_str!("../../../../../deploy/crds/nodenetworkconfigs.yaml");
    let definition: Value = serde_saphyr::from_str(definition).unwrap();
    let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let request = http::Request::post(all)
        .header("content-type", "application/json")
        .body(definition.to_string().into_bytes());
    let client = stage.client();
    let made = stage
        .runtime
        .block_on(client.request::<Value>(request.unwrap()));
    made.unwrap();
}

fn apply_rights(stage: &Stage) {
    let manifest = include_str!("../../../../../deploy/routes/deployment.yaml");
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
    let group = "rbac.authorization.k8s.io";
    for object in documents {
        let kind = object["kind"].as_str().unwrap();
        if object["apiVersion"] != format!("{group}/v1") {
            continue;
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(stage.client(), namespace, &resource),
            None => Api::all_with(stage.client(), &resource),
        };
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let how = PostParams::default();
        let created = stage.runtime.block_on(api.create(&how, &object));
        created.unwrap();
    }
}

const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'SERVER'}}]
users: [{name: u, user: {token: routes}}]
";
