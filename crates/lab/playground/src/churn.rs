//! Churn: random changes one after the other, with continuous requests and checks after each change.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use http::Method;
use serde_json::json;

use crate::{
    demo::{Demo, DemoError, FailedRequests, MANY, StepOutcome, step},
    report::Reporter,
};
use weft_testserver::{call, create};

/// Fewest and most nodes.
const NODES: std::ops::RangeInclusive<usize> = 2..=5;

/// Options of a churn run.
#[derive(Clone, Copy, Debug)]
pub struct Churn {
    /// Time after which no further change is made.
    pub lasting: Duration,
    /// Seed of the random changes.
    pub seed: u64,
    /// True to kill processes of Weft too. Then lost requests do not fail a step.
    pub kill: bool,
}

/// A random change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Scale(usize),
    AddService(u32),
    RemoveService(u32),
    AddNode,
    RemoveNode,
    Kill(usize),
}

impl Churn {
    fn failed_requests(self) -> FailedRequests {
        if self.kill {
            FailedRequests::Count
        } else {
            FailedRequests::Fail
        }
    }

    /// Makes changes until the time is over, and reports each as a step.
    pub async fn run(self, demo: &Demo<'_>, reporter: &mut Reporter) -> Result<(), DemoError> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let stream = demo.requests().await?;
        let mut services = BTreeSet::new();
        let mut replicas = 3;
        let begun = Instant::now();
        while begun.elapsed() < self.lasting {
            let nodes = demo.world().nodes().len();
            let change = self.choose(&mut random, &services, nodes, MANY);
            match &change {
                Change::AddService(number) => drop(services.insert(*number)),
                Change::RemoveService(number) => drop(services.remove(number)),
                Change::Scale(wanted) => replicas = *wanted,
                _ => {}
            }
            let name = format!("{change:?} (seed {})", self.seed);
            let work = demo.change(&change, replicas);
            step(reporter, &name, Some(&stream), self.failed_requests(), work).await?;
        }
        step(
            reporter,
            "API objects and kernels agree at the end",
            Some(&stream),
            self.failed_requests(),
            async {
                demo.agrees(replicas).await?;
                Ok(StepOutcome::default())
            },
        )
        .await
    }

    fn choose(
        self,
        random: &mut fastrand::Rng,
        services: &BTreeSet<u32>,
        nodes: usize,
        many: usize,
    ) -> Change {
        loop {
            let change = match random.u8(..if self.kill { 12 } else { 8 }) {
                0..4 => Change::Scale(random.usize(1..=many)),
                4 => Change::AddService(random.u32(..1000)),
                5 => match services.iter().nth(random.usize(..services.len().max(1))) {
                    Some(number) => Change::RemoveService(*number),
                    None => continue,
                },
                6 if nodes < *NODES.end() => Change::AddNode,
                7 if nodes > *NODES.start() => Change::RemoveNode,
                8.. => Change::Kill(random.usize(..1000)),
                _ => continue,
            };
            return change;
        }
    }
}

impl Demo<'_> {
    /// Makes a change and waits until API objects and kernels agree again.
    async fn change(&self, change: &Change, replicas: usize) -> Result<StepOutcome, DemoError> {
        match change {
            Change::Scale(replicas) => drop(self.set_replicas(*replicas).await?),
            Change::AddService(number) => {
                let service = json!({
                    "apiVersion": "v1", "kind": "Service",
                    "metadata": {"name": format!("churn-{number}"), "namespace": "default"},
                    "spec": {
                        "selector": {"app": "web"}, "type": "NodePort",
                        "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
                    },
                });
                create(&self.world().client, &service).await?;
            }
            Change::RemoveService(number) => {
                let path = format!("/api/v1/namespaces/default/services/churn-{number}");
                call(
                    &self.world().client,
                    Method::DELETE,
                    &path,
                    &serde_json::Value::Null,
                )
                .await?;
            }
            Change::AddNode => drop(self.world().add_node().await?),
            Change::RemoveNode => {
                // The node of the client stays.
                let nodes = self.world().nodes();
                let client = self.node_of("client").await?;
                let other = nodes.iter().rev().find(|node| node.name != client);
                if let Some(node) = other {
                    self.world().remove_node(&node.name).await?;
                }
            }
            Change::Kill(chosen) => {
                let agents = self.world().agents();
                let agent = &agents[chosen % agents.len()];
                let before = agent.status().starts;
                agent.kill();
                self.started_again(agent, before).await?;
            }
        }
        self.agrees(replicas).await?;
        Ok(StepOutcome::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_changes_and_nodes_stay_within_bounds() {
        let churn = Churn {
            lasting: Duration::ZERO,
            seed: 7,
            kill: true,
        };
        let changes = |seed| -> Vec<Change> {
            let mut random = fastrand::Rng::with_seed(seed);
            let services = BTreeSet::from([1, 2]);
            (0..200)
                .map(|_| churn.choose(&mut random, &services, *NODES.end(), 30))
                .collect()
        };
        assert_eq!(changes(7), changes(7));
        assert_ne!(changes(7), changes(8));
        assert!(!changes(7).contains(&Change::AddNode));
        assert!(changes(7).contains(&Change::RemoveNode));
    }
}
