//! Checks of pods that are replaced: a StatefulSet that restarts, a node that is drained.

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::{addresses, inside::Cluster, kubectl::Kubectl, workload::Workload};
use crate::images::AGNHOST;

impl Cluster {
    /// Each pod of a StatefulSet is replaced by one of the same name. Other pods find the new one by
    /// its name, and its former address is free.
    pub(super) fn check_stateful_set(&self) -> anyhow::Result<()> {
        let kubectl = self.kubectl();
        kubectl.apply(&json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "stateful"},
            "spec": {"clusterIP": "None", "selector": {"app": "stateful"}},
        }))?;
        kubectl.apply(&json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "stateful"},
            "spec": {
                "serviceName": "stateful",
                "replicas": 3,
                "selector": {"matchLabels": {"app": "stateful"}},
                "template": {
                    "metadata": {"labels": {"app": "stateful"}},
                    "spec": {
                        "terminationGracePeriodSeconds": 1,
                        "containers": [{"name": "main", "image": AGNHOST, "args": ["pause"]}],
                    },
                },
            },
        }))?;
        let wait = || {
            let words = ["rollout", "status", "statefulset/stateful"];
            kubectl.run(&[&words[..], &["--timeout=240s"]].concat())
        };
        wait()?;
        for _ in 0..2 {
            kubectl.run(&["rollout", "restart", "statefulset/stateful"])?;
            wait()?;
            for number in 0..3 {
                check_name(&kubectl, number)?;
            }
        }
        addresses::check(self).context("after restarts of a StatefulSet")?;
        kubectl.run(&["delete", "statefulset/stateful", "service/stateful"])
    }

    /// Pods leave a node that is drained and start on others.
    pub(super) fn check_drain(&self) -> anyhow::Result<()> {
        let kubectl = self.kubectl();
        let node = self.nodes.last().context("a cluster without nodes")?.name();
        let evicted = Workload::create(&kubectl, "evicted", 6)?;
        kubectl.run(&[
            "drain",
            &node,
            "--ignore-daemonsets",
            "--pod-selector=app=evicted",
            "--timeout=240s",
        ])?;
        evicted.wait_until_ready(&kubectl)?;
        let selector = format!("--field-selector=spec.nodeName={node}");
        let words = ["get", "pods", "--selector=app=evicted", &selector];
        let left = kubectl.output(&[&words[..], &["-o", "name"]].concat())?;
        ensure!(left.is_empty(), "on {node} after its drain: {left}");
        kubectl.run(&["uncordon", &node])?;
        addresses::check(self).context("after a drain")?;
        kubectl.run(&["delete", "deployment/evicted", "service/evicted"])
    }
}

/// Waits until DNS has the present address of a pod, as the first pod sees it.
fn check_name(kubectl: &Kubectl<'_>, number: u32) -> anyhow::Result<()> {
    let pod = format!("stateful-{number}");
    let name = format!("{pod}.stateful.default.svc.cluster.local");
    let path = "jsonpath={.status.podIP}";
    let address = kubectl.output(&["get", "pod", &pod, "-o", path])?;
    // Negative and old answers are cached for up to 30 s.
    Kubectl::wait_for(&format!("{address} as the address of {name}"), || {
        let words = ["exec", "stateful-0", "--", "getent", "ahosts", &name];
        Ok(kubectl.output(&words)?.contains(&address))
    })
}
