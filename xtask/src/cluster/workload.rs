//! Deployments of a test server with a Service in front, for faults and measurements.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::kubectl::Kubectl;
use crate::images::AGNHOST;

/// Port of the server and of its Service.
const PORT: u16 = 8080;

/// A Deployment with a Service of the same name in the namespace `default`.
pub(super) struct Workload {
    name: &'static str,
}

impl Workload {
    /// Creates it and waits until its pods are ready. They spread over the nodes, and a pod that ends
    /// goes on serving for a moment, as servers behind a Service should.
    pub(super) fn create(
        kubectl: &Kubectl<'_>,
        name: &'static str,
        replicas: u32,
    ) -> anyhow::Result<Self> {
        kubectl.apply(&deployment(name, replicas))?;
        kubectl.apply(&json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name},
            "spec": {
                "selector": {"app": name},
                "ports": [{"port": PORT, "targetPort": PORT}],
                "ipFamilyPolicy": "PreferDualStack",
            },
        }))?;
        let this = Self { name };
        this.wait_until_ready(kubectl)?;
        Ok(this)
    }

    pub(super) fn scale(&self, kubectl: &Kubectl<'_>, replicas: u32) -> anyhow::Result<()> {
        let deployment = format!("deployment/{}", self.name);
        kubectl.run(&["scale", &deployment, &format!("--replicas={replicas}")])
    }

    pub(super) fn wait_until_ready(&self, kubectl: &Kubectl<'_>) -> anyhow::Result<()> {
        let deployment = format!("deployment/{}", self.name);
        kubectl.run(&["rollout", "status", &deployment, "--timeout=240s"])
    }

    /// Address of its Service, of the first family.
    pub(super) fn front(&self, kubectl: &Kubectl<'_>) -> anyhow::Result<SocketAddr> {
        let path = "jsonpath={.spec.clusterIP}";
        let address: IpAddr = kubectl
            .output(&["get", "service", self.name, "-o", path])?
            .parse()
            .context("a Service without an address")?;
        Ok(SocketAddr::new(address, PORT))
    }

    /// Names and first addresses of its pods that are not ending.
    pub(super) fn pods(&self, kubectl: &Kubectl<'_>) -> anyhow::Result<Vec<(String, String)>> {
        let selector = format!("--selector=app={}", self.name);
        let list = kubectl.json(&["get", "pods", &selector, "-o", "json"])?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .map(|pod| {
                (
                    text(&pod["metadata"]["name"]),
                    text(&pod["status"]["podIP"]),
                )
            })
            .collect())
    }
}

fn deployment(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": {"app": name}},
                    }],
                    // A node that reboots keeps its pods.
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": "server", "image": AGNHOST,
                        "args": ["netexec", format!("--http-port={PORT}")],
                        "ports": [{"containerPort": PORT}],
                        "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
                        "readinessProbe": {
                            "httpGet": {"path": "/hostname", "port": PORT}, "periodSeconds": 1,
                        },
                    }],
                },
            },
        },
    })
}
