//! Stand-in for the Deployment controller: creates numbered pods directly, without ReplicaSets.

use std::collections::BTreeSet;

use http::Method;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use weft_runtime::{
    Action, Cluster, Context, Controller, ObjectKey, ReconcileError, WatchSpec, reconcile_with,
};

use weft_testserver::call;

pub(crate) fn controller(cluster: &Cluster) -> Controller<ObjectKey> {
    Controller::builder("deployment-stand-in", cluster)
        .reconciles::<Deployment>(WatchSpec::all())
        .owns::<Pod, Deployment>(WatchSpec::all())
        .concurrency(4)
        .build(reconcile_with(reconcile))
}

async fn reconcile(context: Context<ObjectKey>) -> Result<Action, ReconcileError> {
    let Some(deployment) = context.object::<Deployment>()? else {
        return Ok(Action::await_change());
    };
    let namespace = deployment.namespace().unwrap_or_default();
    let pods = context.lister::<Pod>()?.by_namespace(&namespace)?;
    let uid = deployment.uid();
    let owned: Vec<&Pod> = pods
        .iter()
        .map(|pod| &**pod)
        .filter(|pod| {
            pod.owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == uid.as_ref())
        })
        .collect();
    let wanted = wanted_names(&deployment);
    let there: BTreeSet<String> = owned.iter().map(|pod| pod.name_any()).collect();
    let all = format!("/api/v1/namespaces/{namespace}/pods");
    // A Deployment that is being deleted gets no new pods; the API server deletes those it owns.
    let missing = wanted
        .difference(&there)
        .filter(|_| deployment.metadata.deletion_timestamp.is_none());
    for name in missing {
        // It exists already and the cache is behind, or a former one is still terminating.
        tolerate(
            call(
                context.client(),
                Method::POST,
                &all,
                &pod(&deployment, name),
            )
            .await,
            409,
        )?;
    }
    let surplus = owned.iter().filter(|pod| {
        pod.metadata.deletion_timestamp.is_none() && !wanted.contains(&pod.name_any())
    });
    for pod in surplus {
        let path = format!("{all}/{}", pod.name_any());
        tolerate(
            call(context.client(), Method::DELETE, &path, &Value::Null).await,
            404,
        )?;
    }
    tell(&context, &deployment, &owned).await?;
    Ok(Action::await_change())
}

fn tolerate(result: Result<Value, kube::Error>, code: u16) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == code => Ok(()),
        other => other.map(drop),
    }
}

fn wanted_names(deployment: &Deployment) -> BTreeSet<String> {
    let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    let name = deployment.name_any();
    (0..replicas.unwrap_or(1))
        .map(|number| format!("{name}-{number}"))
        .collect()
}

fn pod(deployment: &Deployment, name: &str) -> Value {
    let template = deployment.spec.as_ref().map(|spec| &spec.template);
    let labels = template.and_then(|template| template.metadata.as_ref()?.labels.clone());
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "labels": labels,
            "ownerReferences": [deployment.controller_owner_ref(&())],
        },
        "spec": template.and_then(|template| template.spec.as_ref()),
    })
}

async fn tell(
    context: &Context<ObjectKey>,
    deployment: &Deployment,
    owned: &[&Pod],
) -> Result<(), kube::Error> {
    let ready = owned.iter().filter(|pod| is_ready(pod)).count();
    let status = json!({
        "observedGeneration": deployment.metadata.generation,
        "replicas": owned.len(), "updatedReplicas": owned.len(),
        "readyReplicas": ready, "availableReplicas": ready,
    });
    let known = serde_json::to_value(&deployment.status).unwrap_or_default();
    let says = |field: &str| known[field].as_u64().unwrap_or_default();
    let fields = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
    ];
    if fields
        .iter()
        .all(|field| says(field) == status[field].as_u64().unwrap_or_default())
    {
        return Ok(());
    }
    let (namespace, name) = (
        deployment.namespace().unwrap_or_default(),
        deployment.name_any(),
    );
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}/status");
    tolerate(
        call(
            context.client(),
            Method::PATCH,
            &path,
            &json!({"status": status}),
        )
        .await,
        404,
    )
}

/// True if a pod has the condition `Ready`.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
