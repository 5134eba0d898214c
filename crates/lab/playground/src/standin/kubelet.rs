//! Stand-in for a kubelet and its container runtime: a pod is a network namespace, attached by the
//! node's CNI configuration, with an echo process in it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weft_runtime::{
    Action, Cluster, Context, Controller, Exponential, ObjectKey, ReconcileError, Reconciler,
    SelectorError, WatchSpec,
};
use weft_testserver::{call, create};

use crate::{
    agent::{Agent, AgentParts},
    cni::{Attached, Attachment, CniError, Runtime},
    network,
    place::Place,
    program::blocking,
    traffic::{self, ProbeProtocol},
};

/// Longest backoff before a pod is tried again. Shorter than a kubelet's, because people watch.
const RETRY: Duration = Duration::from_secs(2);
/// Time for which a pod keeps answering after its deletion, as a graceful server does: proxies
/// receive the change a little later.
const LINGER: Duration = Duration::from_secs(4);
/// Interval of the readiness probe. A pod is ready when it answers, not when its process starts.
const PROBE: Duration = Duration::from_millis(50);
/// Interval at which the CNI configuration of the node is checked.
const LOOK: Duration = Duration::from_millis(100);

/// Settings of a node's kubelet.
#[derive(Clone)]
pub(crate) struct KubeletParts {
    pub(crate) node: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) runtime: Runtime,
    /// Path of the program that runs in pods.
    pub(crate) program: PathBuf,
    pub(crate) logs: PathBuf,
    pub(crate) client: Client,
}

/// Handle of a running kubelet.
#[derive(Clone)]
pub(crate) struct Kubelet {
    parts: Arc<KubeletParts>,
    pods: Arc<Mutex<BTreeMap<ObjectKey, Arc<Sandbox>>>>,
    controller: Controller<ObjectKey>,
    stop: CancellationToken,
}

/// A running pod.
#[derive(Debug)]
struct Sandbox {
    attachment: Attachment,
    /// Name of its network namespace; None for a pod in the node's network.
    namespace: Option<String>,
    attached: Option<Attached>,
    /// Port of its process.
    port: u16,
    answered: OnceLock<()>,
    echo: Agent,
    /// Time at which its deletion was first seen.
    ending: OnceLock<Instant>,
}

impl Kubelet {
    /// Registers the node and runs its pods.
    pub(crate) async fn start(parts: KubeletParts, cluster: &Cluster) -> Result<Self, StartError> {
        let parts = Arc::new(parts);
        let pods = Arc::default();
        let spec = WatchSpec::all().fields(&format!("spec.nodeName={}", parts.node))?;
        let controller = Controller::builder(&format!("kubelet-stand-in-{}", parts.node), cluster)
            .reconciles::<Pod>(spec)
            .concurrency(4)
            .limiter(Exponential::new(Duration::from_millis(250), RETRY))
            .build(Life {
                parts: parts.clone(),
                pods: Arc::clone(&pods),
            });
        create(&parts.client, &node(&parts)).await?;
        let kubelet = Self {
            parts,
            pods,
            controller,
            stop: CancellationToken::new(),
        };
        kubelet.controller.start();
        tokio::spawn(kubelet.clone().report_readiness());
        Ok(kubelet)
    }

