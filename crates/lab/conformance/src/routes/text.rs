//! What a reader has to know.

use std::time::Duration;

use weft_testkit::clouds::HcloudLatency;

use crate::Outcome;

use super::{
    arm::Programs,
    figures,
    trace::{Step, Trace},
};

/// An outcome with everything but figures.
pub(super) fn outcome(
    programs: &Programs,
    traces: &[Trace],
    latency: &HcloudLatency,
    seed: u64,
) -> Outcome {
    let mut outcome = Outcome::new("routes", "Routes at a cloud provider", &figures::columns());
    if let Some(name) = programs.ccm.as_ref().and_then(|ccm| ccm.file_name()) {
        outcome.command = format!("{} CCM={}", outcome.command, name.display());
    }
    outcome.method = method(latency, seed);
    outcome.notes.extend(traces.iter().map(about));
    outcome.notes.extend(peer(programs));
    outcome.notes.extend(FIGURES.map(str::to_owned));
    outcome
}

/// How late the player of a trace was at most.
pub(super) fn lateness(late: Duration) -> String {
    format!(
        "Steps of the traces were at most {:.2} s late; waits count from when a step was made.",
        late.as_secs_f64()
    )
}

fn method(latency: &HcloudLatency, seed: u64) -> String {
    format!(
        "Every arm has a kube-apiserver and a double of Hetzner's API of its own and lives through \
         the same traces (seed {seed}) at the same time: Nodes are written as kubelets and \
         controllers write them, first without range and address, with a heartbeat every 10 s \
         each, and servers come and go at the provider. A read takes {} ms there, a change {} ms \
         and then {} ms during which the network is locked and refuses others, as the real one \
         does. Calls are counted by the double, after a warm-up with all nodes and routes in \
         place. A wait begins when a Node has range, provider ID and address, and ends when the \
         double's table, looked at every 25 ms, has the route, or a watch tells the condition. \
         All programs run with their defaults, but without leader election.",
        latency.list.as_millis(),
        latency.mutation.as_millis(),
        latency.action.as_millis(),
    )
}

fn about(trace: &Trace) -> String {
    let beats = trace.count(|step| matches!(step, Step::Heartbeat(_)));
    let seconds = trace.length.as_secs();
    format!(
        "{}: {}; {seconds} s with {beats} heartbeats.",
        trace.name, trace.about
    )
}

/// What is upstream's in the peer, and what is not.
fn peer(programs: &Programs) -> Vec<String> {
    let limits = "Only the route controller of the cloud-controller-manager runs. Its other \
                  controllers read servers as well, which shares its cache of them and adds calls \
                  that are not routes'.";
    let made = match programs.ccm {
        None => {
            "The cloud-controller-manager is upstream's k8s.io/cloud-provider: command, flags, \
             route controller and queue. The provider below it is ours, on Hetzner's own client \
             hcloud-go with its retries and polling; it makes the calls that \
             hcloud-cloud-controller-manager makes for routes and caches servers as long (10 s for \
             a list, 60 s for a create), without its events and metrics."
        }
        Some(_) => {
            "The cloud-controller-manager was built by whoever ran this and given with `CCM`; \
             nothing in it is ours."
        }
    };
    vec![made.to_owned(), limits.to_owned()]
}

const FIGURES: [&str; 3] = [
    "Of the trace with failures only the wait after one refused create and the routes at the end are \
     judged. Waits are of the routes that came; those that never came are counted beside them and are in \
     no percentile. Where a node's server goes before its Node, the route may go from then on.",
    "The formula for calls: each change once, a poll of its action every half second, and one \
     question about the machine of each node that joins or moves. For waits: 1 s beyond what this \
     trace, with its steps when they were made for weft, takes at a provider that makes one change at a time and is asked every half second \
     whether it is done; after a refused create 5 s beyond that. For routes: those wanted. \
     Upstream's controller does not ask about machines one by one; it reads all of them.",
    "How long changes lock the network decides what waves cost upstream's controller: it makes \
     all changes of a pass at once, tries each five times within two seconds, and \
     then leaves it to the next pass.",
];
