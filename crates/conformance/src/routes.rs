//! Routes at a cloud provider: upstream's route controller in a cloud-controller-manager, with the
//! feature gate of KEP-5237 off and on, beside `weft routes`, through the same seeded traces.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};
use weft_testkit::clouds::HcloudLatency;

mod arm;
mod calls;
mod cluster;
mod conditions;
mod figures;
mod ideal;
mod ledger;
mod player;
mod process;
mod run;
mod text;
mod trace;

use arm::{ARMS, Programs};
use cluster::{Cluster, Etcd};
use run::{Run, Stage};
use trace::Trace;

/// About what the real provider takes.
const LATENCY: HcloudLatency = HcloudLatency::REAL;

/// What a comparison of routes needs.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The program under test.
    #[arg(long)]
    weft: PathBuf,
    /// The directory of the peers' programs.
    #[arg(long)]
    peers: PathBuf,
    /// Where the outcome goes, and logs.
    #[arg(long)]
    output: PathBuf,
    /// One trace of 40 seconds, and no judgement.
    #[arg(long)]
    quick: bool,
    /// A cloud-controller-manager for Hetzner Cloud in place of the one among the peers.
    #[arg(long)]
    ccm: Option<PathBuf>,
    /// Which traces: the same number gives the same ones.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the trace of this name.
    #[arg(long)]
    trace: Option<String>,
}

/// Runs all arms through all traces and writes what was seen.
pub(crate) fn compare(arguments: Arguments) -> anyhow::Result<()> {
    let traces = traces(&arguments)?;
    let programs = Programs {
        weft: arguments.weft,
        peers: arguments.peers,
        ccm: arguments.ccm,
    };
    let versions = programs.versions()?;
    let logs = arguments.output.join("routes-logs");
    fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
    let warm_up = Duration::from_secs(if arguments.quick { 15 } else { 40 });
    // An earlier part of this program may have done so.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new()?;
    let runs = runtime.block_on(async {
        tokio::select! {
            runs = run_all(&traces, &programs, &logs, warm_up) => runs,
            // Whatever was started ends with the future that is dropped.
            told = told_to_end() => told.and_then(|()| bail!("told to end")),
        }
    })?;

    let mut outcome = text::outcome(&programs, &traces, &LATENCY, arguments.seed);
    outcome.versions = versions;
    let mut mistakes = Vec::new();
    for trace in &traces {
        let runs = &runs[trace.name];
        figures::add(&mut outcome, trace, runs, &LATENCY);
        figures::claim(&mut outcome, trace, !arguments.quick);
        mistakes.extend(figures::mistakes_of_ours(trace, runs));
    }
    let late = runs.values().flatten().map(|run| run.late).max();
    outcome.notes.push(text::lateness(late.unwrap_or_default()));
    outcome.write(&arguments.output)?;
    if !mistakes.is_empty() {
        bail!("weft made mistakes: {}", mistakes.join("; "));
    }
    Ok(())
}

fn traces(arguments: &Arguments) -> anyhow::Result<Vec<Trace>> {
    let seed = arguments.seed;
    let mut traces = if arguments.quick {
        vec![trace::rehearsal(seed)]
    } else {
        vec![
            trace::steady(seed),
            trace::quiet(seed),
            trace::waves(seed),
            trace::failures(seed),
        ]
    };
    if let Some(name) = &arguments.trace {
        traces.retain(|trace| trace.name == name);
        anyhow::ensure!(!traces.is_empty(), "there is no trace {name}");
    }
    Ok(traces)
}

/// All at the same time: a trace takes its ten minutes however many are played, and whatever
/// disturbs one arm disturbs the others too.
async fn run_all(
    traces: &[Trace],
    programs: &Programs,
    logs: &Path,
    warm_up: Duration,
) -> anyhow::Result<BTreeMap<&'static str, Vec<Run>>> {
    let directory = tempfile::tempdir()?;
    let home = directory.path();
    let etcd = Etcd::start(&programs.peers, home)?;
    let count = traces.len() * ARMS.len();
    progress(&format!("starting {count} API servers"));
    let mut preparing = Vec::new();
    for trace in traces {
        for arm in ARMS {
            let name = format!("{}-{}", trace.name, arm.name());
            let cluster = Cluster::start(&name, &programs.peers, &etcd, home)?;
            preparing.push(Stage::prepare(arm, trace.clone(), LATENCY, cluster));
        }
    }
    let stages = futures::future::try_join_all(preparing).await?;
    let length = traces.iter().map(|trace| trace.length).max();
    let total = warm_up + length.unwrap_or_default();
    progress(&format!(
        "all answer; the traces take {} s",
        total.as_secs()
    ));
    let running = stages.into_iter().map(|stage| async {
        let name = stage.name();
        let run = stage.run(programs, logs, warm_up).await;
        run.with_context(|| name)
    });
    let runs = tokio::select! {
        runs = futures::future::try_join_all(running) => runs?,
        never = count_down(total) => match never {},
    };
    drop(etcd);
    let mut by_trace: BTreeMap<&'static str, Vec<Run>> = BTreeMap::new();
    for run in runs {
        progress(&run.summary());
        by_trace.entry(run.trace).or_default().push(run);
    }
    Ok(by_trace)
}

async fn told_to_end() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        told = tokio::signal::ctrl_c() => told?,
        _ = terminate.recv() => {}
    }
    Ok(())
}

async fn count_down(total: Duration) -> std::convert::Infallible {
    let begun = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let (gone, total) = (begun.elapsed().as_secs(), total.as_secs());
        progress(&format!("{gone} s of {total} s"));
    }
}

fn progress(what: &str) {
    eprintln!("[routes] {what}");
}