    /// A node without a network configuration is not ready, as with a real kubelet.
    async fn report_readiness(self) {
        let mut reported = None;
        while !self.stop.is_cancelled() {
            let now = match self.parts.runtime.configuration() {
                Ok(_) => Readiness::Ready,
                Err(_) => Readiness::NotReady,
            };
            if reported != Some(now) && self.report(now).await.is_ok() {
                reported = Some(now);
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn report(&self, readiness: Readiness) -> Result<(), kube::Error> {
        let path = format!("/api/v1/nodes/{}/status", self.parts.node);
        let status = json!({"status": status(&self.parts, readiness)});
        call(&self.parts.client, Method::PATCH, &path, &status)
            .await
            .map(drop)
    }

    /// Path of a pod's network namespace.
    pub(crate) fn network_of(&self, pod: &ObjectKey) -> Option<PathBuf> {
        let pods = self.pods.lock();
        pods.get(pod)
            .map(|sandbox| sandbox.attachment.network.clone())
    }

    /// Ends every pod, as on an orderly shutdown of a machine.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.controller.stop().await;
        let pods: Vec<Arc<Sandbox>> = {
            let mut pods = self.pods.lock();
            std::mem::take(&mut *pods).into_values().collect()
        };
        for sandbox in pods {
            if let Err(error) = sandbox.end(&self.parts.runtime).await {
                tracing::warn!(pod = sandbox.attachment.name, %error, "cannot detach a pod from its network");
            }
        }
    }
}

/// A kubelet could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node could not be registered.
    #[error("cannot register the node")]
    Register(#[from] kube::Error),
    /// The name of the node is not valid in a field selector.
    #[error(transparent)]
    Selector(#[from] SelectorError),
}

fn node(parts: &KubeletParts) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": parts.node,
            "labels": {"kubernetes.io/hostname": parts.node, "kubernetes.io/os": "linux"},
        },
        "status": status(parts, Readiness::NotReady),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Ready,
    NotReady,
}

fn status(parts: &KubeletParts, readiness: Readiness) -> Value {
    let addresses: Vec<Value> = parts
        .addresses
        .iter()
        .map(|address| json!({"type": "InternalIP", "address": address}))
        .collect();
    let (word, reason, message) = match readiness {
        Readiness::Ready => ("True", "KubeletReady", "stand-in of the playground"),
        Readiness::NotReady => (
            "False",
            "KubeletNotReady",
            "container runtime network not ready: cni plugin not initialized",
        ),
    };
    let now = Timestamp::now().to_string();
    let capacity = json!({"pods": "250", "cpu": "4", "memory": "8Gi"});
    json!({
        "addresses": addresses, "capacity": capacity, "allocatable": capacity,
        "conditions": [{
            "type": "Ready", "status": word, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }],
        "nodeInfo": {
            "kubeletVersion": "v1.36.4-stand-in", "operatingSystem": "linux",
            "architecture": std::env::consts::ARCH, "osImage": "Weft playground",
            "bootID": "", "machineID": "", "systemUUID": "", "kernelVersion": "",
            "containerRuntimeVersion": "namespaces://1", "kubeProxyVersion": "",
        },
    })
}

/// Reconciler of the pods of a node.
struct Life {
    parts: Arc<KubeletParts>,
    pods: Arc<Mutex<BTreeMap<ObjectKey, Arc<Sandbox>>>>,
}

impl Reconciler<ObjectKey> for Life {
    async fn reconcile(&self, context: Context<ObjectKey>) -> Result<Action, ReconcileError> {
        let key = context.key();
        let pod = context.object::<Pod>()?;
        let uid = pod.as_ref().and_then(|pod| pod.uid());
        let there = self.get(key);
        if let Some(sandbox) = &there
            && Some(&sandbox.attachment.uid) != uid.as_ref()
        {
            self.end(key, sandbox).await?;
        }
        let Some(pod) = pod else {
            return Ok(Action::await_change());
        };
        if pod.metadata.deletion_timestamp.is_some() {
            if let Some(sandbox) = self.get(key) {
                let since = sandbox.ending.get_or_init(Instant::now);
                let left = LINGER.saturating_sub(since.elapsed());
                if !left.is_zero() {
                    return Ok(Action::requeue(left));
                }
                self.end(key, &sandbox).await?;
            }
            self.forget(&pod).await?;
            return Ok(Action::await_change());
        }
        if self.get(key).is_none() {
            let sandbox = self.make(&pod).await?;
            let sandbox = Arc::new(sandbox);
            self.pods().insert(key.clone(), sandbox);
        }
        if let Some(sandbox) = self.get(key) {
            if !sandbox.answers().await {
                return Ok(Action::requeue(PROBE));
            }
            self.tell(&pod, &sandbox).await?;
        }
        Ok(Action::await_change())
    }
}

impl Life {
    fn pods(&self) -> parking_lot::MutexGuard<'_, BTreeMap<ObjectKey, Arc<Sandbox>>> {
        self.pods.lock()
    }

    fn get(&self, key: &ObjectKey) -> Option<Arc<Sandbox>> {
        self.pods().get(key).cloned()
    }

    async fn end(&self, key: &ObjectKey, sandbox: &Sandbox) -> Result<(), CniError> {
        sandbox.end(&self.parts.runtime).await?;
        self.pods().remove(key);
        Ok(())
    }

    async fn make(&self, pod: &Pod) -> Result<Sandbox, ReconcileError> {
        let uid = pod.uid().unwrap_or_default();
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        let namespace = if host_network {
            self.parts.node.clone()
        } else {
            format!("pod-{uid}")
        };
        let attachment = Attachment {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            network: network::file(&namespace),
            uid,
        };
        let attached = if host_network {
            None
        } else {
            Some(self.attach(&namespace, &attachment).await?)
        };
        let port = port(pod);
        let echo = self.echo(pod, &namespace, port);
        echo.start()?;
        Ok(Sandbox {
            attachment,
            port,
            namespace: (!host_network).then_some(namespace),
            attached,
            answered: OnceLock::new(),
            echo,
            ending: OnceLock::new(),
        })
    }

