//! Installation into a cluster: Weft from `deploy/`, or kube-proxy with host-local, and DNS.

use std::{
    fs::{self, OpenOptions},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{
    former::{self, Former},
    kubectl::Kubectl,
    node::Node,
    settings::{Agents, Families, MainPlugin, ProxyMode, Settings},
};
use crate::{images, process, workspace};

/// Installs Weft as docs/install.md says: a copy of `deploy/` with this cluster's values in
/// `settings.yaml`, and an overlay for what the arguments change. An earlier version is installed as
/// its own `deploy/` has it.
pub(super) fn install_weft(
    settings: &Settings,
    former: Option<&Former>,
    metrics: Metrics,
    directory: &Path,
    kubectl: &Kubectl<'_>,
) -> anyhow::Result<()> {
    let deploy = directory.join("deploy");
    if deploy.exists() {
        fs::remove_dir_all(&deploy).context("cannot remove an old copy of deploy/")?;
    }
    let mut copy = Command::new("cp");
    match former {
        Some(former) => copy.arg("--recursive").arg(&former.deploy),
        None => copy
            .arg("--recursive")
            .arg(workspace::root().join("deploy")),
    };
    process::run(copy.arg(&deploy))?;
    set_values(
        &deploy.join("examples/cluster/settings.yaml"),
        settings.families,
    )?;
    let overlay = deploy.join("examples/make-cluster");
    fs::create_dir_all(&overlay).context("cannot create the overlay")?;
    let kustomization = overlay.join("kustomization.yaml");
    let content = match former {
        Some(_) => overlay_of_former(),
        None => overlay_of(settings, metrics),
    };
    fs::write(&kustomization, content.to_string())
        .with_context(|| format!("cannot write {}", kustomization.display()))?;
    kubectl.run(&["apply", "-k", &path(&deploy.join("crds"))])?;
    kubectl.run(&[
        "wait",
        "--for=condition=Established",
        "crd/ippools.ipam.weft.dev",
        "crd/ippoolshards.ipam.weft.dev",
        "crd/nodenetworkconfigs.ipam.weft.dev",
        "crd/clustersubnetstates.ipam.weft.dev",
    ])?;
    kubectl.run(&["apply", "-f", &path(&deploy.join("examples/pool.yaml"))])?;
    kubectl.run(&["apply", "-k", &path(&overlay)])
}

/// Puts address and ranges where install.md tells operators to.
fn set_values(file: &Path, families: Families) -> anyhow::Result<()> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let host = families.api_address();
    let ranges = families.cluster_cidrs().join(",");
    let changed: String = text
        .lines()
        .map(|line| {
            let line = match line.trim_start().split_once(':').map(|(key, _)| key) {
                Some("apiServerHost") => format!("  apiServerHost: \"{host}\""),
                Some("clusterCIDR") => format!("  clusterCIDR: \"{ranges}\""),
                _ => line.to_owned(),
            };
            line + "\n"
        })
        .collect();
    ensure!(
        changed.contains(&host.to_string()) && changed.contains(&ranges),
        "cannot set the values of {}: it has another form",
        file.display()
    );
    fs::write(file, changed).with_context(|| format!("cannot write {}", file.display()))
}

/// The addresses on which Weft's agents serve metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metrics {
    /// As in kube-proxy, which Kubernetes' tests expect.
    Loopback,
    /// By the component `deploy/monitoring`.
    Node,
}

