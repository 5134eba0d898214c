//! One run: one arm through one trace.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::time::Instant;
use weft_testkit::clouds::{HcloudDouble, HcloudLatency, HcloudOptions};

use super::{
    Setting,
    arm::{Arm, NETWORK},
    calls::Calls,
    cluster::Cluster,
    conditions::Conditions,
    player::{self, Player},
    process::Process,
    trace::{Event, Trace},
    tracker::{Found, RouteTracker, Wait},
};

/// Interval at which the provider's routes are read.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Hetzner's limit of calls per project.
const CALLS_PER_HOUR: u32 = 3600;

/// An arm with its own API server and its own provider, ready to begin.
pub(super) struct Stage {
    arm: Arm,
    trace: Trace,
    /// Declared first so that the watch ends before its server.
    conditions: Conditions,
    cluster: Cluster,
    double: Arc<HcloudDouble>,
    player: Player,
    tracker: Arc<Mutex<RouteTracker>>,
}

/// Measurements of one run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) arm: Arm,
    pub(super) trace: &'static str,
    /// Calls from the program's start until the trace began.
    pub(super) start: Calls,
    /// Calls during the trace.
    pub(super) calls: Calls,
    pub(super) found: Found,
    /// Seconds from when a joining node's route could be made until its condition was set.
    pub(super) condition_waits: Vec<f64>,
    /// Nodes whose condition was set before their route existed.
    pub(super) early_conditions: u32,
    pub(super) processor_seconds: f64,
    pub(super) anonymous_megabytes: f64,
    /// Steps that required a change of routes, with the times at which they were made.
    pub(super) made: Vec<Event>,
    /// Largest delay of a step.
    pub(super) late: Duration,
}

impl Run {
    /// One line for the progress output.
    pub(super) fn summary(&self) -> String {
        let found = &self.found;
        let waits = found.waits.iter().filter_map(Wait::seconds);
        format!(
            "{}, {}: {} calls, {} of {} joins and moves routed, the slowest after {:.1} s; {} lost, \
             {} left over",
            self.trace,
            self.arm.label(),
            self.calls.total(),
            waits.clone().count(),
            found.waits.len(),
            waits.fold(0.0, f64::max),
            found.lost,
            found.leftover,
        )
    }
}

impl Stage {
    pub(super) fn name(&self) -> String {
        format!("{}, {}", self.trace.name, self.arm.label())
    }

    pub(super) async fn prepare(
        arm: Arm,
        trace: Trace,
        latency: HcloudLatency,
        mut cluster: Cluster,
    ) -> anyhow::Result<Self> {
        let client = cluster.client().await?;
        let options = HcloudOptions {
            network_name: NETWORK.to_owned(),
            latency,
            calls_per_hour: Some(CALLS_PER_HOUR),
            ..HcloudOptions::default()
        };
        let double = HcloudDouble::start(options).await?;
        let (double, tracker) = (
            Arc::new(double),
            Arc::new(Mutex::new(RouteTracker::default())),
        );
        let mut player = Player::new(client.clone(), double.clone(), tracker.clone());
        player
            .prepare(&trace)
            .await
            .context("cannot create the first nodes")?;
        Ok(Self {
            conditions: Conditions::watch(client),
            arm,
            trace,
            cluster,
            double,
            player,
            tracker,
        })
    }

    /// Starts the program, waits for the warm-up and plays the trace.
    pub(super) async fn run(mut self, setting: &Setting<'_>) -> anyhow::Result<Run> {
        let endpoint = self.double.endpoint();
        let kubeconfig = &self.cluster.kubeconfig;
        let mut command = self.arm.command(setting.programs, kubeconfig, &endpoint);
        let name = format!("{}-{}", self.trace.name, self.arm.name());
        let mut process = Process::start(&name, setting.logs, &mut command)?;
        let begin = Instant::now() + setting.warm_up;
        tokio::time::sleep_until(begin).await;
        process.check()?;
        let start = Calls(self.double.counters());
        let used = process.processor_seconds()?;
        tokio::select! {
            played = self.player.play(&self.trace, begin) => played?,
            () = poll_table(&self.double, &self.tracker, begin) => {}
            ended = has_ended(&mut process) => return Err(ended),
        }
        process.check()?;
        let table = player::table(&self.double);
        let tracker = std::mem::take(&mut *self.tracker.lock());
        let found = tracker.close(&table, begin.elapsed().as_secs_f64());
        let (condition_waits, early_conditions) =
            condition_waits(&found, &self.conditions.seen(), begin);
        Ok(Run {
            arm: self.arm,
            trace: self.trace.name,
            calls: Calls(self.double.counters()).since(&start),
            start,
            found,
            condition_waits,
            early_conditions,
            processor_seconds: process.processor_seconds()? - used,
            anonymous_megabytes: process.anonymous_megabytes()?,
            made: self.player.made,
            late: self.player.late,
        })
    }
}

/// Reads the provider's routes at intervals, forever.
async fn poll_table(double: &HcloudDouble, tracker: &Mutex<RouteTracker>, begin: Instant) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    loop {
        ticks.tick().await;
        let now = begin.elapsed().as_secs_f64();
        let table = player::table(double);
        tracker.lock().see(&table, now);
    }
}

/// Waits until the program ends and returns the error.
async fn has_ended(process: &mut Process) -> anyhow::Error {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let Err(ended) = process.check() {
            return ended;
        }
    }
}

/// Seconds that joining nodes waited for their condition, and the number of nodes whose condition came
/// before their route.
fn condition_waits(
    found: &Found,
    seen: &BTreeMap<String, Instant>,
    begin: Instant,
) -> (Vec<f64>, u32) {
    let mut waits = Vec::new();
    let mut early = 0;
    // A node that changed its address has had the condition since it joined.
    for wait in found.waits.iter().filter(|wait| wait.machine.moved == 0) {
        let Some(moment) = seen.get(&wait.machine.name()) else {
            continue;
        };
        let moment = moment.duration_since(begin).as_secs_f64();
        waits.push(moment - wait.since);
        // Routes are read at intervals, which are longer on a busy machine.
        early += u32::from(moment < wait.missing);
    }
    (waits, early)
}

#[cfg(test)]
mod tests {
    use super::{super::trace::Machine, *};

    #[tokio::test]
    async fn a_condition_before_its_route_is_counted() {
        let begin = Instant::now();
        let wait = |number, missing, until| Wait {
            machine: Machine::new(number, 1),
            since: 1.0,
            missing,
            until,
        };
        let found = Found {
            waits: vec![
                wait(1, 2.9, Some(4.5)),
                wait(2, 2.9, Some(3.0)),
                wait(3, 600.0, None),
            ],
            ..Found::default()
        };
        let at = |seconds| begin + Duration::from_secs(seconds);
        let seen = BTreeMap::from([
            ("node-1".to_owned(), at(4)),
            ("node-2".to_owned(), at(2)),
            ("node-3".to_owned(), at(9)),
        ]);
        assert_eq!(
            condition_waits(&found, &seen, begin),
            (vec![3.0, 1.0, 8.0], 2)
        );
    }
}
