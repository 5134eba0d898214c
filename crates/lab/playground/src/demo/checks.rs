//! Checks of the demo, made with the API, the kernels of the nodes and real packets.

use std::{collections::BTreeSet, net::SocketAddr, path::Path};

use super::{
    Demo, DemoError, StepOutcome,
    reading::{
        CONFIGS, SLICE, WEB_PODS, condition, items, node_ranges, pod_addresses, ready_targets,
    },
    waiting::{look, until},
};
use crate::{
    kernel,
    node::Node,
    program::blocking,
    traffic::{self, ProbeProtocol},
};

/// Comment of the Service port `web` in the proxies' tables.
const PORT: &str = "default/web:http";

impl Demo<'_> {
    pub(super) async fn untouched(&self) -> Result<(), DemoError> {
        let nodes = self.get("/api/v1/nodes").await?;
        for node in items(&nodes) {
            let (name, ranges) = node_ranges(node);
            let conditions = node["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten();
            let networking =
                conditions.filter(|condition| condition["type"] == "NetworkUnavailable");
            let (tables, routes) = {
                let name = name.clone();
                blocking(move || (kernel::has_tables(&name), kernel::routes(&name))).await
            };
            let (has_tables, routes) = match (tables, routes) {
                (Ok(tables), Ok(routes)) => (tables, routes),
                (Err(error), _) | (_, Err(error)) => {
                    return Err(DemoError::Check(error.to_string()));
                }
            };
            if has_tables || !routes.is_empty() || !ranges.is_empty() || networking.count() > 0 {
                return Err(DemoError::Check(format!(
                    "the network of {name} was changed without Weft"
                )));
            }
        }
        let configs = self.get(CONFIGS).await?;
        if items(&configs).count() > 0 {
            return Err(DemoError::Check(
                "a NodeNetworkConfig was created without Weft".to_owned(),
            ));
        }
        Ok(())
    }

    pub(super) async fn nodes_ready(&self) -> Result<(), DemoError> {
        let wanted = self.world.nodes().len();
        until("all nodes to be ready", async || {
            let nodes = self.get("/api/v1/nodes").await?;
            let ready = items(&nodes)
                .filter(|node| condition(node, "Ready"))
                .count();
            Ok(look(
                ready == wanted,
                format!("{ready} of {wanted} are ready"),
            ))
        })
        .await
    }

    /// Waits until every node has a route to each range of every other node, and no other route.
    pub(super) async fn routes_complete(&self) -> Result<(), DemoError> {
        until("routes between all nodes", async || {
            let nodes = self.get("/api/v1/nodes").await?;
            let ranges: Vec<(String, BTreeSet<String>)> = items(&nodes).map(node_ranges).collect();
            for (name, own) in &ranges {
                let wanted: BTreeSet<String> = ranges
                    .iter()
                    .filter(|(other, _)| other != name)
                    .flat_map(|(_, ranges)| ranges.iter().cloned())
                    .collect();
                let node = name.clone();
                let routes = blocking(move || kernel::routes(&node)).await;
                let there: BTreeSet<String> = match routes {
                    Ok(routes) => routes.into_iter().map(|route| route.destination).collect(),
                    Err(error) => return Ok(look(false, error.to_string())),
                };
                if own.is_empty() || there != wanted {
                    return Ok(look(false, format!("{name} has routes to {there:?}")));
                }
            }
            Ok(look(true, String::new()))
        })
        .await
    }

    /// Checks that traffic between pods is not masqueraded, on one node and between nodes.
    pub(super) async fn pods_see_pods(&self, client: &Path) -> Result<(), DemoError> {
        let own = self.get("/api/v1/namespaces/default/pods/client").await?;
        let own = pod_addresses(&own);
        let pods = self.get(WEB_PODS).await?;
        for address in items(&pods).flat_map(pod_addresses) {
            let (from, target) = (client.to_owned(), SocketAddr::new(address, 8080));
            let answer = blocking(move || traffic::ask(&from, ProbeProtocol::Http, target)).await?;
            if !own.contains(&answer.client.ip()) {
                let seen = answer.client.ip();
                let what = format!("{} saw the client {own:?} as {seen}", answer.pod);
                return Err(DemoError::Check(what));
            }
        }
        Ok(())
    }

    pub(super) async fn answering_nodes(
        &self,
        client: &Path,
    ) -> Result<BTreeSet<String>, DemoError> {
        let target = self.service_address("web").await?;
        let pods = self.get(WEB_PODS).await?;
        let wanted: BTreeSet<String> = items(&pods)
            .filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned))
            .collect();
        let mut seen = BTreeSet::new();
        until("an answer from each node", async || {
            let client = client.to_owned();
            let answer = blocking(move || traffic::ask(&client, ProbeProtocol::Http, target)).await;
            match answer {
                Ok(answer) => drop(seen.insert(answer.node)),
                Err(error) => return Ok(look(false, error.to_string())),
            }
            Ok(look(
                seen == wanted,
                format!("answers from {}", list(&seen)),
            ))
        })
        .await?;
        Ok(wanted)
    }

    pub(super) async fn pods_ready(&self, wanted: usize) -> Result<(), DemoError> {
        until("all pods to be ready", async || {
            let pods = self.get(WEB_PODS).await?;
            let ready = items(&pods).filter(|pod| condition(pod, "Ready")).count();
            let all = items(&pods).count();
            Ok(look(
                ready == wanted && all == wanted,
                format!("{ready} of {all} are ready"),
            ))
        })
        .await
    }

    pub(super) async fn slices_have(&self, wanted: usize) -> Result<(), DemoError> {
        until("all endpoints", async || {
            let slice = self.get(SLICE).await?;
            let ready = slice["endpoints"].as_array().into_iter().flatten();
            let ready = ready
                .filter(|endpoint| endpoint["conditions"]["ready"] == true)
                .count();
            Ok(look(ready == wanted, format!("{ready} endpoints")))
        })
        .await
    }

    pub(super) async fn kernels_have(&self, wanted: usize) -> Result<(), DemoError> {
        for Node { name, .. } in self.world.nodes() {
            until("the endpoints of all kernels", async || {
                let node = name.clone();
                let endpoints = blocking(move || kernel::endpoints(&node)).await;
                Ok(match endpoints {
                    Ok(endpoints) => {
                        let there = endpoints.iter().filter(|(name, _)| name == PORT).count();
                        look(there == wanted, format!("{there} endpoints on {name}"))
                    }
                    Err(error) => look(false, error.to_string()),
                })
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until pods, endpoints, and the proxy's table and the routes of every kernel agree, and checks that no
    /// two pods have the same address.
    pub(crate) async fn agrees(&self, replicas: usize) -> Result<(), DemoError> {
        self.nodes_ready().await?;
        self.pods_ready(replicas).await?;
        self.slices_have(replicas).await?;
        self.routes_complete().await?;
        self.kernels_agree().await?;
        self.no_address_twice().await
    }

    /// Waits until the proxy's table in every kernel has exactly the ready endpoints of the slices.
    pub(super) async fn kernels_agree(&self) -> Result<(), DemoError> {
        for Node { name, .. } in self.world.nodes() {
            until(
                "the endpoints of all kernels to agree with the API",
                async || {
                    let slices = self.get("/apis/discovery.k8s.io/v1/endpointslices").await?;
                    let wanted = ready_targets(&slices);
                    let node = name.clone();
                    let endpoints = blocking(move || kernel::endpoints(&node)).await;
                    let targets = endpoints.map(|endpoints| targets(&endpoints));
                    Ok(match targets {
                        Ok(there) if there == wanted => look(true, String::new()),
                        Ok(there) => {
                            let missing = wanted.difference(&there).count();
                            let surplus = there.difference(&wanted).count();
                            look(
                                false,
                                format!("{name}: {missing} targets missing, {surplus} too many"),
                            )
                        }
                        Err(error) => look(false, error.to_string()),
                    })
                },
            )
            .await?;
        }
        Ok(())
    }

    /// Checks that no two pods have the same address.
    pub(super) async fn no_address_twice(&self) -> Result<(), DemoError> {
        let pods = self.get("/api/v1/pods").await?;
        let mut seen = BTreeSet::new();
        let of_pods = items(&pods).filter(|pod| pod["spec"]["hostNetwork"] != true);
        for pod in of_pods {
            for entry in pod["status"]["podIPs"].as_array().into_iter().flatten() {
                let address = entry["ip"].as_str().unwrap_or_default();
                if !seen.insert(address.to_owned()) {
                    return Err(DemoError::Check(format!(
                        "two pods have the address {address}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Checks the metrics that would show failed syncs and repairs.
    pub(super) async fn undisturbed(&self) -> Result<StepOutcome, DemoError> {
        self.no_address_twice().await?;
        for Node { name, .. } in self.world.nodes() {
            let node = name.clone();
            let text = blocking(move || kernel::metrics(&node, 10249)).await?;
            for metric in [
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
                "weft_proxy_repaired_elements_total",
            ] {
                let value = kernel::metric(&text, metric);
                if value > 0.0 {
                    return Err(DemoError::Check(format!("{metric} is {value} on {name}")));
                }
            }
        }
        Ok("no sync failed, no element was changed by another program"
            .to_owned()
            .into())
    }
}

/// Endpoints as `ready_targets` names them, without the Service of the API server.
fn targets(endpoints: &kernel::Endpoints) -> BTreeSet<String> {
    let ours = endpoints
        .iter()
        .filter(|(name, _)| name != "default/kubernetes:https");
    ours.map(|(name, target)| format!("{name} {target}"))
        .collect()
}

pub(super) fn list(names: &BTreeSet<String>) -> String {
    names
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}
