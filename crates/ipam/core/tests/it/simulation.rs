//! Randomised simulation of a cluster: faults of every kind, in an order chosen by a seed.

use std::time::Duration;

use weft_ipam::{
    MonitorSettings, ScalingMode,
    allocator::{IpPool, PoolSource},
    scaling::ScalerParameters,
};
use weft_model::{LabelSelector, Random};

use crate::cluster::{Action, Cluster, POOL_LABEL, PodPhase, Shape, Violation};

/// Pod CIDRs for Nodes: one more than there are Nodes.
const CIDRS: [&str; 4] = [
    "10.2.0.0/28",
    "10.2.0.16/28",
    "10.2.0.32/28",
    "10.2.0.48/28",
];

/// Origin of the addresses of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sources {
    /// One pool with ranges.
    One,
    /// Two pools with ranges, and nodes that move between them.
    Two,
    /// Nodes' own CIDRs.
    Own,
    /// Both kinds, and nodes that move between them.
    Mixed,
}

fn number(random: &mut Random, below: u64) -> usize {
    usize::try_from(random.below(below)).unwrap()
}

fn ranges(name: &str, third: u8, dual: bool) -> IpPool {
    let mut ranges = vec![format!("10.{third}.0.0/28").parse().unwrap()];
    let mut reserved = vec![format!("10.{third}.0.0/31").parse().unwrap()];
    if dual {
        ranges.push(format!("fd00:{third}::/124").parse().unwrap());
        reserved.push(format!("fd00:{third}::/127").parse().unwrap());
    }
    let mut pool = IpPool::new(name, PoolSource::Ranges(ranges));
    pool.reserved = reserved;
    pool
}

fn pools(random: &mut Random, sources: Sources) -> Vec<IpPool> {
    let dual = matches!(sources, Sources::One | Sources::Two) && random.below(3) == 0;
    let own = || IpPool::new("own", PoolSource::NodeCidrs);
    let mut pools = match sources {
        Sources::One => vec![ranges("pods", 0, dual)],
        Sources::Two => vec![ranges("labelled", 1, dual), ranges("pods", 0, dual)],
        Sources::Own => vec![own()],
        Sources::Mixed => vec![ranges("labelled", 1, false), own()],
    };
    let block = u8::try_from(random.below(3)).unwrap();
    let cooldown = Duration::from_secs(random.below(2) * 30);
    let scalers = [(2, 50, 8), (4, 50, 8), (1, 100, 6), (3, 0, 8)];
    let (batch, percent, maximum) = scalers[number(random, 4)];
    for pool in &mut pools {
        if pool.name.as_str() == "labelled" {
            pool.nodes = LabelSelector::parse(POOL_LABEL).unwrap();
        }
        (pool.block_v4, pool.block_v6) = (30 + block, 126 + block);
        pool.cooldown = cooldown;
        pool.scaler = ScalerParameters {
            batch_size: Some(batch),
            request_threshold_percent: Some(percent),
            release_threshold_percent: Some(150),
            max_ip_count: Some(maximum),
        };
    }
    pools
}

fn shape(random: &mut Random) -> Shape {
    let sources = match random.below(8) {
        0 | 1 => Sources::Two,
        2 => Sources::Own,
        3 => Sources::Mixed,
        _ => Sources::One,
    };
    let own = matches!(sources, Sources::Own | Sources::Mixed);
    Shape {
        pools: pools(random, sources),
        cidrs: if own { CIDRS.to_vec() } else { Vec::new() },
        nodes: 2 + number(random, 2),
        pods: 5,
        cooldown: Duration::from_secs(random.below(2) * 30),
        monitoring: MonitorSettings {
            mode: match random.below(5) {
                0 => ScalingMode::Requests,
                _ => ScalingMode::Pods,
            },
            stabilisation: Duration::from_secs(random.below(2) * 60),
            reclaim: random.below(4) > 0,
            write_demand: random.below(4) > 0,
        },
        prompt: false,
    }
}

/// The next action chosen by the seed; none if it is not possible now.
fn next(cluster: &Cluster, random: &mut Random) -> Option<Action> {
    let agent = pick(random, cluster.agents.len())?;
    let controller = pick(random, cluster.controllers.len())?;
    let message = |random: &mut Random| pick(random, cluster.messages.len());
    Some(match random.below(200) {
        0..45 => return next_of_pod(cluster, agent, random),
        45..71 => Action::Commit(agent),
        71..79 => return next_of_store(cluster, agent, random),
        79..99 => Action::See(agent),
        99..103 => Action::GiveUp(agent),
        103..107 => Action::Sweep(agent),
        107..137 => Action::Deliver(message(random)?),
        137..141 => Action::DeliverSilently(message(random)?),
        141..145 => Action::Duplicate(message(random)?),
        145..149 => Action::Lose(message(random)?),
        149..163 => Action::SeeConfig(controller, agent),
        163..174 => Action::SeeShards(controller),
        174..192 => Action::Plan(controller, number(random, 3)),
        192 => match cluster.controllers[controller].view.complete {
            true if random.below(2) == 0 => return None,
            true => Action::RestartController(controller),
            false => Action::List(controller),
        },
        193..196 => return next_by_hand(cluster, agent, random),
        _ => Action::Wait([1, 20, 60, 200][pick(random, 4)?]),
    })
}

