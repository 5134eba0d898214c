//! A check of pod addresses by three sources: the API, the pods' network namespaces, the daemons.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::{inside::Cluster, kubectl::Kubectl, node::Node, settings::Network};
use crate::process;

/// Time after which the daemon has released an address whose DEL never came: it waits for three
/// sweeps, and for five minutes at least.
const SWEEP: Duration = Duration::from_mins(8);

/// Prints each address that a container's network namespace has.
const LIST: &str = "for pid in $(pgrep -x pause); do \
    nsenter --target $pid --net ip -o address show dev eth0 scope global 2>/dev/null; done";

/// Fails if an address has two holders, if the API and the pods disagree, or if a daemon holds an
/// address that no pod has. Waits for pods that are just ending, and for the daemons' sweeps.
pub(super) fn check(cluster: &Cluster) -> anyhow::Result<usize> {
    let number = Cell::new(0);
    Kubectl::wait_up_to(SWEEP, "agreement about addresses", || {
        number.set(compare(cluster)?);
        Ok(true)
    })?;
    Ok(number.get())
}

fn compare(cluster: &Cluster) -> anyhow::Result<usize> {
    let api = addresses_of_pods(&cluster.kubectl())?;
    let mut observed = BTreeMap::new();
    for node in &cluster.nodes {
        let own: Vec<String> = node_addresses(cluster, node);
        let here: BTreeSet<String> = addresses_on(node)?
            .into_iter()
            .filter(|address| !own.contains(address))
            .collect();
        for address in &here {
            if let Some(other) = observed.insert(address.clone(), node.name()) {
                bail!("{address} is on {other} and on {}", node.name());
            }
        }
        if cluster.settings.network == Network::Weft {
            let assigned = assigned_addresses(node)?;
            ensure!(
                assigned == here,
                "the daemon of {} has assigned {assigned:?}, its pods have {here:?}",
                node.name()
            );
        }
    }
    let observed: BTreeSet<String> = observed.into_keys().collect();
    ensure!(
        observed == api,
        "only in the API: {:?}; only in pods: {:?}",
        api.difference(&observed).collect::<Vec<_>>(),
        observed.difference(&api).collect::<Vec<_>>()
    );
    Ok(observed.len())
}

/// hostNetwork pods have those of the node.
fn node_addresses(cluster: &Cluster, node: &Node) -> Vec<String> {
    let addresses = cluster.settings.families.addresses(node.number);
    addresses.iter().map(ToString::to_string).collect()
}

/// Of pods that run in a network of their own.
fn addresses_of_pods(kubectl: &Kubectl<'_>) -> anyhow::Result<BTreeSet<String>> {
    let list = kubectl.json(&["get", "pods", "--all-namespaces", "-o", "json"])?;
    let mut addresses = BTreeSet::new();
    let pods = list["items"].as_array().into_iter().flatten();
    for pod in pods.filter(|pod| {
        pod["spec"]["hostNetwork"] != true
            && !matches!(
                pod["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            )
    }) {
        for address in pod["status"]["podIPs"].as_array().into_iter().flatten() {
            let address = address["ip"].as_str().unwrap_or_default();
            ensure!(
                addresses.insert(address.to_owned()),
                "two pods of the API have {address}"
            );
        }
    }
    Ok(addresses)
}

/// Of the network namespaces of a node's pods.
fn addresses_on(node: &Node) -> anyhow::Result<Vec<String>> {
    let mut shell = node.inside("sh")?;
    let text = process::output(shell.args(["-c", LIST]))?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3)?.split('/').next())
        .map(str::to_owned)
        .collect())
}

/// Of the daemon's records, by its debug request.
fn assigned_addresses(node: &Node) -> anyhow::Result<BTreeSet<String>> {
    let mut curl = node.inside("curl")?;
    curl.args(["--silent", "--show-error", "--fail", "--unix-socket"])
        .args(["/run/weft/ipam.sock", "http://localhost/debug/ipaddresses"])
        .args(["--header", "Content-Type: application/json"])
        .args(["--data", r#"{"IPConfigStateFilter":["Assigned"]}"#]);
    let answer: Value = serde_json::from_str(&process::output(&mut curl)?)
        .context("cannot read the daemon's addresses")?;
    let addresses = answer["IPConfigurationStatus"].as_array();
    let of = |value: &Value| value["IPAddress"].as_str().map(str::to_owned);
    Ok(addresses.into_iter().flatten().filter_map(of).collect())
}
