//! Rollouts of Deployments on as many nodes as they have replicas: a model of the Deployment
//! controller with the manifests of `deploy/`.

use serde_json::Value;

use super::manifests::{documents, identity, objects, of_kind, pod, root};

/// A percentage or a number of pods. The default of both fields is 25 %; Kubernetes rounds
/// `maxSurge` up and `maxUnavailable` down.
fn pods(value: &Value, replicas: u64, round_up: bool) -> u64 {
    let percent = match value {
        Value::Number(number) => return number.as_u64().unwrap(),
        Value::String(text) => text.strip_suffix('%').unwrap().parse::<u64>().unwrap(),
        _ => 25,
    };
    let hundredths = replicas * percent;
    if round_up {
        hundredths.div_ceil(100)
    } else {
        hundredths / 100
    }
}

/// Number of pods that fit on these nodes: one each, if pods of a Deployment may not share a node.
fn room(deployment: &Value, nodes: u64) -> u64 {
    let affinity = &pod(deployment)["affinity"]["podAntiAffinity"];
    let terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"].as_array();
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let own = |term: &Value| {
        let selector = term["labelSelector"]["matchLabels"].as_object().unwrap();
        term["topologyKey"] == "kubernetes.io/hostname"
            && selector.iter().all(|(key, value)| labels[key] == *value)
    };
    let alone = terms.is_some_and(|terms| terms.iter().any(own));
    // All use the host's network, where a second pod finds its port taken.
    assert!(alone, "{}: two pods on one node", identity(deployment));
    nodes
}

/// True if a rollout on these nodes ends with all replicas new and available. Pods that have a node
/// are available; new ones get one when an old one has gone.
fn rolls_out(deployment: &Value, replicas: u64, nodes: u64) -> bool {
    let limits = &deployment["spec"]["strategy"]["rollingUpdate"];
    let surge = pods(&limits["maxSurge"], replicas, true);
    let unavailable = pods(&limits["maxUnavailable"], replicas, false);
    let room = room(deployment, nodes);
    let (mut old, mut new) = (replicas, 0);
    loop {
        let before = (old, new);
        new += (replicas + surge - old - new).min(replicas - new);
        let running = old.min(room);
        let available = running + new.min(room - running);
        // Pending pods of the old template go first, then as many as may be unavailable.
        old = running;
        let spare = (available + unavailable).saturating_sub(replicas);
        old -= old.min(spare);
        if (old, new) == before {
            return old == 0 && new == replicas && new <= room;
        }
    }
}

/// The Deployment of the controller.
fn controller(all: &[Value]) -> &Value {
    let mut deployments = of_kind(all, "Deployment");
    let named = |object: &&Value| object["metadata"]["name"] == "weft-controller";
    deployments.find(named).unwrap()
}

/// The number of replicas on one node.
fn replicas_on_one_node() -> u64 {
    let file = root().join("examples/one-node/kustomization.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let [overlay] = &documents(&text)[..] else {
        panic!("{text}");
    };
    let [replicas] = &overlay["replicas"].as_array().unwrap()[..] else {
        panic!("{overlay}");
    };
    assert_eq!(replicas["name"], "weft-controller");
    replicas["count"].as_u64().unwrap()
}

#[test]
fn deployments_can_be_rolled_out_on_as_many_nodes_as_they_have_replicas() {
    let all = objects();
    let mut seen = 0;
    for deployment in of_kind(&all, "Deployment") {
        let replicas = deployment["spec"]["replicas"].as_u64().unwrap();
        for nodes in replicas..=3 {
            let done = rolls_out(deployment, replicas, nodes);
            assert!(done, "{} on {nodes} nodes", identity(deployment));
        }
        // An operator may scale it to the number of nodes.
        for nodes in 1..=3 {
            let done = rolls_out(deployment, nodes, nodes);
            assert!(done, "{}, {nodes} on {nodes}", identity(deployment));
        }
        seen += 1;
    }
    assert_eq!(seen, 2, "controller and routes");
}

#[test]
fn the_example_for_one_node_can_be_rolled_out() {
    let all = objects();
    let controller = controller(&all);
    assert!(rolls_out(controller, replicas_on_one_node(), 1));
    let replicas = controller["spec"]["replicas"].as_u64().unwrap();
    assert!(!rolls_out(controller, replicas, 1), "the example is needed");
}

/// `kubectl drain` evicts a pod if enough stay available.
#[test]
fn budgets_let_a_node_be_drained_wherever_all_replicas_run() {
    let all = objects();
    for budget in of_kind(&all, "PodDisruptionBudget") {
        let unavailable = &budget["spec"]["maxUnavailable"];
        assert!(budget["spec"].get("minAvailable").is_none());
        for replicas in [replicas_on_one_node(), 2, 3] {
            let allowed = pods(unavailable, replicas, true);
            assert_eq!(allowed, 1, "{} of {replicas}", identity(budget));
        }
    }
}
