//! Stand-in for the EndpointSlice controller: one slice for each Service and address family.

use std::{collections::BTreeMap, net::IpAddr};

use http::Method;
use k8s_openapi::{
    api::{
        core::v1::{Pod, Service, ServicePort},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use weft_runtime::{
    Action, Cluster, Context, Controller, Mapper, ReconcileError, WatchSpec, reconcile_with,
};

use super::{MANAGER, deployment::is_ready, scheduler::All};
use weft_testserver::call;

pub(crate) fn controller(cluster: &Cluster) -> Controller<All> {
    Controller::builder("endpointslice-stand-in", cluster)
        .watches::<Service>(WatchSpec::all(), Mapper::always(All))
        .watches::<Pod>(WatchSpec::all(), Mapper::always(All))
        .watches::<EndpointSlice>(WatchSpec::all(), Mapper::always(All))
        .build(reconcile_with(reconcile))
}

async fn reconcile(context: Context<All>) -> Result<Action, ReconcileError> {
    let services = context.lister::<Service>()?.list()?;
    let pods = context.lister::<Pod>()?.list()?;
    let slices = context.lister::<EndpointSlice>()?.list()?;
    let ours = slices.iter().filter(|slice| {
        let manager = slice.labels().get("endpointslice.kubernetes.io/managed-by");
        manager.is_some_and(|manager| manager == MANAGER)
    });
    let there: BTreeMap<(String, String), &EndpointSlice> = ours
        .map(|slice| {
            (
                (slice.namespace().unwrap_or_default(), slice.name_any()),
                &**slice,
            )
        })
        .collect();
    let services = services
        .iter()
        .filter(|service| service.metadata.deletion_timestamp.is_none());
    for service in services {
        for wanted in wanted(service, &pods) {
            let namespace = service.namespace().unwrap_or_default();
            let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
            let known = there.get(&(namespace, name.to_owned()));
            write(&context, &wanted, known.copied()).await?;
        }
    }
    Ok(Action::await_change())
}

async fn write(
    context: &Context<All>,
    wanted: &Value,
    known: Option<&EndpointSlice>,
) -> Result<(), kube::Error> {
    let all = weft_testserver::collection(wanted);
    let Some(known) = known else {
        return weft_testserver::create(context.client(), wanted).await;
    };
    let same = |field: &str| {
        let known = serde_json::to_value(known).unwrap_or_default();
        known[field].as_array().map_or(&[][..], Vec::as_slice)
            == wanted[field].as_array().map_or(&[][..], Vec::as_slice)
    };
    if same("endpoints") && same("ports") {
        return Ok(());
    }
    let change = json!({"endpoints": wanted["endpoints"], "ports": wanted["ports"]});
    let path = format!("{all}/{}", known.name_any());
    match call(context.client(), Method::PATCH, &path, &change).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Desired slices of a Service.
fn wanted(service: &Service, pods: &[std::sync::Arc<Pod>]) -> Vec<Value> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let Some(selector) = spec
        .selector
        .as_ref()
        .filter(|selector| !selector.is_empty())
    else {
        return Vec::new();
    };
    let namespace = service.namespace();
    let mut chosen: Vec<&Pod> = pods
        .iter()
        .map(|pod| &**pod)
        .filter(|pod| pod.namespace() == namespace)
        .filter(|pod| {
            selector
                .iter()
                .all(|(key, value)| pod.labels().get(key) == Some(value))
        })
        .collect();
    chosen.sort_by_key(|pod| pod.name_any());
    let families = spec
        .ip_families
        .clone()
        .unwrap_or_else(|| vec!["IPv4".to_owned()]);
    let slice = |family: &String| {
        let endpoints: Vec<Value> = chosen
            .iter()
            .filter_map(|pod| endpoint(pod, family))
            .collect();
        let ports: Vec<Value> = spec
            .ports
            .iter()
            .flatten()
            .map(|port| target(port, &chosen))
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{}", service.name_any(), family.to_lowercase()),
                "namespace": namespace,
                "labels": {
                    "kubernetes.io/service-name": service.name_any(),
                    "endpointslice.kubernetes.io/managed-by": MANAGER,
                },
                "ownerReferences": [service.controller_owner_ref(&())],
            },
            "addressType": family, "endpoints": endpoints, "ports": ports,
        })
    };
    families.iter().map(slice).collect()
}

fn endpoint(pod: &Pod, family: &str) -> Option<Value> {
    let status = pod.status.as_ref()?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let addresses = status.pod_ips.iter().flatten().map(|entry| &entry.ip);
    let address = addresses.into_iter().find(|text| {
        let address: Option<IpAddr> = text.parse().ok();
        address.is_some_and(|address| address.is_ipv4() == (family == "IPv4"))
    })?;
    let (ready, ending) = (is_ready(pod), pod.metadata.deletion_timestamp.is_some());
    Some(json!({
        "addresses": [address],
        "conditions": {"ready": ready && !ending, "serving": ready, "terminating": ending},
        "nodeName": pod.spec.as_ref()?.node_name,
        "targetRef": {
            "kind": "Pod", "name": pod.name_any(), "namespace": pod.namespace(), "uid": pod.uid(),
        },
    }))
}

/// A port of a slice; a named target port is looked up in the pods' containers.
fn target(port: &ServicePort, pods: &[&Pod]) -> Value {
    let number = match &port.target_port {
        Some(IntOrString::Int(number)) if *number > 0 => Some(*number),
        Some(IntOrString::String(name)) => pods.iter().find_map(|pod| named_port(pod, name)),
        _ => Some(port.port),
    };
    json!({
        "name": port.name.as_deref().unwrap_or_default(), "port": number,
        "protocol": port.protocol.as_deref().unwrap_or("TCP"),
    })
}

fn named_port(pod: &Pod, name: &str) -> Option<i32> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .flat_map(|container| container.ports.iter().flatten())
        .find(|port| port.name.as_deref() == Some(name))
        .map(|port| port.container_port)
}
