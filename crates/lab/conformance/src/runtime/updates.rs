//! Updates that all caches receive at the same time: cost, lag and rate.

use super::{Stage, subject::Subject};
use crate::outcome::Outcome;

pub(super) const CPU: &str = "CPU per 10,000 updates";
const LAG: &str = "last update seen after the last write";
/// Limited by the writers, which are the same for all.
const RATE: &str = "updates followed, as many as were written";
/// Updates per second that each could process if the server sent them as fast.
const CAPACITY: &str = "updates for a second of processor time";

/// Patches Pods and measures how each cache follows. Ends the subjects.
#[expect(clippy::cast_precision_loss, reason = "figures are approximate")]
pub(super) async fn measure(
    stage: &Stage<'_>,
    outcome: &mut Outcome,
    mut subjects: Vec<Subject>,
) -> anyhow::Result<()> {
    let (changes, size) = (stage.extent.changes, stage.extent.size());
    let before = costs(&subjects)?;
    let burst = stage.load.change(changes).await?;
    let mut lasts = Vec::new();
    for subject in &mut subjects {
        lasts.push(subject.last_of(changes as u64).await?);
    }
    let after = costs(&subjects)?;
    for (index, subject) in subjects.iter().enumerate() {
        let name = subject.name;
        let cpu = (after[index] - before[index]) * 10_000.0 / changes as f64;
        let lag = (lasts[index] - burst.ended).max(0.0) * 1000.0;
        let rate = changes as f64 / (lasts[index] - burst.began);
        eprintln!(
            "[runtime] {name}: {rate:.0} updates/s, CPU {cpu:.2} s per 10,000, last after {lag:.0} ms"
        );
        outcome.add(CPU, size, "s", name, cpu);
        outcome.add(LAG, size, "ms", name, lag);
        outcome.add(RATE, size, "/s", name, rate);
        if cpu > 0.0 {
            outcome.add(CAPACITY, size, "/s", name, 10_000.0 / cpu);
        }
    }
    for subject in subjects {
        subject.quit().await?;
    }
    Ok(())
}

fn costs(subjects: &[Subject]) -> anyhow::Result<Vec<f64>> {
    subjects.iter().map(Subject::cpu_seconds).collect()
}
