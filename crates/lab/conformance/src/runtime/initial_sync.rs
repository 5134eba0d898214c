//! Initial sync of a cache: time, processor time, memory and open watches.

use std::collections::BTreeMap;

use anyhow::ensure;
use weft_testkit::bench::median;

use super::{Stage, protocol::Request, subject::Subject};
use crate::outcome::Outcome;

pub(super) const SECONDS: &str = "time to sync";
pub(super) const CPU: &str = "CPU to sync";
pub(super) const SERVER: &str = "CPU of kube-apiserver while syncing";
pub(super) const HEAP: &str = "live heap per Pod";
pub(super) const MEMORY: &str = "RssAnon when synced";
const WATCHES: &str = "open watches of 11 consumers";

const UNITS: [(&str, &str); 6] = [
    (SECONDS, "s"),
    (CPU, "s"),
    (SERVER, "s"),
    (HEAP, "B"),
    (MEMORY, "MB"),
    (WATCHES, ""),
];

/// Syncs every arm's cache in every round. Returns the processes of the last round, still running.
pub(super) async fn measure(
    stage: &Stage<'_>,
    outcome: &mut Outcome,
) -> anyhow::Result<Vec<Subject>> {
    let mut figures: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    let mut kept = Vec::new();
    let mut open = stage.server.open_watches("pods").await?;
    for round in 1..=stage.extent.rounds {
        for arm in &stage.arms {
            let mut subject = Subject::start(arm, &stage.arguments.kubeconfig)?;
            // The server closes the watches of the previous process with a delay.
            stage.server.settle("pods", open).await?;
            for (name, value) in fill(stage, &mut subject).await? {
                figures.entry((name, arm.name)).or_default().push(value);
            }
            if round == stage.extent.rounds {
                kept.push(subject);
                open = stage.server.open_watches("pods").await?;
            } else {
                subject.quit().await?;
            }
        }
    }
    for ((name, arm), values) in figures {
        let unit = UNITS.iter().find(|(known, _)| *known == name);
        let unit = unit.map_or("", |(_, unit)| unit);
        outcome.add(name, stage.extent.size(), unit, arm, median(values));
    }
    Ok(kept)
}

async fn fill(
    stage: &Stage<'_>,
    subject: &mut Subject,
) -> anyhow::Result<[(&'static str, f64); 6]> {
    let watches = stage.server.open_watches("pods").await?;
    let heap = subject.heap().await?;
    let (cpu, server) = (subject.cpu_seconds()?, stage.server.cpu_seconds().await?);
    let seconds = subject.seconds(Request::Cache).await?;
    let memory = subject.anonymous_megabytes()?;
    let (cpu, server) = (
        subject.cpu_seconds()? - cpu,
        stage.server.cpu_seconds().await? - server,
    );
    let count = subject.count().await?;
    ensure!(
        count >= stage.extent.pods,
        "the cache of {} has {count} Pods: expected at least {}",
        subject.name,
        stage.extent.pods
    );
    #[expect(clippy::cast_precision_loss, reason = "figures are approximate")]
    let heap = (subject.heap().await? - heap) / count as f64;
    subject.seconds(Request::Consumers(10)).await?;
    let watches = stage.server.open_watches("pods").await? - watches;
    eprintln!(
        "[runtime] {}: {count} Pods in {seconds:.2} s, CPU {cpu:.2} s, {heap:.0} B per Pod, RssAnon {memory:.1} MB",
        subject.name
    );
    Ok([
        (SECONDS, seconds),
        (CPU, cpu),
        (SERVER, server),
        (HEAP, heap),
        (MEMORY, memory),
        (WATCHES, watches),
    ])
}
