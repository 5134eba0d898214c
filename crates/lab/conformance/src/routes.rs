//! Comparison of route controllers at a cloud provider: `weft routes` and upstream's route controller
//! in a cloud-controller-manager, with the feature gate of KEP-5237 off and on.
//!
//! All of them run through the same seeded traces.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};
use weft_testkit::clouds::HcloudLatency;

use crate::arguments::Common;

mod arm;
mod calls;
mod cluster;
mod conditions;
mod figures;
mod ideal;
mod player;
mod process;
mod run;
mod text;
mod trace;
mod tracker;

use arm::{ARMS, Programs};
use cluster::{Cluster, Etcd};
use run::{Run, Stage};
use trace::Trace;

/// Arguments of the routes comparison.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Path of a cloud-controller-manager for Hetzner Cloud, instead of the one among the peers.
    #[arg(long)]
    ccm: Option<PathBuf>,
    /// Seed of the traces.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Name of the only trace to play (default: all).
    #[arg(long)]
    trace: Option<String>,
    /// Number of traces to play at the same time; each has three API servers.
    #[arg(long, default_value_t = 4)]
    at_once: usize,
    /// Milliseconds for which a change of a route locks the provider's network.
    #[arg(long, default_value_t = 1000)]
    action: u64,
}

/// Options that all runs share.
struct Setting<'a> {
    programs: &'a Programs,
    latency: HcloudLatency,
    logs: &'a Path,
    warm_up: Duration,
}

/// Runs all arms through all traces and writes the outcome.
pub(crate) fn compare(arguments: Arguments) -> anyhow::Result<()> {
    let traces = traces(&arguments)?;
    let programs = Programs {
        weft: arguments.common.weft,
        peers: arguments.common.peers,
        ccm: arguments.ccm,
    };
    let versions = programs.versions()?;
    let latency = HcloudLatency {
        action: Duration::from_millis(arguments.action),
        ..HcloudLatency::REAL
    };
    let logs = arguments.common.output.join("routes-logs");
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let warm_up = Duration::from_secs(if arguments.common.quick { 15 } else { 40 });
    let setting = Setting {
        programs: &programs,
        latency,
        logs: &logs,
        warm_up,
    };
    // `main` has installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new()?;
    let runs = runtime.block_on(async {
        tokio::select! {
            runs = run_all(&traces, arguments.at_once.max(1), &setting) => runs,
            // Dropping the other future ends all processes that it started.
            signal = termination_signal() => signal.and_then(|()| bail!("interrupted by a signal")),
        }
    })?;

    let mut outcome = text::outcome(&programs, &traces, &latency, arguments.seed);
    outcome.versions = versions;
    let judgement = if arguments.common.quick {
        figures::Judgement::ReportOnly
    } else {
        figures::Judgement::Judge
    };
    let mut mistakes = Vec::new();
    for trace in &traces {
        let runs = &runs[trace.name];
        figures::add(&mut outcome, trace, runs, &latency);
        figures::claim(&mut outcome, trace, judgement);
        mistakes.extend(figures::mistakes_of_ours(&outcome, trace, runs));
    }
    let late = runs.values().flatten().map(|run| run.late).max();
    outcome.notes.push(text::lateness(late.unwrap_or_default()));
    outcome.write(&arguments.common.output)?;
    if !mistakes.is_empty() {
        bail!("weft made mistakes: {}", mistakes.join("; "));
    }
    Ok(())
}

fn traces(arguments: &Arguments) -> anyhow::Result<Vec<Trace>> {
    let seed = arguments.seed;
    let mut traces = if arguments.common.quick {
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
        anyhow::ensure!(!traces.is_empty(), "{name} is not a trace");
    }
    Ok(traces)
}

/// Runs all traces. The arms of a trace run at the same time, so that load on the machine affects all
/// of them.
async fn run_all(
    traces: &[Trace],
    at_once: usize,
    setting: &Setting<'_>,
) -> anyhow::Result<BTreeMap<&'static str, Vec<Run>>> {
    let mut by_trace: BTreeMap<&'static str, Vec<Run>> = BTreeMap::new();
    for traces in traces.chunks(at_once) {
        for run in run_some(traces, setting).await? {
            progress(&run.summary());
            by_trace.entry(run.trace).or_default().push(run);
        }
    }
    Ok(by_trace)
}

async fn run_some(traces: &[Trace], setting: &Setting<'_>) -> anyhow::Result<Vec<Run>> {
    let directory = tempfile::tempdir()?;
    let home = directory.path();
    let peers = &setting.programs.peers;
    let etcd = Etcd::start(peers, home)?;
    let names: Vec<&str> = traces.iter().map(|trace| trace.name).collect();
    progress(&format!("{}: starting API servers", names.join(", ")));
    let mut stages = Vec::new();
    // One after the other: started together they exceed their own start-up time limits.
    for trace in traces {
        for arm in ARMS {
            let name = format!("{}-{}", trace.name, arm.name());
            let cluster = Cluster::start(&name, peers, &etcd, home)?;
            stages.push(Stage::prepare(arm, trace.clone(), setting.latency, cluster).await?);
        }
    }
    let length = traces.iter().map(|trace| trace.length).max();
    let total = setting.warm_up + length.unwrap_or_default();
    progress(&format!(
        "{}: running for {} s",
        names.join(", "),
        total.as_secs()
    ));
    let running = stages.into_iter().map(|stage| async {
        let name = stage.name();
        let run = stage.run(setting).await;
        run.with_context(|| name)
    });
    tokio::select! {
        runs = futures::future::try_join_all(running) => runs,
        never = count_down(total) => match never {},
    }
}

async fn termination_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        signal = tokio::signal::ctrl_c() => signal?,
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

fn progress(message: &str) {
    eprintln!("[routes] {message}");
}
