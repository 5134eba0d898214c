//! What a newcomer is shown: a demo that works, and what happens to it.

use std::{
    collections::BTreeSet,
    future::Future,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use thiserror::Error;
use weft_runtime::ObjectKey;

use crate::{
    agent::{Agent, AgentState},
    applying::{call, create},
    cost::Observer,
    kernel, network,
    node::Node,
    program::blocking,
    report::{Reporter, Step, Written},
    standin::MANAGER,
    traffic::{self, Protocol, Stream, Tally},
    world::{World, WorldError},
};

/// The longest that anything may take; machines that are busy with tests need some of it.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// The port of the demo in the rules.
const PORT: &str = "default/web:http";
/// How long nothing must happen.
const QUIET: Duration = Duration::from_secs(2);
/// How long the API server is away.
const OUTAGE: Duration = Duration::from_secs(3);

/// Something did not happen.
#[derive(Debug, Error)]
pub enum DemoError {
    /// In time.
    #[error("still waiting after {PATIENCE:?} for {what}: {last}")]
    Late {
        /// For what.
        what: &'static str,
        /// What it looked like at last.
        last: String,
    },
    /// The API refused.
    #[error("the API refused")]
    Api(#[from] kube::Error),
    /// The world.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A process.
    #[error("start a process")]
    Process(#[from] std::io::Error),
    /// A check that did not hold.
    #[error("{0}")]
    Check(String),
}

/// The demo in a world.
pub struct Demo<'a> {
    world: &'a World,
    observer: Observer,
}

/// What a step tells besides its time.
#[derive(Default)]
pub(crate) struct Told {
    detail: String,
    cost: Option<Written>,
}

impl From<String> for Told {
    fn from(detail: String) -> Self {
        Self { detail, cost: None }
    }
}

impl<'a> Demo<'a> {
    /// A demo for a world.
    pub fn new(world: &'a World) -> Self {
        Self {
            world,
            observer: Observer::new(world.cluster(), key("web-ipv4")),
        }
    }

    /// How many pods are many.
    pub(crate) fn many(&self) -> usize {
        self.world.limits.many
    }

    pub(crate) fn world(&self) -> &World {
        self.world
    }

    /// Makes nodes and the demo, and shows that it works.
    pub async fn build(&self, nodes: u8, reporter: &mut Reporter) -> Result<(), DemoError> {
        let making = self.make_nodes(nodes);
        step(
            reporter,
            &format!("{nodes} nodes, ready and routed"),
            None,
            true,
            making,
        )
        .await?;
        let applying = self.apply();
        step(
            reporter,
            "a Deployment and four Services that answer",
            None,
            true,
            applying,
        )
        .await
    }

    /// Requests from the demo's client to its Service, without end.
    pub async fn requests(&self) -> Result<Stream, DemoError> {
        let client = self.network_of("client").await?;
        let target = self.service_address("web").await?;
        Ok(Stream::begin(client, Protocol::Http, target))
    }

    /// What happens in the life of a cluster, with requests all the time.
    pub async fn show(&self, reporter: &mut Reporter) -> Result<(), DemoError> {
        let stream = self.requests().await?;
        let stream = Some(&stream);
        let many = self.many();
        step(
            reporter,
            &format!("scale from 3 to {many} pods"),
            stream,
            true,
            self.scale(many),
        )
        .await?;
        let mut added = String::new();
        step(reporter, "add a node", stream, true, async {
            let node = self.add_node().await?;
            added.clone_from(&node.name);
            Ok(format!("{} has routes to and from all others, and pods", node.name).into())
        })
        .await?;
        step(
            reporter,
            "remove it again",
            stream,
            true,
            self.remove_node(&added),
        )
        .await?;
        step(
            reporter,
            "break the API server for 3 s",
            stream,
            true,
            self.outage(),
        )
        .await?;
        step(
            reporter,
            "stop a proxy, change, start it",
            stream,
            true,
            self.pause_proxy(),
        )
        .await?;
        step(
            reporter,
            "kill every process of Weft",
            stream,
            true,
            self.kill_everything(),
        )
        .await?;
        step(
            reporter,
            &format!("scale from {many} to 3 pods"),
            stream,
            true,
            self.scale(3),
        )
        .await?;
        step(
            reporter,
            "nothing was repaired, nothing failed",
            stream,
            true,
            self.undisturbed(),
        )
        .await
    }

    /// Without any process of Weft: the stand-ins make objects and namespaces, and change nothing of
    /// the network.
    pub async fn stand_ins_alone(
        &self,
        nodes: u8,
        reporter: &mut Reporter,
    ) -> Result<(), DemoError> {
        step(reporter, "nodes and demo without Weft", None, true, async {
            for _ in 0..nodes {
                self.world.add_node().await?;
            }
            for object in objects() {
                create(&self.world.client, &object).await?;
            }
            // They have done all they can do: every pod is made, and no node takes it.
            until("the stand-ins to do their part", async || {
                let pods = self.get("/api/v1/namespaces/default/pods").await?;
                let nodes_there = items(&self.get("/api/v1/nodes").await?).count();
                let made = items(&pods).count();
                Ok(look(
                    made == 4 && nodes_there == usize::from(nodes),
                    format!("{made} pods"),
                ))
            })
            .await?;
            tokio::time::sleep(QUIET).await;
            self.untouched().await?;
            Ok(
                "no route, rule, pod range, NodeNetworkConfig or condition of networking"
                    .to_owned()
                    .into(),
            )
        })
        .await
    }

    async fn untouched(&self) -> Result<(), DemoError> {
        let nodes = self.get("/api/v1/nodes").await?;
        for node in items(&nodes) {
            let (name, ranges) = node_ranges(node);
            let conditions = node["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten();
            let networking =
                conditions.filter(|condition| condition["type"] == "NetworkUnavailable");
            let (rules, routes) = {
                let name = name.clone();
                blocking(move || (kernel::rules(&name), kernel::routes(&name))).await
            };
            let (rules, routes) = match (rules, routes) {
                (Ok(rules), Ok(routes)) => (rules, routes),
                (Err(error), _) | (_, Err(error)) => {
                    return Err(DemoError::Check(error.to_string()));
                }
            };
            if rules.contains("KUBE-")
                || !routes.is_empty()
                || !ranges.is_empty()
                || networking.count() > 0
            {
                return Err(DemoError::Check(format!(
                    "somebody changed the network of {name}"
                )));
            }
        }
        let configs = self.get(CONFIGS).await?;
        if items(&configs).count() > 0 {
            return Err(DemoError::Check(
                "somebody made a NodeNetworkConfig".to_owned(),
            ));
        }
        Ok(())
    }

    async fn make_nodes(&self, count: u8) -> Result<Told, DemoError> {
        for _ in 0..count {
            self.world.add_node().await?;
        }
        self.nodes_ready().await?;
        self.routes_complete().await?;
        let processes = self.world.agents().len();
        let how = match self.world.nodes().first() {
            Some(node) if !node.bridged => {
                "; this kernel has no br_netfilter, so pods get links of their own instead of a bridge"
            }
            _ => "",
        };
        let note = self.world.limits.note;
        let note = note.map(|note| format!("; {note}")).unwrap_or_default();
        Ok(format!("{processes} processes, each started as deploy/ says{how}{note}").into())
    }

    async fn nodes_ready(&self) -> Result<(), DemoError> {
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

    /// Every node has a route to each range of every other, and no more.
    async fn routes_complete(&self) -> Result<(), DemoError> {
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

    async fn apply(&self) -> Result<Told, DemoError> {
        for object in objects() {
            create(&self.world.client, &object).await?;
        }
        self.pods_ready(3).await?;
        self.kernels_have(3).await?;
        let client = self.network_of("client").await?;
        let nodes = self.answering_nodes(&client).await?;
        let mut checked = vec![format!("pod to Service: answers from {}", list(&nodes))];
        for (name, from, protocol, target) in self.questions(&client).await? {
            until("an answer", async || {
                let (from, target) = (from.clone(), target);
                let answer = blocking(move || traffic::ask(&from, protocol, target)).await;
                Ok(match answer {
                    Ok(_) => look(true, String::new()),
                    Err(error) => look(false, format!("{name} at {target}: {error}")),
                })
            })
            .await?;
            checked.push(name.to_owned());
        }
        self.pods_see_pods(&client).await?;
        checked.push("pods see each other's own addresses".to_owned());
        Ok(checked.join(", ").into())
    }

    /// Between pods nobody is hidden behind a node's address, whichever nodes they are on.
    async fn pods_see_pods(&self, client: &std::path::Path) -> Result<(), DemoError> {
        let own = self.get("/api/v1/namespaces/default/pods/client").await?;
        let own = pod_addresses(&own);
        let pods = self.get(WEB_PODS).await?;
        for address in items(&pods).flat_map(pod_addresses) {
            let (from, target) = (client.to_owned(), SocketAddr::new(address, 8080));
            let answer = blocking(move || traffic::ask(&from, Protocol::Http, target)).await?;
            if !own.contains(&answer.client.ip()) {
                let seen = answer.client.ip();
                let what = format!("{} was asked by {own:?} and saw {seen}", answer.pod);
                return Err(DemoError::Check(what));
            }
        }
        Ok(())
    }

    /// Everything that a Service can be asked in other ways.
    async fn questions(
        &self,
        client: &std::path::Path,
    ) -> Result<Vec<(&'static str, PathBuf, Protocol, SocketAddr)>, DemoError> {
        let dual = self
            .get("/api/v1/namespaces/default/services/web-dual")
            .await?;
        let node_port = self
            .get("/api/v1/namespaces/default/services/web-nodeport")
            .await?;
        let number = node_port["spec"]["ports"][0]["nodePort"]
            .as_u64()
            .unwrap_or_default();
        let number = u16::try_from(number).unwrap_or_default();
        let datagrams = self.service_address("web-udp").await?;
        let sixth = dual["spec"]["clusterIPs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|text| text.as_str()?.parse::<IpAddr>().ok())
            .find(IpAddr::is_ipv6);
        let sixth =
            sixth.ok_or_else(|| DemoError::Check("web-dual has no IPv6 address".to_owned()))?;
        let nodes = self.world.nodes();
        let node = nodes
            .last()
            .map(|node| node.name.clone())
            .unwrap_or_default();
        let [address, _] = network::addresses(11);
        let client = client.to_owned();
        Ok(vec![
            ("UDP", client.clone(), Protocol::Udp, datagrams),
            ("IPv6", client, Protocol::Http, (sixth, 80).into()),
            (
                "NodePort",
                network::file(&node),
                Protocol::Http,
                (address, number).into(),
            ),
        ])
    }

    async fn answering_nodes(
        &self,
        client: &std::path::Path,
    ) -> Result<BTreeSet<String>, DemoError> {
        let target = self.service_address("web").await?;
        let pods = self.get(WEB_PODS).await?;
        let wanted: BTreeSet<String> = items(&pods)
            .filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned))
            .collect();
        let mut seen = BTreeSet::new();
        until("an answer from each node", async || {
            let client = client.to_owned();
            let answer = blocking(move || traffic::ask(&client, Protocol::Http, target)).await;
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

    pub(crate) async fn service_address(&self, name: &str) -> Result<SocketAddr, DemoError> {
        let service = self
            .get(&format!("/api/v1/namespaces/default/services/{name}"))
            .await?;
        let address = service["spec"]["clusterIP"]
            .as_str()
            .and_then(|text| text.parse().ok());
        let address: IpAddr =
            address.ok_or_else(|| DemoError::Check(format!("Service {name} has no address")))?;
        Ok((address, 80).into())
    }

    /// The network of a pod, once its kubelet has made it.
    pub(crate) async fn network_of(&self, pod: &str) -> Result<PathBuf, DemoError> {
        let key = key(pod);
        let find = || {
            self.world
                .nodes()
                .iter()
                .find_map(|node| node.kubelet.network_of(&key))
        };
        until("the client pod", async || {
            Ok(look(find().is_some(), String::new()))
        })
        .await?;
        find().ok_or_else(|| DemoError::Check(format!("pod {pod} is gone")))
    }

    async fn scale(&self, replicas: usize) -> Result<Told, DemoError> {
        let updates = self.requests_for_addresses().await?;
        let asked = self.set_replicas(replicas).await?;
        let cost = self.converged(replicas, asked).await?;
        let updates = self.requests_for_addresses().await? - updates;
        let nodes = self.world.nodes().len();
        Ok(Told {
            detail: format!(
                "{replicas} pods ready; {updates} requests for addresses by {nodes} nodes"
            ),
            cost: Some(cost),
        })
    }

    pub(crate) async fn set_replicas(&self, replicas: usize) -> Result<Timestamp, DemoError> {
        let path = "/apis/apps/v1/namespaces/default/deployments/web";
        let change = json!({"spec": {"replicas": replicas}});
        call(&self.world.client, Method::PATCH, path, &change).await?;
        Ok(Timestamp::now())
    }

    /// Waits until pods, slices and the rules of every kernel agree.
    async fn converged(&self, replicas: usize, since: Timestamp) -> Result<Written, DemoError> {
        self.pods_ready(replicas).await?;
        self.slices_have(replicas).await?;
        self.kernels_have(replicas).await?;
        let nodes: Vec<String> = self
            .world
            .nodes()
            .into_iter()
            .map(|node| node.name)
            .collect();
        Ok(self.observer.cost(&nodes, since).await)
    }

    /// How often nodes asked for addresses so far.
    async fn requests_for_addresses(&self) -> Result<i64, DemoError> {
        let configs = self.get(CONFIGS).await?;
        let generations =
            items(&configs).filter_map(|config| config["metadata"]["generation"].as_i64());
        // The first is its creation.
        Ok(generations.map(|generation| generation - 1).sum())
    }

    async fn pods_ready(&self, wanted: usize) -> Result<(), DemoError> {
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

    async fn slices_have(&self, wanted: usize) -> Result<(), DemoError> {
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

    async fn kernels_have(&self, wanted: usize) -> Result<(), DemoError> {
        for Node { name, .. } in self.world.nodes() {
            until("the rules of all kernels", async || {
                let node = name.clone();
                let rules = blocking(move || kernel::rules(&node)).await;
                Ok(match rules {
                    Ok(rules) => {
                        let there = kernel::endpoints(&rules, PORT);
                        look(there == wanted, format!("{there} endpoints on {name}"))
                    }
                    Err(error) => look(false, error.to_string()),
                })
            })
            .await?;
        }
        Ok(())
    }

    async fn add_node(&self) -> Result<Node, DemoError> {
        let many = self.many();
        let node = self.world.add_node().await?;
        self.nodes_ready().await?;
        self.routes_complete().await?;
        // Its first pods: it has the fewest.
        self.set_replicas(many + 4).await?;
        self.pods_ready(many + 4).await?;
        self.kernels_have(many + 4).await?;
        let client = self.network_of("client").await?;
        self.answering_nodes(&client).await?;
        Ok(node)
    }

    async fn remove_node(&self, name: &str) -> Result<Told, DemoError> {
        let many = self.many();
        self.set_replicas(many).await?;
        self.pods_ready(many).await?;
        self.world.remove_node(name).await?;
        self.routes_complete().await?;
        self.pods_ready(many).await?;
        self.kernels_have(many).await?;
        Ok(format!("its pods moved; no route to {name} is left").into())
    }

    async fn outage(&self) -> Result<Told, DemoError> {
        let many = self.many();
        let broken = self.world.break_api(PATIENCE);
        tokio::time::sleep(OUTAGE).await;
        self.world.restore_api(broken);
        let asked = self.set_replicas(many + 3).await?;
        let cost = self.converged(many + 3, asked).await?;
        self.set_replicas(many).await?;
        self.pods_ready(many).await?;
        self.kernels_have(many).await?;
        Ok(Told {
            detail: "Services went on; a change afterwards reached every kernel".to_owned(),
            cost: Some(cost),
        })
    }

    async fn pause_proxy(&self) -> Result<Told, DemoError> {
        let many = self.many();
        let nodes = self.world.nodes();
        let Some(proxy) = nodes.last().and_then(|node| node.agent("proxy").cloned()) else {
            return Err(DemoError::Check("there is no proxy".to_owned()));
        };
        proxy.stop().await;
        self.set_replicas(many + 3).await?;
        self.pods_ready(many + 3).await?;
        proxy.start()?;
        self.kernels_have(many + 3).await?;
        self.set_replicas(many).await?;
        self.pods_ready(many).await?;
        self.kernels_have(many).await?;
        Ok(format!("{} caught up with what it missed", proxy.status().name).into())
    }

    async fn kill_everything(&self) -> Result<Told, DemoError> {
        let many = self.many();
        let agents = self.world.agents();
        let before: Vec<u32> = agents.iter().map(|agent| agent.status().starts).collect();
        for agent in &agents {
            agent.kill();
        }
        for (agent, before) in agents.iter().zip(&before) {
            self.started_again(agent, *before).await?;
        }
        self.set_replicas(many + 2).await?;
        self.pods_ready(many + 2).await?;
        self.kernels_have(many + 2).await?;
        self.set_replicas(many).await?;
        self.pods_ready(many).await?;
        self.kernels_have(many).await?;
        self.routes_complete().await?;
        self.no_address_twice().await?;
        Ok(format!(
            "{} processes came back; no address was given twice",
            agents.len()
        )
        .into())
    }

    /// Waits until a process that was killed runs again.
    pub(crate) async fn started_again(&self, agent: &Agent, before: u32) -> Result<(), DemoError> {
        until("a process to be started again", async || {
            let status = agent.status();
            let again = status.starts > before && status.state == AgentState::Running;
            Ok(look(again, status.name))
        })
        .await
    }

    /// Everything that is known of the cluster agrees: pods, endpoints, the rules and routes of
    /// every kernel; and no address is there twice.
    pub(crate) async fn agrees(&self, replicas: usize) -> Result<(), DemoError> {
        self.nodes_ready().await?;
        self.pods_ready(replicas).await?;
        self.slices_have(replicas).await?;
        self.routes_complete().await?;
        self.kernels_agree().await?;
        self.no_address_twice().await
    }

    /// The rules of every kernel have exactly the endpoints that the slices have, and no Service
    /// that is gone.
    async fn kernels_agree(&self) -> Result<(), DemoError> {
        for Node { name, .. } in self.world.nodes() {
            until(
                "the rules of all kernels to agree with the API",
                async || {
                    let slices = self.get("/apis/discovery.k8s.io/v1/endpointslices").await?;
                    let wanted = ready_targets(&slices);
                    let node = name.clone();
                    let rules = blocking(move || kernel::rules(&node)).await;
                    Ok(match rules.map(|rules| kernel::targets(&rules)) {
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

    pub(crate) async fn node_of(&self, pod: &str) -> Result<String, DemoError> {
        let pod = self
            .get(&format!("/api/v1/namespaces/default/pods/{pod}"))
            .await?;
        Ok(pod["spec"]["nodeName"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// No two pods have an address in common.
    async fn no_address_twice(&self) -> Result<(), DemoError> {
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

    /// What would show that something went wrong and was mended behind our back.
    async fn undisturbed(&self) -> Result<Told, DemoError> {
        self.no_address_twice().await?;
        for Node { name, .. } in self.world.nodes() {
            let node = name.clone();
            let text = blocking(move || kernel::metrics(&node, 10249)).await?;
            for metric in [
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                "weft_proxy_repaired_chains_total",
            ] {
                let value = kernel::metric(&text, metric);
                if value > 0.0 {
                    return Err(DemoError::Check(format!("{metric} is {value} on {name}")));
                }
            }
        }
        Ok("no partial sync failed, no rule was changed by others"
            .to_owned()
            .into())
    }

    async fn get(&self, path: &str) -> Result<Value, kube::Error> {
        call(&self.world.client, Method::GET, path, &Value::Null).await
    }
}

/// An object of the demo.
fn key(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: Some("default".into()),
        name: name.into(),
    }
}

const WEB_PODS: &str = "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-ipv4";
const CONFIGS: &str = "/apis/ipam.weft.dev/v1alpha1/namespaces/kube-system/nodenetworkconfigs";

/// Does something, and tells how it went. Where it is strict, unanswered requests fail a step as
/// anything else does.
pub(crate) async fn step(
    reporter: &mut Reporter,
    name: &str,
    stream: Option<&Stream>,
    strict: bool,
    work: impl Future<Output = Result<Told, DemoError>>,
) -> Result<(), DemoError> {
    reporter.progress(name);
    let begun = Instant::now();
    let result = work.await;
    let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let traffic: Option<Tally> = stream.map(Stream::take);
    let lost = traffic.as_ref().map_or(0, |tally| tally.failed);
    let (detail, cost) = match &result {
        Ok(told) => (told.detail.clone(), told.cost.clone()),
        Err(error) => (crate::report::chain(error), None),
    };
    reporter.step(Step {
        step: name.to_owned(),
        ok: result.is_ok() && (lost == 0 || !strict),
        milliseconds,
        detail,
        written: cost,
        traffic,
    });
    // The next steps rest on this one.
    result.map(drop)
}

/// How something looks, and whether that is what is waited for.
struct Look {
    done: bool,
    last: String,
}

fn look(done: bool, last: String) -> Look {
    Look { done, last }
}

/// Looks until it is there. A refusal of the API is an answer like any other: it may be broken on
/// purpose.
async fn until(
    what: &'static str,
    mut test: impl AsyncFnMut() -> Result<Look, DemoError>,
) -> Result<(), DemoError> {
    let begun = Instant::now();
    loop {
        let seen = match test().await {
            Ok(seen) => seen,
            Err(DemoError::Api(error)) => look(false, error.to_string()),
            Err(error) => return Err(error),
        };
        if seen.done {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            let last = seen.last;
            return Err(DemoError::Late { what, last });
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

fn condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut conditions = conditions.filter(|condition| condition["type"] == kind);
    conditions.any(|condition| condition["status"] == "True")
}

fn node_ranges(node: &Value) -> (String, BTreeSet<String>) {
    let name = node["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let ranges = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    (
        name,
        ranges
            .filter_map(|range| range.as_str().map(str::to_owned))
            .collect(),
    )
}

/// Where the slices of the demo say that requests go: `default/web:http 10.244.0.5:8080`.
fn ready_targets(slices: &Value) -> BTreeSet<String> {
    let mut targets = BTreeSet::new();
    for slice in items(slices) {
        let labels = &slice["metadata"]["labels"];
        if labels["endpointslice.kubernetes.io/managed-by"] != MANAGER {
            continue;
        }
        let service = labels["kubernetes.io/service-name"]
            .as_str()
            .unwrap_or_default();
        let namespace = slice["metadata"]["namespace"].as_str().unwrap_or_default();
        for port in slice["ports"].as_array().into_iter().flatten() {
            let (name, number) = (port["name"].as_str().unwrap_or_default(), &port["port"]);
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            for endpoint in endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true) {
                let address = endpoint["addresses"][0].as_str().unwrap_or_default();
                let address: Option<IpAddr> = address.parse().ok();
                let number = number
                    .as_u64()
                    .and_then(|number| u16::try_from(number).ok());
                if let (Some(address), Some(number)) = (address, number) {
                    let target = SocketAddr::new(address, number);
                    targets.insert(format!("{namespace}/{service}:{name} {target}"));
                }
            }
        }
    }
    targets
}

fn pod_addresses(pod: &Value) -> Vec<IpAddr> {
    let entries = pod["status"]["podIPs"].as_array().into_iter().flatten();
    let texts = entries.filter_map(|entry| entry["ip"].as_str());
    texts.filter_map(|text| text.parse().ok()).collect()
}

fn list(names: &BTreeSet<String>) -> String {
    names
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A web server, a client, and the ways to a server.
fn objects() -> Vec<Value> {
    let container = json!({
        "name": "echo", "image": "stand-in",
        "ports": [{"name": "http", "containerPort": 8080}],
    });
    let service = |name: &str, protocol: &str, spec: Value| {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "selector": {"app": "web"},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": protocol}],
            },
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            service["spec"][key] = value.clone();
        }
        service
    };
    vec![
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": 3, "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [container]},
                },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "client", "namespace": "default", "labels": {"app": "client"}},
            "spec": {"containers": [container]},
        }),
        service("web", "TCP", json!({})),
        service("web-udp", "UDP", json!({})),
        service("web-nodeport", "TCP", json!({"type": "NodePort"})),
        service(
            "web-dual",
            "TCP",
            json!({"ipFamilyPolicy": "RequireDualStack"}),
        ),
    ]
}
