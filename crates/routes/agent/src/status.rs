//! Status of the route controller, for operators.

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use weft_routes::{NextHop, Notice, Route, RoutePlan, RouteTarget, Step};
use weft_runtime::ControllerState;

/// The content of `/debug/routes`, which `weft routes status` prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoutesStatus {
    /// Name of the provider.
    pub provider: String,
    /// Either `watch` or `poll`.
    pub mode: String,
    /// State of the controller: running, or the reason why not.
    pub state: String,
    /// True in observe mode.
    pub observing: bool,
    /// Seconds since 1970 when the table was last read.
    pub listed_at: Option<u64>,
    /// Seconds since 1970 of the last pass.
    pub passed_at: Option<u64>,
    /// The latest failure, and seconds since 1970 when it happened.
    pub last_error: Option<(u64, String)>,
    /// Every known route, by destination.
    pub table: BTreeMap<String, Row>,
    /// Ranges of nodes that get no route, with reasons.
    pub refused: Vec<String>,
    /// Steps that are not carried out, for safety.
    pub withheld: Vec<String>,
    /// Steps that are still to be done, with the error of the last attempt.
    pub open: BTreeMap<String, Option<String>>,
    /// Routes in the table after the open steps.
    pub forecast: usize,
    /// Capacity of the table, if the provider has a limit.
    pub quota: Option<usize>,
    /// Calls left under the provider's rate limit, as last reported.
    pub calls_left: Option<u32>,
}

/// A route of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Address or instance ID.
    pub next_hop: Option<String>,
    /// Name of the node, if known.
    pub node: Option<String>,
    /// True if no node needs the route and it is not deleted.
    pub left_alone: bool,
}

/// The status, shared by the controller and the page that shows it.
#[derive(Clone, Debug, Default)]
pub struct StatusBoard(Arc<Mutex<Board>>);

#[derive(Debug, Default)]
struct Board {
    status: RoutesStatus,
    /// State of the controller, once there is one.
    state: Option<watch::Receiver<ControllerState>>,
}

impl StatusBoard {
    /// A copy of the current status.
    pub fn read(&self) -> RoutesStatus {
        let board = self.lock();
        let mut status = board.status.clone();
        if let Some(state) = &board.state {
            status.state = state.borrow().to_string();
        }
        status
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Board> {
        self.0.lock()
    }

    /// Shows this state of the controller from now on.
    pub(crate) fn follow(&self, state: watch::Receiver<ControllerState>) {
        self.lock().state = Some(state);
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut RoutesStatus)) {
        change(&mut self.lock().status);
    }

    pub(crate) fn listed(&self) {
        self.change(|status| status.listed_at = Some(now()));
    }

    pub(crate) fn noticed(&self, notice: &Notice) {
        self.change(|status| match notice {
            Notice::Pass(_, plan) => status.planned(plan),
            Notice::Failed(step, error, _) => {
                let open = status.open.entry(step.to_string());
                *open.or_default() = Some(error.to_string());
                status.fail(format!("{step}: {error}"));
            }
            Notice::ListFailed(error) => status.fail(format!("cannot list routes: {error}")),
            Notice::Drifted(_) | Notice::Refused(_) => {}
        });
    }

    pub(crate) fn done(&self, step: &Step) {
        self.change(|status| {
            status.open.remove(&step.to_string());
            let destination = step.destination().text().to_owned();
            match step.wanted() {
                Some(wanted) => {
                    let row = Row::of(&wanted.to_route());
                    status.table.insert(destination, row);
                }
                None => drop(status.table.remove(&destination)),
            }
        });
    }
}

impl RoutesStatus {
    fn planned(&mut self, plan: &RoutePlan) {
        self.passed_at = Some(now());
        let named = |route: &Route, row| (route.destination.text().to_owned(), row);
        let kept = plan.kept.iter().map(|route| named(route, Row::of(route)));
        let left = plan.left.iter().map(|left| {
            let row = Row {
                left_alone: true,
                ..Row::of(&left.route)
            };
            named(&left.route, row)
        });
        self.table = kept.chain(left).collect();
        self.refused = plan.refusals.iter().map(ToString::to_string).collect();
        let withheld = plan.withheld.iter();
        self.withheld = withheld.map(|withheld| withheld.step.to_string()).collect();
        let mut errors = std::mem::take(&mut self.open);
        let open = plan.steps.iter().map(ToString::to_string);
        self.open = open
            .map(|step| {
                let error = errors.remove(&step).flatten();
                (step, error)
            })
            .collect();
        self.forecast = plan.forecast.after;
        self.quota = plan.forecast.quota;
    }

    fn fail(&mut self, error: String) {
        self.last_error = Some((now(), error));
    }
}

impl Row {
    fn of(route: &Route) -> Self {
        Self {
            next_hop: route.next_hop.as_ref().map(NextHop::to_string),
            node: match &route.target {
                RouteTarget::Node(name) => Some(name.to_string()),
                RouteTarget::Unknown => None,
            },
            left_alone: false,
        }
    }
}

impl fmt::Display for RoutesStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observing = if self.observing {
            ", observing only"
        } else {
            ""
        };
        writeln!(
            f,
            "provider {}, mode {}{observing}, {}",
            self.provider, self.mode, self.state
        )?;
        writeln!(
            f,
            "table read {}, last pass {}",
            ago(self.listed_at),
            ago(self.passed_at)
        )?;
        if let Some((at, error)) = &self.last_error {
            writeln!(f, "last error {}: {error}", ago(Some(*at)))?;
        }
        write!(f, "{} routes", self.table.len())?;
        if let Some(quota) = self.quota {
            write!(f, ", {} of {quota} after open steps", self.forecast)?;
        }
        if let Some(left) = self.calls_left {
            write!(f, ", {left} calls left")?;
        }
        writeln!(f)?;
        let widest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or_default();
        let width = widest(&mut self.table.keys().map(String::len));
        let hops = self.table.values();
        let hop_width = widest(&mut hops.map(|row| row.next_hop().len()));
        for (destination, row) in &self.table {
            let node = row.node.as_deref().unwrap_or("-");
            let left = if row.left_alone { "  left alone" } else { "" };
            let hop = row.next_hop();
            writeln!(f, "  {destination:width$}  {hop:hop_width$}  {node}{left}")?;
        }
        for (step, error) in &self.open {
            match error {
                Some(error) => writeln!(f, "open: {step} ({error})")?,
                None => writeln!(f, "open: {step}")?,
            }
        }
        for refused in &self.refused {
            writeln!(f, "refused: {refused}")?;
        }
        for withheld in &self.withheld {
            writeln!(f, "withheld: {withheld}")?;
        }
        Ok(())
    }
}

impl Row {
    fn next_hop(&self) -> &str {
        self.next_hop.as_deref().unwrap_or("-")
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}

fn ago(at: Option<u64>) -> String {
    match at {
        None => "never".to_owned(),
        Some(at) => format!("{}s ago", now().saturating_sub(at)),
    }
}
