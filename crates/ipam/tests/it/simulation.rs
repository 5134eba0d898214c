//! Bad days: everything that can go wrong, in orders that a seed chooses.

use std::time::Duration;

use weft_ipam::{
    MonitorSettings, ScalingMode,
    allocator::{IpPool, PoolSource},
    scaling::ScalerParameters,
};
use weft_model::Random;

use crate::cluster::{Action, Cluster, Complaint, Life, Shape};

fn shape(random: &mut Random) -> Shape {
    let dual = random.below(3) == 0;
    let mut ranges = vec!["10.0.0.0/28".parse().unwrap()];
    if dual {
        ranges.push("fd00::/124".parse().unwrap());
    }
    let mut pool = IpPool::new("pods", PoolSource::Ranges(ranges));
    pool.reserved.push("10.0.0.0/31".parse().unwrap());
    if dual {
        pool.reserved.push("fd00::/127".parse().unwrap());
    }
    let block = u8::try_from(random.below(3)).unwrap();
    (pool.block_v4, pool.block_v6) = (30 + block, 126 + block);
    pool.cooldown = Duration::from_secs(random.below(2) * 30);
    let scalers = [(2, 50, 8), (4, 50, 8), (1, 100, 6), (3, 0, 8)];
    let (batch, percent, maximum) = scalers[usize::try_from(random.below(4)).unwrap()];
    pool.scaler = ScalerParameters {
        batch_size: Some(batch),
        request_threshold_percent: Some(percent),
        release_threshold_percent: Some(150),
        max_ip_count: Some(maximum),
    };
    Shape {
        pool,
        nodes: 2 + usize::try_from(random.below(2)).unwrap(),
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

/// Something that could happen now, or nothing if the dice show what cannot.
fn next(cluster: &Cluster, random: &mut Random) -> Option<Action> {
    let agent = pick(random, cluster.agents.len())?;
    let controller = pick(random, cluster.controllers.len())?;
    let pod = pick(random, cluster.agents[agent].pods.len())?;
    let life = &cluster.agents[agent].pods[pod].life;
    let mail = |random: &mut Random| pick(random, cluster.mail.len());
    let there = cluster
        .api
        .view
        .nodes
        .contains_key(&cluster.agents[agent].node.as_str().into());
    Some(match random.below(100) {
        0..14 => match life {
            Life::Absent | Life::Gone if there => Action::Ask(agent, pod),
            Life::Running(_) => Action::AskAgain(agent, pod),
            Life::Leaving => Action::Leave(agent, pod),
            _ => return None,
        },
        14..22 => match life {
            Life::Asking | Life::Running(_) | Life::Leaving => Action::Leave(agent, pod),
            _ => return None,
        },
        22..23 => match life {
            Life::Running(_) => Action::Vanish(agent, pod),
            _ => return None,
        },
        23..36 => Action::Commit(agent),
        36..38 => Action::Crash(agent),
        38 => match random.below(4) {
            0 => Action::Reboot(agent),
            _ => return None,
        },
        39..49 => Action::See(agent),
        49..51 => Action::GiveUp(agent),
        51..53 => Action::Sweep(agent),
        53..68 => Action::Deliver(mail(random)?),
        68..70 => Action::DeliverSilently(mail(random)?),
        70..72 => Action::Duplicate(mail(random)?),
        72..74 => Action::Lose(mail(random)?),
        74..81 => Action::SeeConfig(controller, agent),
        81..87 => Action::SeeShards(controller),
        87..97 => Action::Plan(controller, usize::try_from(random.below(3)).unwrap()),
        97 => match (there, random.below(6)) {
            (true, 0) => Action::RemoveNode(agent),
            (false, _) => Action::AddNode(agent),
            _ => return None,
        },
        _ => Action::Wait([1, 20, 60, 200][pick(random, 4)?]),
    })
}

fn pick(random: &mut Random, count: usize) -> Option<usize> {
    let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
    usize::try_from(random.below(count)).ok()
}

/// One bad day and a good evening: the last steps of it and what was wrong, if anything was.
fn day(seed: u64, length: usize) -> Result<Cluster, (Complaint, Vec<Action>)> {
    let mut random = Random::new(seed);
    let mut cluster = Cluster::new(&shape(&mut random));
    let mut past = Vec::new();
    for _ in 0..length {
        // Too much mail at once only makes the day longer.
        if cluster.mail.len() > 12 {
            past.push(Action::Lose(0));
            cluster.mail.remove(0);
        }
        let Some(action) = next(&cluster, &mut random) else {
            continue;
        };
        past.push(action);
        if let Err(complaint) = cluster.act(action) {
            return Err((complaint, past.split_off(past.len().saturating_sub(40))));
        }
    }
    let evening = cluster.evening();
    evening
        .map_err(|complaint| (complaint, vec![]))
        .map(|()| cluster)
}

/// Five hundred days, each of its own seed.
fn days(first: u64) {
    let mut served = 0;
    let mut published = 0;
    for seed in first..first + 500 {
        match day(seed, 250) {
            Ok(cluster) => {
                let running = cluster.agents.iter().map(|agent| agent.running().count());
                served += running.sum::<usize>();
                published += cluster.names.len();
            }
            Err((complaint, past)) => panic!("seed {seed}: {complaint}; last {past:#?}"),
        }
    }
    assert!(
        served > 1000 && published > 3000,
        "{served} {published}: the days are too quiet"
    );
}

#[test]
fn no_bad_day_breaks_a_rule() {
    days(0);
}

#[test]
fn no_other_bad_day_breaks_a_rule() {
    days(500);
}

#[test]
fn nor_does_a_third_kind_of_day() {
    days(1000);
}

#[test]
fn nor_a_fourth() {
    days(1500);
}
