//! Runs a check: creates the objects, waits for the probes, asks, and removes everything.

use std::time::Duration;

use kube::Client;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use weft_model::error_text;

use crate::{
    cluster::Cluster,
    objects::{self, CLIENT, HOST, NEIGHBOUR, OTHER, PODS, is_ours},
    plan::{Check, Item, Node, Origin, Probe, Setup},
    verdict::{Report, Row, Verdict},
};

/// Polling interval.
const LOOK: Duration = Duration::from_millis(250);
/// Time for which a failing check is repeated: rules follow Services with a delay.
const SETTLE: Duration = Duration::from_secs(10);
/// Time limit of a request to a probe; the probe gives up earlier by itself.
const PATIENCE: Duration = Duration::from_secs(25);
/// Time limit of the removal.
const REMOVAL: Duration = Duration::from_secs(90);

/// Options of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Namespace to create and remove.
    pub namespace: String,
    /// Image with this program, for the probes.
    pub image: String,
    /// Keep the namespace at the end.
    pub keep: bool,
    /// Time for the probes to become ready.
    pub timeout: Duration,
}

/// Failure to produce a report.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The namespace exists and was not created by a check.
    #[error(
        "namespace {0} was not created by a check (it has no label \
         app.kubernetes.io/managed-by=weft-check); choose another with --namespace"
    )]
    Foreign(String),
    /// No node is ready for probes.
    #[error("no node is ready")]
    NoNode,
    /// The probes did not become ready in time.
    #[error("the probes are not ready after {} s: {why}", waited.as_secs())]
    NotReady {
        /// Time waited.
        waited: Duration,
        /// Reasons of the pods that are not ready.
        why: String,
    },
    /// The namespace of an earlier check could not be removed in time.
    #[error("namespace {0} of an earlier check is still being removed")]
    Remains(String),
    /// A Service without cluster IP or NodePort.
    #[error("Service {0} has no address or port")]
    Service(&'static str),
    /// An API request failed.
    #[error("cannot {0}")]
    Api(&'static str, #[source] kube::Error),
    /// The caller cancelled the run.
    #[error("interrupted")]
    Interrupted,
}

/// Checks a cluster and removes what it created, also after a failure or an interruption.
///
/// Progress goes to `say`, a few words at a time.
pub async fn run(
    client: &Client,
    options: &CheckOptions,
    stop: &CancellationToken,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Report, CheckError> {
    let cluster = Cluster {
        client,
        namespace: &options.namespace,
    };
    // Nothing is removed before the namespace is known to be a check's.
    tokio::select! {
        () = stop.cancelled() => return Err(CheckError::Interrupted),
        ours = claim(&cluster, say) => ours?,
    }
    let checked = tokio::select! {
        () = stop.cancelled() => Err(CheckError::Interrupted),
        checked = check(&cluster, options, say) => checked,
    };
    if options.keep {
        say(&format!("namespace {} is kept", options.namespace));
        return checked;
    }
    say(&format!("removing namespace {}", options.namespace));
    let removed = gone(&cluster).await;
    let report = checked?;
    // A failure of the check takes precedence over one of the removal.
    removed?;
    Ok(report)
}

/// Makes sure that the namespace is free: removes one of an earlier check, refuses any other.
async fn claim(cluster: &Cluster<'_>, say: &(dyn Fn(&str) + Sync)) -> Result<(), CheckError> {
    let found = cluster.found().await;
    match found.map_err(|error| CheckError::Api("get the namespace", error))? {
        None => Ok(()),
        Some(namespace) if is_ours(&namespace) => {
            say("removing the namespace of an earlier check");
            gone(cluster).await
        }
        Some(_) => Err(CheckError::Foreign(cluster.namespace.to_owned())),
    }
}

/// Deletes the namespace and waits until it is gone.
async fn gone(cluster: &Cluster<'_>) -> Result<(), CheckError> {
    let begun = Instant::now();
    loop {
        let removed = cluster.remove().await;
        if removed.map_err(|error| CheckError::Api("remove the namespace", error))? {
            return Ok(());
        }
        if begun.elapsed() > REMOVAL {
            return Err(CheckError::Remains(cluster.namespace.to_owned()));
        }
        sleep(LOOK).await;
    }
}

async fn check(
    cluster: &Cluster<'_>,
    options: &CheckOptions,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Report, CheckError> {
    let nodes = cluster.nodes().await;
    let nodes = nodes.map_err(|error| CheckError::Api("list nodes", error))?;
    let nodes = objects::choose_nodes(&nodes);
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    say(&format!("putting probes on {}", names.join(" and ")));
    let services = make(cluster, options, &nodes).await?;
    let probes = ready(cluster, options.timeout, say).await?;
    let items = setup(nodes, &services, &probes)?.plan();
    say(&format!("running {} checks", items.len()));
    let rows = items.into_iter().map(|item| row(cluster, item));
    Ok(Report::new(names, futures::future::join_all(rows).await))
}

/// Services as the API returned them.
struct Services {
    cluster: serde_json::Value,
    udp: serde_json::Value,
    sticky: serde_json::Value,
    node: serde_json::Value,
}

async fn make(
    cluster: &Cluster<'_>,
    options: &CheckOptions,
    nodes: &[Node],
) -> Result<Services, CheckError> {
    let first = nodes.first().ok_or(CheckError::NoNode)?;
    let other = nodes.get(1).unwrap_or(first);
    let failed = |what| move |error| CheckError::Api(what, error);
    let made = cluster.make_namespace().await;
    made.map_err(failed("create the namespace"))?;
    let made = cluster.make("serviceaccounts", &objects::account()).await;
    made.map_err(failed("create the service account"))?;
    for name in PODS {
        let node = if name == OTHER { other } else { first };
        let pod = objects::pod(name, &node.name, &options.image);
        let made = cluster.make("pods", &pod).await;
        made.map_err(failed("create a probe"))?;
    }
    let service = async |object| {
        let made = cluster.make("services", &object).await;
        made.map_err(failed("create a Service"))
    };
    Ok(Services {
        cluster: service(objects::cluster_service()).await?,
        udp: service(objects::udp_service()).await?,
        sticky: service(objects::sticky_service()).await?,
        node: service(objects::node_service()).await?,
    })
}

/// Waits until every probe is ready and answers with its own name.
async fn ready(
    cluster: &Cluster<'_>,
    limit: Duration,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Vec<Probe>, CheckError> {
    let begun = Instant::now();
    let mut reported = usize::MAX;
    loop {
        let pods = cluster.pods().await;
        let pods = pods.map_err(|error| CheckError::Api("list the probes", error))?;
        let mut probes = Vec::new();
        let mut troubles = Vec::new();
        for pod in &pods {
            match objects::probe(pod) {
                None => troubles.push(objects::trouble(pod)),
                Some(probe) => match identify(cluster, &probe.name).await {
                    Ok(()) => probes.push(probe),
                    Err(error) => {
                        troubles.push(format!("{}: {}", probe.name, error_text(&error)));
                    }
                },
            }
        }
        if reported != probes.len() {
            reported = probes.len();
            say(&format!("{reported} of {} probes are ready", PODS.len()));
        }
        if probes.len() == PODS.len() {
            return Ok(probes);
        }
        if begun.elapsed() > limit {
            return Err(CheckError::NotReady {
                waited: limit,
                why: troubles.join("; "),
            });
        }
        sleep(LOOK).await;
    }
}

/// Failure of a probe to answer with its own name.
#[derive(Debug, Error)]
enum ProbeError {
    #[error("it answers as {0}")]
    OtherName(String),
    #[error("cannot reach it")]
    Api(#[source] kube::Error),
    #[error("no answer in time")]
    Timeout,
}

/// Checks that a probe answers through the API server with its own name.
async fn identify(cluster: &Cluster<'_>, pod: &str) -> Result<(), ProbeError> {
    match timeout(PATIENCE, cluster.identify(pod)).await {
        Ok(Ok(answer)) if answer.pod == pod => Ok(()),
        Ok(Ok(answer)) => Err(ProbeError::OtherName(answer.pod)),
        Ok(Err(error)) => Err(ProbeError::Api(error)),
        Err(_) => Err(ProbeError::Timeout),
    }
}

fn setup(nodes: Vec<Node>, services: &Services, probes: &[Probe]) -> Result<Setup, CheckError> {
    let named = |name: &str| {
        let found = probes.iter().find(|probe| probe.name == name);
        found.cloned().ok_or(CheckError::NotReady {
            waited: Duration::ZERO,
            why: format!("{name} is not there"),
        })
    };
    let address = |service: &serde_json::Value, name| {
        let addresses = objects::cluster_addresses(service);
        addresses.first().copied().ok_or(CheckError::Service(name))
    };
    let mut nodes = nodes.into_iter();
    Ok(Setup {
        client: named(CLIENT)?,
        neighbour: named(NEIGHBOUR)?,
        other: named(OTHER)?,
        node: nodes.next().ok_or(CheckError::NoNode)?,
        other_node: nodes.next(),
        service: objects::cluster_addresses(&services.cluster),
        udp_service: address(&services.udp, "udp")?,
        sticky_service: address(&services.sticky, "sticky")?,
        node_port: objects::node_port(&services.node).ok_or(CheckError::Service("nodeport"))?,
    })
}

async fn row(cluster: &Cluster<'_>, item: Item) -> Row {
    let check = match item {
        Item::NotApplicable { name, why } => return Row::not_applicable(name, why),
        Item::Check(check) => check,
    };
    let begun = Instant::now();
    loop {
        let row = judged(cluster, &check).await;
        if row.verdict != Verdict::Failed || begun.elapsed() > SETTLE {
            return row;
        }
        sleep(LOOK).await;
    }
}

async fn judged(cluster: &Cluster<'_>, check: &Check) -> Row {
    let origin = match check.origin {
        Origin::Pod => CLIENT,
        Origin::Node => HOST,
    };
    match timeout(PATIENCE, cluster.ask(origin, &check.question)).await {
        Ok(Ok(asked)) => Row::judge(check, &asked),
        Ok(Err(error)) => Row::unreachable(check, &error_text(&error)),
        Err(_) => Row::unreachable(check, "no answer in time"),
    }
}