/// The overlay next to deploy/examples/cluster; JSON is YAML.
fn overlay_of(settings: &Settings, metrics: Metrics) -> Value {
    let mut patches = Vec::new();
    let mut daemon_set = |operations: Value| {
        patches.push(json!({
            "target": {"kind": "DaemonSet", "name": "weft-node"},
            "patch": operations.to_string(),
        }));
    };
    let containers = "/spec/template/spec/containers";
    if settings.proxy_mode != ProxyMode::Nftables {
        let mode = format!("--proxy-mode={}", settings.proxy_mode.flag());
        let init = "/spec/template/spec/initContainers/1/command/2";
        daemon_set(json!([
            {"op": "test", "path": init, "value": "--proxy-mode=nftables"},
            {"op": "replace", "path": init, "value": mode},
            {"op": "test", "path": format!("{containers}/0/command/2"), "value": "--proxy-mode=nftables"},
            {"op": "replace", "path": format!("{containers}/0/command/2"), "value": mode},
        ]));
    }
    if settings.proxy_mode == ProxyMode::IptablesLegacy {
        daemon_set(json!([
            {"op": "add", "path": format!("{containers}/0/command/-"), "value": "--iptables-variant=legacy"},
        ]));
    }
    if settings.cni == MainPlugin::Ptp {
        let place = format!("{containers}/3/command/5");
        daemon_set(json!([
            {"op": "test", "path": place, "value": "--main-plugin=bridge"},
            {"op": "replace", "path": place, "value": "--main-plugin=ptp"},
        ]));
    }
    if settings.agents == Agents::Node {
        daemon_set(one_process());
    }
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        // Two controllers on one node would share its ports.
        "resources": [if settings.nodes == 1 { "../one-node" } else { "../cluster" }],
        "components": match metrics {
            Metrics::Loopback => &["../../dashboard"][..],
            Metrics::Node => &["../../monitoring", "../../dashboard"],
        },
        "configMapGenerator": [{
            "name": "weft-proxy",
            "namespace": "kube-system",
            "literals": [format!("config={}", proxy_configuration(settings))],
        }],
        "patches": patches,
    })
}

/// Version 0.1.0 as its example for a cluster has it, with the images that it was built into.
fn overlay_of_former() -> Value {
    let images = [images::WEFT_NODE, images::WEFT_CONTROLLER];
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../cluster"],
        "images": images.map(|name| json!({"name": name, "newTag": former::TAG})),
    })
}

/// The file that `weft node` reads the proxy's mode from.
fn proxy_configuration(settings: &Settings) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": settings.proxy_mode.flag(),
    })
}

