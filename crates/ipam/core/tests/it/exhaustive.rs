//! Bounded model checking: every order of events in a small cluster, by breadth-first search over
//! the real pool, monitor and allocator. The state space is infinite: two controllers that do not
//! see each other's writes can go on claiming and freeing under new names for as long as one of
//! them has a stale cache.
//!
//! The bounds, beyond which only the random runs of `simulation` look: two nodes with three or four
//! pods each; six addresses in three blocks, no cooldown; two controllers, each with its own cache,
//! and at most two of their writes in flight; every step of a daemon is durable at once; no Node is
//! added or removed; one of the pods that could be added or removed next is. Eight steps without a
//! fault, five with one or two, six with one while a block is released. One state in 64 is brought
//! to quiescence.
//!
//! The search is our own, because all it needs is a set and a queue; `stateright` would bring a web
//! server, a thread pool and about forty crates for the same, and requires its own actors and
//! network.

use std::{
    collections::{HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use weft_ipam::{
    MonitorSettings, ScalingMode,
    allocator::{IpPool, PoolSource},
    scaling::ScalerParameters,
};

use crate::cluster::{Action, Cluster, Message, PodPhase, Shape};

/// Six addresses in three blocks; batches of two, half of one kept free.
fn small(nodes: usize, pods: usize) -> Cluster {
    let range = "10.0.0.0/29".parse().unwrap();
    let mut pool = IpPool::new("p", PoolSource::Ranges(vec![range]));
    pool.reserved = vec!["10.0.0.0/31".parse().unwrap()];
    pool.block_v4 = 31;
    pool.cooldown = Duration::ZERO;
    pool.scaler = ScalerParameters {
        batch_size: Some(2),
        request_threshold_percent: Some(50),
        release_threshold_percent: Some(150),
        max_ip_count: Some(6),
    };
    Cluster::new(&Shape {
        pools: vec![pool],
        cidrs: Vec::new(),
        nodes,
        pods,
        cooldown: Duration::ZERO,
        monitoring: MonitorSettings {
            mode: ScalingMode::Pods,
            stabilisation: Duration::ZERO,
            reclaim: true,
            write_demand: false,
        },
        prompt: true,
    })
}

/// A cluster with the remaining budget of faults and writes.
#[derive(Clone)]
struct Node {
    cluster: Cluster,
    faults: u32,
    depth: u32,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Two clusters that no participant can tell apart have the same fingerprint.
fn fingerprint(node: &Node) -> u128 {
    let Cluster {
        api,
        agents,
        controllers,
        messages,
        ..
    } = &node.cluster;
    let half = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        (seed, node.faults).hash(&mut hasher);
        (&api.view.configs, &api.view.shards, &api.view.exhausted).hash(&mut hasher);
        for agent in agents {
            let own = (
                &agent.pool,
                &agent.monitor,
                &agent.seen,
                &agent.pods,
                agent.process,
            );
            own.hash(&mut hasher);
        }
        // Neither the identity of the two controllers nor the order of messages matters.
        let mut minds: Vec<u64> = controllers
            .iter()
            .map(|mind| hash(&(&mind.view.configs, &mind.view.shards, &mind.view.exhausted)))
            .collect();
        minds.sort_unstable();
        let mut hashes: Vec<u64> = messages.iter().map(hash).collect();
        hashes.sort_unstable();
        (minds, hashes).hash(&mut hasher);
        hasher.finish()
    };
    (u128::from(half(1)) << 64) | u128::from(half(2))
}

/// Possible next actions, and whether each is a fault.
fn actions(node: &Node) -> Vec<(Action, bool)> {
    let cluster = &node.cluster;
    let mut found = Vec::new();
    for (index, agent) in cluster.agents.iter().enumerate() {
        let absent = agent
            .pods
            .iter()
            .position(|pod| pod.phase == PodPhase::Absent && pod.sandbox == 0);
        found.extend(absent.map(|pod| (Action::Ask(index, pod), false)));
        let running = agent
            .pods
            .iter()
            .position(|pod| matches!(pod.phase, PodPhase::Running(_)));
        found.extend(running.map(|pod| (Action::Leave(index, pod), false)));
        let config = cluster.api.view.configs.get(&agent.node.as_str().into());
        if config != agent.seen.as_ref() {
            found.push((Action::See(index), false));
        }
        if agent.monitor.in_flight().is_some() {
            found.push((Action::GiveUp(index), true));
        }
        found.push((Action::Crash(index), true));
        for (controller, mind) in cluster.controllers.iter().enumerate() {
            if config != mind.view.configs.get(&agent.node.as_str().into()) {
                found.push((Action::SeeConfig(controller, index), false));
            }
        }
    }
    let writes = |message: &&Message| matches!(message, Message::Write(_));
    let under_way = cluster.messages.iter().filter(writes).count();
    for (controller, mind) in cluster.controllers.iter().enumerate() {
        if mind.view.shards != cluster.api.view.shards {
            found.push((Action::SeeShards(controller), false));
        }
        if under_way < 2 {
            let writes = cluster.clone().planned(controller).unwrap();
            let new = |message: &Message| !cluster.messages.contains(message);
            for (index, write) in writes.into_iter().enumerate() {
                if new(&Message::Write(write)) {
                    found.push((Action::Plan(controller, index), false));
                }
            }
        }
    }
    for index in 0..cluster.messages.len() {
        found.push((Action::Deliver(index), false));
        found.push((Action::DeliverSilently(index), true));
        found.push((Action::Duplicate(index), true));
        found.push((Action::Lose(index), true));
    }
    found.retain(|(_, mishap)| !mishap || node.faults > 0);
    found
}

/// Result of a search.
#[derive(Debug)]
struct Found {
    states: usize,
    depth: u32,
    rests: usize,
}

/// Visits every state within this many steps and faults.
fn search(cluster: Cluster, faults: u32, depth: u32) -> Found {
    let start = Node {
        cluster,
        faults,
        depth: 0,
    };
    let mut seen = HashSet::from([fingerprint(&start)]);
    let mut open = VecDeque::from([start]);
    let mut found = Found {
        states: 1,
        depth: 0,
        rests: 0,
    };
    while let Some(node) = open.pop_front() {
        found.depth = found.depth.max(node.depth);
        for (action, mishap) in actions(&node) {
            let mut next = node.clone();
            next.depth += 1;
            next.faults -= u32::from(mishap);
            if let Err(violation) = next.cluster.act(action) {
                panic!("{violation} after {action:?} at depth {}", next.depth);
            }
            let print = fingerprint(&next);
            if !seen.insert(print) {
                continue;
            }
            found.states += 1;
            // Every state must reach quiescence; this is checked for a sample.
            if print.is_multiple_of(64) {
                let mut rest = next.cluster.clone();
                if let Err(violation) = rest.settle() {
                    panic!(
                        "{violation} at rest after {action:?} at depth {}",
                        next.depth
                    );
                }
                found.rests += 1;
            }
            if next.depth < depth {
                open.push_back(next);
            }
        }
    }
    found
}

/// A quiescent cluster with this many pods on each node.
fn rested(pods: [usize; 2]) -> Cluster {
    filled(small(2, 3), pods)
}

/// A node has just offered a block, and the write of the offer is in flight.
fn releasing() -> Cluster {
    let mut cluster = filled(small(2, 4), [2, 0]);
    cluster.act(Action::Leave(0, 0)).unwrap();
    cluster.act(Action::See(0)).unwrap();
    assert_eq!(cluster.messages.len(), 1);
    cluster
}

fn filled(mut cluster: Cluster, pods: [usize; 2]) -> Cluster {
    cluster.settle().unwrap();
    for (agent, count) in pods.into_iter().enumerate() {
        for pod in 0..count {
            cluster.act(Action::Ask(agent, pod)).unwrap();
        }
    }
    cluster.settle().unwrap();
    cluster
}

/// A full node next to an empty one: addresses have to move in every run.
const BUSY: [[usize; 2]; 3] = [[0, 0], [2, 0], [3, 1]];

fn search_all(faults: u32, depth: u32, least: usize) {
    let mut states = 0;
    let mut rests = 0;
    for pods in BUSY {
        let found = search(rested(pods), faults, depth);
        assert_eq!(found.depth + 1, depth, "{pods:?}: {found:?}");
        states += found.states;
        rests += found.rests;
    }
    assert!(
        states > least && rests > 20,
        "{states} states, {rests} at rest"
    );
}

#[test]
fn no_order_of_events_breaks_a_rule() {
    search_all(0, 8, 5_000);
}

#[test]
fn no_order_of_events_with_a_fault_breaks_a_rule() {
    search_all(1, 5, 2_000);
}

#[test]
fn no_order_of_events_with_two_faults_breaks_a_rule() {
    search_all(2, 5, 6_000);
}

#[test]
fn no_order_of_events_while_a_block_is_released_breaks_a_rule() {
    let found = search(releasing(), 1, 6);
    assert!(found.states > 3_000, "{found:?}");
}
