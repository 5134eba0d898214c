//! Method and notes of the routes comparison, for the report.

use std::time::Duration;

use weft_testkit::clouds::HcloudLatency;

use crate::Outcome;

use super::{
    arm::Programs,
    figures,
    trace::{Step, Trace},
};

/// An outcome with method and notes, without figures.
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

/// Note on the largest delay of a step.
pub(super) fn lateness(late: Duration) -> String {
    format!(
        "Steps of the traces were at most {:.2} s late; waits count from when a step was made.",
        late.as_secs_f64()
    )
}

fn method(latency: &HcloudLatency, seed: u64) -> String {
    format!(
        "Every arm has its own kube-apiserver and its own double of Hetzner's API. All arms run through \
         the same traces (seed {seed}) at the same time: Nodes are written as kubelets and \
         controllers write them, first without range and address, with a heartbeat every 10 s \
         each, and servers are added and removed at the provider. There a read takes {} ms and a \
         change {} ms plus {} ms during which the network is locked and refuses other changes, as \
         the real one does. The double counts calls, after a warm-up with all nodes and routes in \
         place. A wait begins when a Node has range, provider ID and address. It ends when the \
         double, read every 25 ms, has the route, or when a watch shows the condition. All programs \
         run with their defaults, but without leader election.",
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

/// Notes on the parts of the peer that are upstream's code and those that are not.
fn peer(programs: &Programs) -> Vec<String> {
    let limits = "Only the route controller of the cloud-controller-manager runs. Its other \
                  controllers read servers as well, which shares its cache of them and adds calls \
                  that are not routes'.";
    let made = match programs.ccm {
        None => {
            "The cloud-controller-manager is upstream's k8s.io/cloud-provider: command, flags, \
             route controller and queue. Its provider is Weft's own, with Hetzner's client \
             hcloud-go with its retries and polling; it makes the calls that \
             hcloud-cloud-controller-manager makes for routes and caches servers as long (10 s for \
             a list, 60 s for a create), without its events and metrics."
        }
        Some(_) => {
            "The cloud-controller-manager was given with `CCM`; nothing in it is Weft's code."
        }
    };
    vec![made.to_owned(), limits.to_owned()]
}

const FIGURES: [&str; 3] = [
    "Of the trace with failures only the wait after one refused create and the routes at the end are \
     judged. Percentiles of waits cover routes that were created; routes that were never created are \
     counted separately. If a node's server is removed before its Node, the route may be removed from \
     then on.",
    "The formula for calls: each change once, a poll of its action every half second, and one lookup of \
     the machine of each node that joins or changes its address. For waits: 1 s more than this trace, \
     with its steps at the times at which they were made for weft, takes at a provider that makes one \
     change at a time and is polled every half second; after a refused create 5 s more. For routes: the \
     number of desired routes. Upstream's controller does not look up machines one by one; it lists all \
     of them.",
    "The cost of waves for upstream's controller depends on how long a change locks the network: it \
     makes all changes of a pass at once, tries each five times within two seconds, and then leaves it \
     to the next pass.",
];
