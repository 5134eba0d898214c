//! The demo of `weft-lab up`: builds a small cluster, changes and breaks it, and checks every step.

mod checks;
mod objects;
mod reading;
mod waiting;

use std::{
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
use weft_testserver::{call, create};

use self::{
    checks::list,
    objects::objects,
    reading::{CONFIGS, items},
    waiting::{PATIENCE, look, until},
};
use crate::{
    agent::{Agent, AgentState},
    cost::Observer,
    network,
    node::Node,
    program::blocking,
    report::{Reporter, Step, Written},
    traffic::{self, ProbeProtocol, Stream, Tally},
    world::{World, WorldError},
};

/// Time for which the network must not change in [`Demo::stand_ins_alone`].
const QUIET: Duration = Duration::from_secs(2);
/// Number of pods after scaling up.
pub(crate) const MANY: usize = 36;

/// A step of the demo failed.
#[derive(Debug, Error)]
pub enum DemoError {
    /// A condition was not met in time.
    #[error("timed out after {PATIENCE:?} waiting for {what}: {last}")]
    Late {
        /// The condition.
        what: &'static str,
        /// The last observed state.
        last: String,
    },
    /// A request to the API failed.
    #[error("API request failed")]
    Api(#[from] kube::Error),
    /// A change of the world failed.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A process could not be started, or a request to one failed.
    #[error("cannot start or reach a process")]
    Process(#[from] std::io::Error),
    /// A check failed.
    #[error("{0}")]
    Check(String),
}

/// The demo in a world.
pub struct Demo<'a> {
    world: &'a World,
    /// Duration of the API server's outage.
    outage: Duration,
    observer: Observer,
}

/// Result of a step.
#[derive(Default)]
pub(crate) struct StepOutcome {
    detail: String,
    cost: Option<Written>,
}

impl From<String> for StepOutcome {
    fn from(detail: String) -> Self {
        Self { detail, cost: None }
    }
}

impl<'a> Demo<'a> {
    /// A demo in a world, with an outage of the API server of this duration.
    pub fn new(world: &'a World, outage: Duration) -> Self {
        Self {
            world,
            outage,
            observer: Observer::new(world.cluster(), key("web-ipv4")),
        }
    }

    pub(crate) fn world(&self) -> &World {
        self.world
    }

    /// Creates the nodes and the objects of the demo, and checks that the Services answer.
    pub async fn build(&self, nodes: u8, reporter: &mut Reporter) -> Result<(), DemoError> {
        let making = self.make_nodes(nodes);
        step(
            reporter,
            &format!("{nodes} nodes, ready and routed"),
            None,
            FailedRequests::Fail,
            making,
        )
        .await?;
        let applying = self.apply();
        step(
            reporter,
            "a Deployment and four Services that answer",
            None,
            FailedRequests::Fail,
            applying,
        )
        .await
    }

    /// Starts continuous requests from the client pod to the Service `web`.
    pub async fn requests(&self) -> Result<Stream, DemoError> {
        let client = self.network_of("client").await?;
        let target = self.service_address("web").await?;
        Ok(Stream::begin(client, ProbeProtocol::Http, target))
    }

    /// Runs the steps of the demo, with continuous requests.
    pub async fn show(&self, reporter: &mut Reporter) -> Result<(), DemoError> {
        let stream = self.requests().await?;
        let stream = Some(&stream);
        step(
            reporter,
            &format!("scale from 3 to {MANY} pods"),
            stream,
            FailedRequests::Fail,
            self.scale(MANY),
        )
        .await?;
        let mut added = String::new();
        step(
            reporter,
            "add a node",
            stream,
            FailedRequests::Fail,
            async {
                let (node, cost) = self.add_node().await?;
                added.clone_from(&node.name);
                Ok(StepOutcome {
                    detail: format!("{} has routes to and from all others, and pods", node.name),
                    cost: Some(cost),
                })
            },
        )
        .await?;
        step(
            reporter,
            "remove it again",
            stream,
            FailedRequests::Fail,
            self.remove_node(&added),
        )
        .await?;
        step(
            reporter,
            &format!("break the API server for {} s", self.outage.as_secs()),
            stream,
            FailedRequests::Fail,
            self.outage(),
        )
        .await?;
        step(
            reporter,
            "stop a proxy, change, start it",
            stream,
            FailedRequests::Fail,
            self.pause_proxy(),
        )
        .await?;
        step(
            reporter,
            "kill every process of Weft",
            stream,
            FailedRequests::Fail,
            self.kill_everything(),
        )
        .await?;
        step(
            reporter,
            &format!("scale from {MANY} to 3 pods"),
            stream,
            FailedRequests::Fail,
            self.scale(3),
        )
        .await?;
        step(
            reporter,
            "nothing was repaired, nothing failed",
            stream,
            FailedRequests::Fail,
            self.undisturbed(),
        )
        .await
    }

    /// Checks, without any process of Weft, that the stand-ins create objects and namespaces only and
    /// do not change the network.
    pub async fn stand_ins_alone(
        &self,
        nodes: u8,
        reporter: &mut Reporter,
    ) -> Result<(), DemoError> {
        step(
            reporter,
            "nodes and demo without Weft",
            None,
            FailedRequests::Fail,
            async {
                for _ in 0..nodes {
                    self.world.add_node().await?;
                }
                for object in objects() {
                    create(&self.world.client, &object).await?;
                }
                // All that stand-ins can do: every pod is created, and none is scheduled.
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
                    "no route, rule, pod range, NodeNetworkConfig or networking condition"
                        .to_owned()
                        .into(),
                )
            },
        )
        .await
    }

    async fn make_nodes(&self, count: u8) -> Result<StepOutcome, DemoError> {
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
        Ok(format!("{processes} processes, started with the command lines of deploy/{how}").into())
    }

    async fn apply(&self) -> Result<StepOutcome, DemoError> {
        let begun = Timestamp::now();
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
        Ok(StepOutcome {
            detail: checked.join(", "),
            cost: Some(self.cost(begun).await),
        })
    }

    /// Requests to Services over UDP, IPv6 and NodePort: name, source, protocol and target.
    async fn questions(
        &self,
        client: &std::path::Path,
    ) -> Result<Vec<(&'static str, PathBuf, ProbeProtocol, SocketAddr)>, DemoError> {
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
            ("UDP", client.clone(), ProbeProtocol::Udp, datagrams),
            ("IPv6", client, ProbeProtocol::Http, (sixth, 80).into()),
            (
                "NodePort",
                network::file(&node),
                ProbeProtocol::Http,
                (address, number).into(),
            ),
        ])
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

    /// Waits until a pod has a network namespace and returns its path.
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

    async fn scale(&self, replicas: usize) -> Result<StepOutcome, DemoError> {
        let updates = self.requests_for_addresses().await?;
        let asked = self.set_replicas(replicas).await?;
        let cost = self.converged(replicas, asked).await?;
        let updates = self.requests_for_addresses().await? - updates;
        let nodes = self.world.nodes().len();
        Ok(StepOutcome {
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

    /// Waits until pods, slices and the proxy's table in every kernel agree.
    async fn converged(&self, replicas: usize, since: Timestamp) -> Result<Written, DemoError> {
        self.pods_ready(replicas).await?;
        self.slices_have(replicas).await?;
        self.kernels_have(replicas).await?;
        Ok(self.cost(since).await)
    }

    /// Sum of the proxies' writes since a time.
    async fn cost(&self, since: Timestamp) -> Written {
        let nodes: Vec<String> = self
            .world
            .nodes()
            .into_iter()
            .map(|node| node.name)
            .collect();
        self.observer.cost(&nodes, since).await
    }

    /// Number of requests for addresses that nodes have made.
    async fn requests_for_addresses(&self) -> Result<i64, DemoError> {
        let configs = self.get(CONFIGS).await?;
        let generations =
            items(&configs).filter_map(|config| config["metadata"]["generation"].as_i64());
        // The first generation is the creation of the object.
        Ok(generations.map(|generation| generation - 1).sum())
    }

    async fn add_node(&self) -> Result<(Node, Written), DemoError> {
        let begun = Timestamp::now();
        let node = self.world.add_node().await?;
        self.nodes_ready().await?;
        self.routes_complete().await?;
        // The new node gets them, because it has the fewest pods.
        self.set_replicas(MANY + 4).await?;
        self.pods_ready(MANY + 4).await?;
        self.kernels_have(MANY + 4).await?;
        let client = self.network_of("client").await?;
        self.answering_nodes(&client).await?;
        Ok((node, self.cost(begun).await))
    }

    async fn remove_node(&self, name: &str) -> Result<StepOutcome, DemoError> {
        let begun = Timestamp::now();
        self.set_replicas(MANY).await?;
        self.pods_ready(MANY).await?;
        self.world.remove_node(name).await?;
        self.routes_complete().await?;
        self.pods_ready(MANY).await?;
        self.kernels_have(MANY).await?;
        Ok(StepOutcome {
            detail: format!("its pods moved; no route to {name} is left"),
            cost: Some(self.cost(begun).await),
        })
    }

    async fn outage(&self) -> Result<StepOutcome, DemoError> {
        let broken = self.world.break_api(PATIENCE);
        tokio::time::sleep(self.outage).await;
        self.world.restore_api(broken);
        let asked = self.set_replicas(MANY + 3).await?;
        let cost = self.converged(MANY + 3, asked).await?;
        self.set_replicas(MANY).await?;
        self.pods_ready(MANY).await?;
        self.kernels_have(MANY).await?;
        Ok(StepOutcome {
            detail: "Services kept working; a change afterwards reached every kernel".to_owned(),
            cost: Some(cost),
        })
    }

    async fn pause_proxy(&self) -> Result<StepOutcome, DemoError> {
        let nodes = self.world.nodes();
        let Some(proxy) = nodes.last().and_then(|node| node.agent("proxy").cloned()) else {
            return Err(DemoError::Check("cannot find a proxy process".to_owned()));
        };
        proxy.stop().await;
        self.set_replicas(MANY + 3).await?;
        self.pods_ready(MANY + 3).await?;
        let begun = Timestamp::now();
        proxy.start()?;
        self.kernels_have(MANY + 3).await?;
        self.set_replicas(MANY).await?;
        self.pods_ready(MANY).await?;
        self.kernels_have(MANY).await?;
        Ok(StepOutcome {
            detail: format!("{} caught up with what it missed", proxy.status().name),
            cost: Some(self.cost(begun).await),
        })
    }

    async fn kill_everything(&self) -> Result<StepOutcome, DemoError> {
        let agents = self.world.agents();
        let before: Vec<u32> = agents.iter().map(|agent| agent.status().starts).collect();
        for agent in &agents {
            agent.kill();
        }
        for (agent, before) in agents.iter().zip(&before) {
            self.started_again(agent, *before).await?;
        }
        self.set_replicas(MANY + 2).await?;
        self.pods_ready(MANY + 2).await?;
        self.kernels_have(MANY + 2).await?;
        self.set_replicas(MANY).await?;
        self.pods_ready(MANY).await?;
        self.kernels_have(MANY).await?;
        self.routes_complete().await?;
        self.no_address_twice().await?;
        Ok(format!(
            "{} processes came back; no address was given twice",
            agents.len()
        )
        .into())
    }

    /// Waits until a killed process runs again.
    pub(crate) async fn started_again(&self, agent: &Agent, before: u32) -> Result<(), DemoError> {
        until("a process to be started again", async || {
            let status = agent.status();
            let again = status.starts > before && status.state == AgentState::Running;
            Ok(look(again, status.name))
        })
        .await
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

    async fn get(&self, path: &str) -> Result<Value, kube::Error> {
        call(&self.world.client, Method::GET, path, &Value::Null).await
    }
}

/// Key of an object of the demo.
fn key(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: Some("default".into()),
        name: name.into(),
    }
}

/// The effect of a failed request of the stream on a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedRequests {
    /// The step has failed.
    Fail,
    /// They are only counted.
    Count,
}

/// Runs a step and reports it.
pub(crate) async fn step(
    reporter: &mut Reporter,
    name: &str,
    stream: Option<&Stream>,
    failed_requests: FailedRequests,
    work: impl Future<Output = Result<StepOutcome, DemoError>>,
) -> Result<(), DemoError> {
    reporter.progress(name);
    let begun = Instant::now();
    let result = work.await;
    let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let traffic: Option<Tally> = stream.map(Stream::take);
    let lost = traffic.as_ref().map_or(0, |tally| tally.failed);
    let (detail, cost) = match &result {
        Ok(outcome) => (outcome.detail.clone(), outcome.cost.clone()),
        Err(error) => (weft_model::error_text(error), None),
    };
    reporter.step(Step {
        step: name.to_owned(),
        ok: result.is_ok() && (lost == 0 || failed_requests == FailedRequests::Count),
        milliseconds,
        detail,
        written: cost,
        traffic,
    });
    // The next steps depend on this one.
    result.map(drop)
}
