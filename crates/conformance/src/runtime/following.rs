//! Changes that all caches follow at once.

use std::collections::BTreeMap;

use super::{Stage, filling::median, subject::Subject};
use crate::outcome::Outcome;

pub(super) const CPU: &str = "CPU per 10,000 updates";
const LAG: &str = "last update seen after the last write";
const RATE: &str = "updates followed";

/// Changes Pods in every round, and sees how each follows. Ends the subjects.
#[expect(clippy::cast_precision_loss, reason = "figures are approximate")]
pub(super) async fn measure(
    stage: &Stage<'_>,
    outcome: &mut Outcome,
    mut subjects: Vec<Subject>,
) -> anyhow::Result<()> {
    let changes = stage.extent.changes;
    let mut figures: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for round in 1..=stage.extent.rounds {
        let before = costs(&subjects)?;
        let burst = stage.load.change(changes, round).await?;
        let mut lasts = Vec::new();
        for subject in &mut subjects {
            lasts.push(subject.last_of((changes * round) as u64).await?);
        }
        let after = costs(&subjects)?;
        for (index, subject) in subjects.iter().enumerate() {
            let cpu = (after[index] - before[index]) * 10_000.0 / changes as f64;
            let lag = (lasts[index] - burst.ended).max(0.0) * 1000.0;
            let rate = changes as f64 / (lasts[index] - burst.began);
            for (name, value) in [(CPU, cpu), (LAG, lag), (RATE, rate)] {
                figures.entry((name, subject.name)).or_default().push(value);
            }
            let name = subject.name;
            eprintln!(
                "[runtime] {name}: {rate:.0} updates/s, CPU {cpu:.2} s per 10,000, last after {lag:.0} ms"
            );
        }
    }
    for ((name, arm), values) in figures {
        let unit = match name {
            CPU => "s",
            LAG => "ms",
            _ => "/s",
        };
        outcome.add(name, stage.extent.size(), unit, arm, median(values));
    }
    for subject in subjects {
        subject.quit().await?;
    }
    Ok(())
}

fn costs(subjects: &[Subject]) -> anyhow::Result<Vec<f64>> {
    subjects.iter().map(Subject::cpu_seconds).collect()
}