    /// Creates the namespace of a pod and attaches it. On failure both are undone, so that the next
    /// attempt starts clean.
    async fn attach(
        &self,
        namespace: &str,
        attachment: &Attachment,
    ) -> Result<Attached, ReconcileError> {
        let (runtime, name) = (self.parts.runtime.clone(), namespace.to_owned());
        let pod = attachment.clone();
        blocking(move || {
            network::make_namespace(&name)?;
            runtime.add(&pod).map_err(|error| {
                // CNI requires a DEL after a failed ADD; the error of the ADD is reported.
                let _ = runtime.delete(&pod, None);
                let _ = network::remove(&name);
                ReconcileError::retry(error)
            })
        })
        .await
    }

    fn echo(&self, pod: &Pod, namespace: &str, port: u16) -> Agent {
        let name = pod.name_any();
        let line = vec![
            self.parts.program.display().to_string(),
            "playground".to_owned(),
            "pod".to_owned(),
            format!("--name={name}"),
            format!("--node={}", self.parts.node),
            format!("--port={port}"),
        ];
        Agent::new(AgentParts {
            node: Some(self.parts.node.clone()),
            component: format!("pod {name}"),
            line,
            environment: Vec::new(),
            place: Place {
                namespace: namespace.to_owned(),
                mounts: Vec::new(),
            },
            log: self.parts.logs.join("pods.log"),
        })
    }

    async fn tell(&self, pod: &Pod, sandbox: &Sandbox) -> Result<(), kube::Error> {
        let known = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if known == Some("Running") {
            return Ok(());
        }
        let addresses = match &sandbox.attached {
            Some(attached) => attached.addresses(),
            None => self.parts.addresses.clone(),
        };
        let now = Timestamp::now().to_string();
        let condition =
            |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let entries: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"ip": address}))
            .collect();
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
        let status = json!({"status": {
            "phase": "Running", "startTime": now, "hostIP": self.parts.addresses.first(),
            "podIP": addresses.first(), "podIPs": entries,
            "conditions": conditions, "containerStatuses": containers(pod, &now),
        }});
        match call(
            &self.parts.client,
            Method::PATCH,
            &path(pod, "/status"),
            &status,
        )
        .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    }

    /// Deletes the object of a pod that has ended.
    async fn forget(&self, pod: &Pod) -> Result<(), kube::Error> {
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
            "preconditions": {"uid": pod.uid()},
        });
        match call(&self.parts.client, Method::DELETE, &path(pod, ""), &options).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Status of the containers, which all run as one process.
fn containers(pod: &Pod, now: &str) -> Vec<Value> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let running = containers.map(|container| {
        json!({
            "name": container.name, "image": container.image, "imageID": "",
            "ready": true, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        })
    });
    running.collect()
}

fn path(pod: &Pod, subresource: &str) -> String {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    format!("/api/v1/namespaces/{namespace}/pods/{name}{subresource}")
}

/// First port of a pod's containers; 8080 if there is none.
fn port(pod: &Pod) -> u16 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.next().map(|port| port.container_port);
    port.and_then(|port| u16::try_from(port).ok())
        .unwrap_or(8080)
}

impl Sandbox {
    /// True if its process answers or has answered before.
    async fn answers(&self) -> bool {
        if self.answered.get().is_some() {
            return true;
        }
        let network = self.attachment.network.clone();
        let target = (Ipv4Addr::LOCALHOST, self.port).into();
        let answer = blocking(move || traffic::ask(&network, ProbeProtocol::Http, target)).await;
        answer.is_ok() && self.answered.set(()).is_ok()
    }

    async fn end(&self, runtime: &Runtime) -> Result<(), CniError> {
        self.echo.stop().await;
        let (Some(namespace), Some(attached)) = (self.namespace.clone(), self.attached.clone())
        else {
            return Ok(());
        };
        let (runtime, attachment) = (runtime.clone(), self.attachment.clone());
        blocking(move || {
            runtime.delete(&attachment, Some(&attached))?;
            // The pod is detached already; a later attempt finds no namespace.
            let _ = network::remove(&namespace);
            Ok(())
        })
        .await
    }
}