/// One container that runs `weft node` in place of proxy, ipam and routes.
fn one_process() -> Value {
    let containers = "/spec/template/spec/containers";
    json!([
        {"op": "test", "path": format!("{containers}/0/name"), "value": "proxy"},
        {"op": "test", "path": format!("{containers}/1/name"), "value": "ipam"},
        {"op": "test", "path": format!("{containers}/2/name"), "value": "routes"},
        {"op": "replace", "path": format!("{containers}/0/name"), "value": "node"},
        {"op": "replace", "path": format!("{containers}/0/command"), "value": [
            "weft", "node", "--node-name=$(NODE_NAME)", "--cluster-cidr=$(CLUSTER_CIDR)",
            "--masquerade-egress", "--root-dir=/", "--proxy-config=/etc/weft-proxy/config",
        ]},
        {"op": "add", "path": "/spec/template/spec/volumes/-", "value":
            {"name": "proxy-config", "configMap": {"name": "weft-proxy"}}},
        {"op": "replace", "path": format!("{containers}/0/volumeMounts"), "value": [
            {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
            {"name": "machine-id", "mountPath": "/etc/machine-id", "readOnly": true},
            {"name": "run", "mountPath": "/run/weft"},
            {"name": "state", "mountPath": "/var/lib/weft"},
            {"name": "proxy-config", "mountPath": "/etc/weft-proxy", "readOnly": true},
        ]},
        {"op": "remove", "path": format!("{containers}/2")},
        {"op": "remove", "path": format!("{containers}/1")},
    ])
}

/// DNS of the cluster.
pub(super) fn install_dns(
    families: Families,
    directory: &Path,
    kubectl: &Kubectl<'_>,
) -> anyhow::Result<()> {
    let manifest = include_str!("coredns.yaml")
        .replace("DNS_ADDRESS", &families.dns_address().to_string())
        .replace("COREDNS_IMAGE", images::COREDNS);
    let file = directory.join("coredns.yaml");
    fs::write(&file, manifest).with_context(|| format!("cannot write {}", file.display()))?;
    kubectl.run(&["apply", "-f", &path(&file)])
}

/// kube-proxy as a process on each node, the CNI plugins bridge and host-local, and a route to each
/// other node's pods.
pub(super) fn install_kube_proxy(
    settings: &Settings,
    directory: &Path,
    programs: &Path,
    nodes: &[Node],
    kubectl: &Kubectl<'_>,
) -> anyhow::Result<()> {
    Kubectl::wait_for("pod CIDRs of all nodes", || {
        let ranges = kubectl.json(&["get", "nodes", "-o", "json"])?;
        let nodes_with_ranges = ranges["items"].as_array().map_or(0, |nodes| {
            nodes
                .iter()
                .filter(|node| node["spec"]["podCIDR"].is_string())
                .count()
        });
        Ok(nodes_with_ranges == nodes.len())
    })?;
    let list = kubectl.json(&["get", "nodes", "-o", "json"])?;
    for node in nodes {
        for other in list["items"].as_array().into_iter().flatten() {
            let name = other["metadata"]["name"].as_str().unwrap_or_default();
            let ranges = other["spec"]["podCIDRs"].as_array().into_iter().flatten();
            let ranges: Vec<&str> = ranges.filter_map(Value::as_str).collect();
            if name == node.name() {
                write_conflist(node, directory, settings, &ranges)?;
                continue;
            }
            let number: u8 = name.trim_start_matches('n').parse()?;
            for range in ranges {
                let gateways = settings.families.addresses(number);
                let gateway = gateways
                    .iter()
                    .find(|gateway| gateway.is_ipv6() == range.contains(':'))
                    .context("a range of another family")?;
                let mut route = node.in_network("ip")?;
                route.args(["route", "replace", range, "via", &gateway.to_string()]);
                process::output(&mut route)?;
            }
        }
        start_kube_proxy(node, directory, programs, settings)?;
    }
    kubectl.run(&[
        "create",
        "clusterrolebinding",
        "kube-proxy",
        "--clusterrole=system:node-proxier",
        "--user=system:kube-proxy",
    ])
}

fn write_conflist(
    node: &Node,
    directory: &Path,
    settings: &Settings,
    ranges: &[&str],
) -> anyhow::Result<()> {
    let subnets: Vec<Value> = ranges
        .iter()
        .map(|range| json!([{"subnet": range}]))
        .collect();
    let routes: Vec<Value> = ranges
        .iter()
        .map(|range| json!({"dst": if range.contains(':') { "::/0" } else { "0.0.0.0/0" }}))
        .collect();
    let conflist = json!({
        "cniVersion": "1.0.0",
        "name": "cluster",
        "plugins": [
            {
                "type": settings.cni.name(), "bridge": "cni0", "isGateway": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "ranges": subnets, "routes": routes},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    let place = directory.join("nodes").join(node.name());
    let file = place.join("10-cluster.conflist");
    fs::write(&file, conflist.to_string()).context("cannot write a conflist")?;
    // The overlay's upper directory must not be changed while it is mounted.
    let mut copy = node.inside("sh")?;
    copy.args(["-c", "cat > /etc/cni/net.d/10-cluster.conflist"]);
    let input = fs::File::open(&file).context("cannot open a conflist")?;
    process::run(copy.stdin(input))
}

/// It ends with the cluster.
fn start_kube_proxy(
    node: &Node,
    directory: &Path,
    programs: &Path,
    settings: &Settings,
) -> anyhow::Result<()> {
    let path = directory
        .join("logs")
        .join(format!("{}-kube-proxy.log", node.name()));
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let kubeconfig = directory.join("credentials/kube-proxy.kubeconfig");
    let mut command = node.in_network(programs.join("kube-proxy"))?;
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--hostname-override={}", node.name()))
        .arg(format!("--proxy-mode={}", settings.proxy_mode.flag()))
        .arg(format!(
            "--cluster-cidr={}",
            settings.families.cluster_cidrs().join(",")
        ))
        // They concern the whole machine.
        .args(["--conntrack-max-per-core=0", "--oom-score-adj=0"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    command.spawn().map(drop).context("cannot start kube-proxy")
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::settings::Network;

    #[test]
    fn an_overlay_without_arguments_changes_nothing_but_adds_the_live_page() {
        let settings = Settings {
            nodes: 3,
            network: Network::Weft,
            proxy_mode: ProxyMode::Nftables,
            families: Families::Dual,
            agents: Agents::Separate,
            cni: MainPlugin::Bridge,
        };
        let overlay = overlay_of(&settings, Metrics::Loopback);
        assert_eq!(overlay["patches"], json!([]));
        assert_eq!(overlay["components"], json!(["../../dashboard"]));
    }
}