/// Returns whether a Node exists for an agent, and whether the agent knows it.
fn presence(cluster: &Cluster, agent: usize) -> (bool, bool) {
    let agent = &cluster.agents[agent];
    let node = cluster.api.view.nodes.get(&agent.node.as_str().into());
    (
        node.is_some(),
        node.is_some_and(|node| agent.serves(&node.uid)),
    )
}

fn next_of_pod(cluster: &Cluster, index: usize, random: &mut Random) -> Option<Action> {
    let agent = &cluster.agents[index];
    let pod = pick(random, agent.pods.len())?;
    // Kubelet creates no sandbox before its Node exists, and the daemon learns of that Node sooner
    // than kubelet of its first pod.
    let (_, known) = presence(cluster, index);
    Some(match (random.below(45), &agent.pods[pod].phase) {
        (0..28, PodPhase::Absent | PodPhase::Gone) if known => Action::Ask(index, pod),
        (0..28, PodPhase::Running(_)) if !agent.pods[pod].unknown => Action::AskAgain(index, pod),
        (0..28, PodPhase::Leaving)
        | (28..41, PodPhase::Asking | PodPhase::Running(_) | PodPhase::Leaving) => {
            Action::Leave(index, pod)
        }
        (41..43, PodPhase::Running(_)) => Action::Vanish(index, pod),
        (28..45, PodPhase::Gone) if agent.deleted.contains_key(&agent.key(pod)) => {
            Action::AskLate(index, pod)
        }
        _ => return None,
    })
}

fn next_of_store(cluster: &Cluster, agent: usize, random: &mut Random) -> Option<Action> {
    Some(match random.below(16) {
        0..8 => Action::Crash(agent),
        8 => Action::Reboot(agent),
        9 | 10 if cluster.agents[agent].broken => Action::RecoverStore(agent),
        9 | 10 => Action::FailStore(agent),
        11 => Action::LoseStore(agent),
        _ if cluster.agents[agent].broken => Action::RecoverStore(agent),
        _ => return None,
    })
}

fn next_by_hand(cluster: &Cluster, agent: usize, random: &mut Random) -> Option<Action> {
    let (there, known) = presence(cluster, agent);
    Some(match random.below(18) {
        0 if there => Action::RemoveNode(agent),
        1 if there => Action::ReplaceNode(agent),
        2 if there => Action::DeleteConfig(agent),
        3 if there && random.below(2) == 0 => Action::TearConfig(agent),
        4..8 if there && cluster.api.view.pools.len() > 1 => Action::Relabel(agent),
        _ if there && !known => Action::LearnNode(agent),
        _ if !there => Action::AddNode(agent),
        _ => return None,
    })
}

fn pick(random: &mut Random, count: usize) -> Option<usize> {
    let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
    usize::try_from(random.below(count)).ok()
}

/// One random run with faults, then recovery: the last steps and the violation, if there was one.
fn run(seed: u64, length: usize) -> Result<Cluster, (Violation, Vec<Action>)> {
    let mut random = Random::new(seed);
    let mut cluster = Cluster::new(&shape(&mut random));
    let mut past = Vec::new();
    for _ in 0..length {
        // Many messages in flight only make the run longer.
        if cluster.messages.len() > 12 {
            past.push(Action::Lose(0));
            cluster.messages.remove(0);
        }
        let Some(action) = next(&cluster, &mut random) else {
            continue;
        };
        past.push(action);
        if let Err(violation) = cluster.act(action) {
            return Err((violation, past.split_off(past.len().saturating_sub(40))));
        }
    }
    match cluster.recover() {
        Ok(()) => Ok(cluster),
        Err(violation) => Err((violation, past.split_off(past.len().saturating_sub(40)))),
    }
}

/// Five hundred runs, each with its own seed.
fn runs(first: u64) {
    let mut served = 0;
    let mut published = 0;
    for seed in first..first + 500 {
        match run(seed, 250) {
            Ok(cluster) => {
                let running = cluster.agents.iter().map(|agent| agent.running().count());
                served += running.sum::<usize>();
                published += cluster.names.len();
            }
            Err((violation, past)) => panic!("seed {seed}: {violation}; last {past:?}"),
        }
    }
    assert!(
        served > 1000 && published > 3000,
        "{served} {published}: the runs exercise too little"
    );
}

#[test]
fn random_runs_break_no_rule_1() {
    runs(0);
}

#[test]
fn random_runs_break_no_rule_2() {
    runs(500);
}

#[test]
fn random_runs_break_no_rule_3() {
    runs(1000);
}

#[test]
fn random_runs_break_no_rule_4() {
    runs(1500);
}
