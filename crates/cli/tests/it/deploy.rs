//! The manifests in `deploy/` fit together, and API servers take them.

mod kustomize;
mod manifests;
mod rollout;

use std::collections::BTreeSet;

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::Value;
use weft_apiserver::{ApiServer, AuthorizationMode};

use manifests::{Container, containers, identity, objects, of_kind, pod};

/// Creates an object as an administrator would.
async fn create(client: &Client, object: &Value) -> kube::Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let types = object.types.clone().unwrap();
    let kind = GroupVersionKind::try_from(&types).unwrap();
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.create(&PostParams::default(), &object).await
}

#[tokio::test]
async fn an_api_server_with_rights_takes_every_object() {
    let server = ApiServer::builder()
        .authorization_mode(AuthorizationMode::Rbac)
        .build();
    let client = server.client();
    let mut objects = objects();
    objects.sort_by_key(|object| object["kind"] != "CustomResourceDefinition");
    for object in &objects {
        loop {
            match create(&client, object).await {
                Ok(_) => break,
                // A definition is served a moment after it was made.
                Err(kube::Error::Api(status))
                    if status.code == 404 && object["kind"] == "IPPool" =>
                {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{}: {error}", identity(object)),
            }
        }
    }
    assert!(objects.len() > 30, "only {} objects", objects.len());
}

#[test]
fn bindings_lead_to_roles_and_accounts_that_exist() {
    let all = objects();
    let known: BTreeSet<String> = all.iter().map(identity).collect();
    let bindings: Vec<&Value> = all
        .iter()
        .filter(|object| object["kind"].as_str().unwrap().ends_with("RoleBinding"))
        .collect();
    assert!(bindings.len() >= 7, "only {} bindings", bindings.len());
    for binding in bindings {
        let role = &binding["roleRef"];
        let namespace = match role["kind"].as_str().unwrap() {
            "Role" => binding["metadata"]["namespace"].as_str().unwrap(),
            _ => "",
        };
        let role = manifests::name(role, namespace);
        assert!(known.contains(&role), "{}: no {role}", identity(binding));
        for subject in binding["subjects"].as_array().unwrap() {
            let account = manifests::name(subject, subject["namespace"].as_str().unwrap());
            assert!(
                known.contains(&account),
                "{}: no {account}",
                identity(binding)
            );
        }
    }
}

#[test]
fn every_role_is_bound_but_the_one_for_people() {
    let all = objects();
    let named: BTreeSet<String> = all
        .iter()
        .filter_map(|object| Some(object["roleRef"]["name"].as_str()?.to_owned()))
        .collect();
    let roles = of_kind(&all, "ClusterRole").chain(of_kind(&all, "Role"));
    let unbound: BTreeSet<&str> = roles
        .map(|role| role["metadata"]["name"].as_str().unwrap())
        .filter(|name| !named.contains(*name))
        .collect();
    assert_eq!(unbound, BTreeSet::from(["weft-diagnostics"]));
}

#[test]
fn pods_have_an_account_of_their_own() {
    let all = objects();
    let known: BTreeSet<String> = all.iter().map(identity).collect();
    for workload in manifests::workloads(&all) {
        let namespace = workload["metadata"]["namespace"].as_str().unwrap();
        let account = pod(workload)["serviceAccountName"].as_str().unwrap();
        let account = format!("ServiceAccount {namespace}/{account}");
        assert!(
            known.contains(&account),
            "{}: no {account}",
            identity(workload)
        );
    }
}

#[test]
fn agents_reach_the_api_server_by_its_own_address() {
    let agents = containers(&objects())
        .into_iter()
        .filter(Container::asks_the_api_server);
    let mut seen = 0;
    for agent in agents {
        let host = agent.variable("KUBERNETES_SERVICE_HOST");
        assert_eq!(host.as_deref(), Some("APISERVER_ADDRESS"), "{}", agent.name);
        let port = agent.variable("KUBERNETES_SERVICE_PORT");
        assert!(port.is_some(), "{}", agent.name);
        seen += 1;
    }
    assert_eq!(seen, 6, "proxy, ipam, routes, controller; proxy, routes");
}

#[test]
fn agents_work_before_there_is_a_pod_network() {
    let all = objects();
    for workload in manifests::workloads(&all) {
        assert_eq!(pod(workload)["hostNetwork"], true, "{}", identity(workload));
    }
}

#[test]
fn nothing_that_stays_is_privileged_and_capabilities_are_those_of_the_network() {
    let all = containers(&objects());
    let privileged = all.iter().filter(|container| {
        container.value["securityContext"]
            .get("privileged")
            .is_some()
    });
    for container in privileged {
        assert_eq!(container.name, "proxy-init");
        let command = serde_json::json!(["weft", "proxy", "--proxy-mode=nftables", "--init-only"]);
        assert_eq!(container.value["command"], command, "it ends");
    }
    for container in &all {
        let context = &container.value["securityContext"];
        let name = &container.name;
        assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
        if name == "proxy-init" {
            continue;
        }
        assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(context["capabilities"]["drop"][0], "ALL", "{name}");
        assert_eq!(
            context["seccompProfile"]["type"], "RuntimeDefault",
            "{name}"
        );
        let added = context["capabilities"].get("add");
        let expected = match name.as_str() {
            "proxy" | "routes" => Some(serde_json::json!(["NET_ADMIN", "NET_RAW"])),
            // For the bridge of pods.
            "cni" => Some(serde_json::json!(["NET_ADMIN"])),
            _ => None,
        };
        assert_eq!(added, expected.as_ref(), "{name}");
    }
}

#[test]
fn only_init_containers_are_privileged() {
    let all = objects();
    for workload in manifests::workloads(&all) {
        let running = pod(workload)["containers"].as_array().unwrap();
        for container in running {
            let privileged = container["securityContext"].get("privileged");
            assert_eq!(privileged, None, "{}", identity(workload));
        }
    }
}

#[test]
fn tokens_come_from_files_that_only_their_container_can_read() {
    let all = objects();
    let mut files = 0;
    for workload in manifests::workloads(&all) {
        let containers = pod(workload)["containers"].as_array().unwrap();
        let variables = containers
            .iter()
            .flat_map(|container| container["env"].as_array().into_iter().flatten());
        for variable in variables {
            let name = variable["name"].as_str().unwrap();
            let key = &variable["valueFrom"]["secretKeyRef"]["key"];
            assert_ne!(key, "token", "{name} of {}", identity(workload));
            assert!(!name.ends_with("_TOKEN"), "{name}");
            files += usize::from(name.ends_with("_TOKEN_FILE"));
        }
        for volume in pod(workload)["volumes"].as_array().into_iter().flatten() {
            if let Some(secret) = volume.get("secret") {
                assert_eq!(secret["defaultMode"], 0o400, "{}", identity(workload));
            }
        }
    }
    assert_eq!(files, 1, "the token of Hetzner Cloud");
}

#[test]
fn every_server_is_probed() {
    let servers = containers(&objects())
        .into_iter()
        .filter(Container::asks_the_api_server);
    for server in servers {
        let probes = ["livenessProbe", "readinessProbe"];
        let probed = probes.iter().any(|probe| server.value.get(probe).is_some());
        assert!(probed, "{}", server.name);
    }
}

#[test]
fn selectors_find_pods() {
    let all = objects();
    let labels: Vec<&Value> = manifests::workloads(&all)
        .map(|workload| &workload["spec"]["template"]["metadata"]["labels"])
        .collect();
    let mut seen = 0;
    for object in &all {
        let selector = match object["kind"].as_str().unwrap() {
            "Service" => &object["spec"]["selector"],
            "PodDisruptionBudget" | "DaemonSet" | "Deployment" => {
                &object["spec"]["selector"]["matchLabels"]
            }
            _ => continue,
        };
        let selector = selector.as_object().unwrap();
        let fits = |labels: &&&Value| selector.iter().all(|(key, value)| &labels[key] == value);
        assert_eq!(
            labels.iter().filter(fits).count(),
            1,
            "{}",
            identity(object)
        );
        seen += 1;
    }
    assert_eq!(seen, 9, "four workloads, three Services, two budgets");
}

#[test]
fn images_have_the_two_names_that_overlays_replace() {
    let images: BTreeSet<String> = containers(&objects())
        .iter()
        .map(|container| container.value["image"].as_str().unwrap().to_owned())
        .collect();
    let expected = [
        "REGISTRY/weft-controller:VERSION",
        "REGISTRY/weft-node:VERSION",
    ];
    assert_eq!(images, expected.map(str::to_owned).into());
}
