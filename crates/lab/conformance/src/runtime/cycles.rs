//! Leak measurement: heap, tasks and watches left after adding and removing informers and after
//! starting and stopping controllers.

use super::{Extent, OURS, Stage, THEIRS, protocol::Request, subject::Subject};
use crate::outcome::{Claim, Outcome, Target};

/// The repeated operation.
#[derive(Debug, Clone, Copy)]
enum Cycle {
    Informers,
    Controllers,
}

const WARM_UP: u32 = 10;

impl Cycle {
    const ALL: [Self; 2] = [Self::Informers, Self::Controllers];

    fn request(self, count: u32) -> Request {
        match self {
            Self::Informers => Request::Cycle(count),
            Self::Controllers => Request::Controllers(count),
        }
    }

    /// The resource whose watches open and close.
    fn resource(self) -> &'static str {
        match self {
            Self::Informers => "configmaps",
            Self::Controllers => "secrets",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Informers => "informers added and removed",
            Self::Controllers => "controllers started and stopped",
        }
    }

    fn heap(self) -> String {
        format!("heap after cycles to heap after {WARM_UP}, {}", self.name())
    }

    fn tasks(self) -> String {
        format!(
            "goroutines or tasks after cycles to after {WARM_UP}, {}",
            self.name()
        )
    }
}

/// Measures both cycles, each in a process of its own.
pub(super) async fn measure(stage: &Stage<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    for cycle in Cycle::ALL {
        for arm in stage
            .arms
            .iter()
            .filter(|arm| [THEIRS, OURS].contains(&arm.name))
        {
            let mut subject = Subject::start(arm, &stage.arguments.kubeconfig)?;
            one(stage, outcome, cycle, &mut subject).await?;
            subject.quit().await?;
        }
    }
    Ok(())
}

async fn one(
    stage: &Stage<'_>,
    outcome: &mut Outcome,
    cycle: Cycle,
    subject: &mut Subject,
) -> anyhow::Result<()> {
    let count = stage.extent.cycles;
    let watches = stage.server.open_watches(cycle.resource()).await?;
    subject.seconds(cycle.request(WARM_UP)).await?;
    let (heap_before, tasks_before, _) = rest(stage, cycle, subject, watches).await?;
    let seconds = subject.seconds(cycle.request(count)).await?;
    let (heap, tasks, open) = rest(stage, cycle, subject, watches).await?;
    let (arm, size) = (subject.name, Some(count));
    let per_cycle = seconds * 1000.0 / f64::from(count);
    outcome.add(&cycle.heap(), size, "×", arm, heap / heap_before);
    outcome.add(&cycle.tasks(), size, "×", arm, tasks / tasks_before);
    let left = format!("heap left by cycles, {}", cycle.name());
    outcome.add(&left, size, "kB", arm, (heap - heap_before) / 1e3);
    let left = format!("goroutines or tasks left by cycles, {}", cycle.name());
    outcome.add(&left, size, "", arm, tasks - tasks_before);
    let left = format!("open watches left by cycles, {}", cycle.name());
    outcome.add(&left, size, "", arm, open);
    let took = format!("one cycle, {}", cycle.name());
    outcome.add(&took, size, "ms", arm, per_cycle);
    eprintln!(
        "[runtime] {arm}: {count} {}, {per_cycle:.1} ms each; heap {:.0} kB then {:.0} kB, tasks {tasks_before} then {tasks}, {open} watches left",
        cycle.name(),
        heap_before / 1e3,
        heap / 1e3,
    );
    Ok(())
}

/// Heap, tasks and additional watches after the server has closed the watches of the cycles.
async fn rest(
    stage: &Stage<'_>,
    cycle: Cycle,
    subject: &mut Subject,
    watches: f64,
) -> anyhow::Result<(f64, f64, f64)> {
    // The informer of the controllers is shared and stays.
    let stays = match cycle {
        Cycle::Informers => 0.0,
        Cycle::Controllers => 1.0,
    };
    let open = stage
        .server
        .settle(cycle.resource(), watches + stays)
        .await?;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    Ok((
        subject.heap().await?,
        subject.tasks().await?,
        (open - watches - stays).max(0.0),
    ))
}

/// Targets for weft: heap and tasks do not grow. The peer's ratios are for information.
pub(super) fn claim(outcome: &mut Outcome, extent: Extent) {
    let size = Some(extent.cycles);
    for name in Cycle::ALL
        .map(|cycle| [cycle.heap(), cycle.tasks()])
        .concat()
    {
        for (arm, target) in [(OURS, Some(Target::AtMost(1.05))), (THEIRS, None)] {
            let ratio = outcome.value(&name, size, arm);
            let name = format!("{name}: {arm}");
            outcome.claims.push(Claim {
                name,
                ratio,
                target,
            });
        }
    }
}
