//! Simulated route provider: a table in memory, with latencies, limits and faults.

use std::{collections::BTreeMap, time::Duration};

use weft_model::SharedStr;

use crate::{
    Cidr, Mark, Moment, NextHop, ProviderError, RateLimit, Route, RouteAction, RouteTarget, Step,
    Wanted,
};

/// Latencies and limits of a provider.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Latency of a list.
    pub list: Duration,
    /// Latency of a mutation, until it has taken effect.
    pub mutation: Duration,
    /// True if a mutation locks the table for other mutations.
    pub exclusive: bool,
    /// Number of mutations that a controller should run at the same time.
    pub parallel: usize,
    /// Capacity of the table, in routes.
    pub quota: Option<usize>,
    /// Capacity of the rate limit's bucket, in calls; refilled within an hour.
    pub calls_per_hour: Option<u32>,
}

impl Profile {
    /// Quick and without limits.
    pub const MEMORY: Self = Self {
        list: Duration::from_millis(80),
        mutation: Duration::from_millis(150),
        exclusive: false,
        parallel: 200,
        quota: None,
        calls_per_hour: None,
    };

    /// Like Hetzner's networks: slow actions that lock, a small table, a shared rate limit.
    pub const HCLOUD: Self = Self {
        list: Duration::from_millis(80),
        mutation: Duration::from_millis(1150),
        exclusive: true,
        parallel: 1,
        quota: Some(100),
        calls_per_hour: Some(3600),
    };
}

/// A fault of the provider in a window of time.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Start of the window.
    pub from: Moment,
    /// End of the window, exclusive.
    pub until: Moment,
    /// The kind of calls that fail; all if absent.
    pub call: Option<CallKind>,
    /// Number of calls that fail, at most.
    pub times: u32,
    /// The failure.
    pub kind: FaultKind,
}

/// A kind of failure.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// The call fails and changes nothing.
    Fails(ProviderError),
    /// The call works, but the answer is lost.
    AnswerLost,
}

/// The kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CallKind {
    /// Read the table.
    List,
    /// Add a route.
    Create,
    /// Change the next hop of a route.
    Replace,
    /// Remove a route.
    Delete,
}

/// A call with its arguments.
#[derive(Clone, Debug)]
pub enum Call {
    /// Read the table.
    List,
    /// Change it.
    Mutate(Box<Step>),
}

impl Call {
    /// The kind of the call.
    pub fn kind(&self) -> CallKind {
        match self {
            Self::List => CallKind::List,
            Self::Mutate(step) => match step.action {
                RouteAction::Create { .. } => CallKind::Create,
                RouteAction::Replace { .. } => CallKind::Replace,
                RouteAction::Delete { .. } => CallKind::Delete,
            },
        }
    }
}

/// A call that is under way.
#[derive(Clone, Debug)]
pub struct Begun {
    /// Time of the answer.
    pub answer_at: Moment,
    outcome: Outcome,
    locks: bool,
}

#[derive(Clone, Debug)]
enum Outcome {
    Works,
    Fails(ProviderError),
    AnswerLost,
}

/// The answer of a list, or of a mutation.
pub(super) type Answer = Result<Option<Vec<Route>>, ProviderError>;

/// The simulated provider.
#[derive(Clone, Debug)]
pub struct Provider {
    profile: Profile,
    faults: Vec<Fault>,
    table: BTreeMap<Cidr, Route>,
    locked: bool,
    tokens: f64,
    tokens_at: Moment,
    lowest: f64,
}

impl Provider {
    /// An empty table.
    pub fn new(profile: Profile, faults: Vec<Fault>) -> Self {
        let tokens = profile.calls_per_hour.map_or(f64::INFINITY, f64::from);
        Self {
            profile,
            faults,
            table: BTreeMap::new(),
            locked: false,
            tokens,
            tokens_at: Moment::START,
            lowest: tokens,
        }
    }

    /// The routes by destination.
    pub fn table(&self) -> &BTreeMap<Cidr, Route> {
        &self.table
    }

    /// The table, to change it from outside.
    pub fn table_mut(&mut self) -> &mut BTreeMap<Cidr, Route> {
        &mut self.table
    }

    /// The lowest number of calls that was ever left.
    pub fn lowest_balance(&self) -> f64 {
        self.lowest
    }

    /// The rate limit as an answer's headers report it.
    pub fn rate(&self) -> Option<RateLimit> {
        let limit = self.profile.calls_per_hour?;
        let missing = f64::from(limit) - self.tokens;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between zero and the limit"
        )]
        let remaining = self.tokens as u32;
        Some(RateLimit {
            limit,
            remaining,
            reset_after: Duration::from_secs_f64(missing * 3600.0 / f64::from(limit)),
        })
    }

    /// A call arrives.
    pub fn begin(&mut self, call: &Call, now: Moment) -> Begun {
        let latency = match call {
            Call::List => self.profile.list,
            Call::Mutate(_) => self.profile.mutation,
        };
        let refused_at = now + self.profile.list;
        let refused = |error| Begun {
            answer_at: refused_at,
            outcome: Outcome::Fails(error),
            locks: false,
        };
        if !self.take_token(now) {
            return refused(ProviderError::RateLimited { after: None });
        }
        let outcome = match self.fault(call.kind(), now) {
            Some(FaultKind::Fails(error)) => return refused(error),
            Some(FaultKind::AnswerLost) => Outcome::AnswerLost,
            None => Outcome::Works,
        };
        let locks = self.profile.exclusive && matches!(call, Call::Mutate(_));
        if locks && self.locked {
            return refused(ProviderError::Locked);
        }
        self.locked |= locks;
        Begun {
            answer_at: now + latency,
            outcome,
            locks,
        }
    }

    fn take_token(&mut self, now: Moment) -> bool {
        if let Some(limit) = self.profile.calls_per_hour {
            let gained = now.since(self.tokens_at).as_secs_f64() * f64::from(limit) / 3600.0;
            self.tokens = (self.tokens + gained).min(f64::from(limit));
            self.tokens_at = now;
        }
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        self.lowest = self.lowest.min(self.tokens);
        enough
    }

    fn fault(&mut self, kind: CallKind, now: Moment) -> Option<FaultKind> {
        let mut faults = self.faults.iter_mut();
        let fault = faults.find(|fault| {
            let meant = fault.call.is_none_or(|call| call == kind);
            meant && fault.times > 0 && fault.from <= now && now < fault.until
        })?;
        fault.times -= 1;
        Some(fault.kind.clone())
    }

    /// A call ends: it takes effect, and is answered.
    pub fn end(&mut self, call: &Call, begun: &Begun) -> Answer {
        if begun.locks {
            self.locked = false;
        }
        match &begun.outcome {
            Outcome::Fails(error) => Err(error.clone()),
            Outcome::Works => self.answer(call),
            Outcome::AnswerLost => {
                let _ = self.answer(call);
                Err(ProviderError::Uncertain)
            }
        }
    }

    fn answer(&mut self, call: &Call) -> Answer {
        match call {
            Call::List => Ok(Some(self.table.values().cloned().collect())),
            Call::Mutate(step) => self.change(step).map(|()| None),
        }
    }

    fn change(&mut self, step: &Step) -> Result<(), ProviderError> {
        let destination = step.destination();
        let present = self.table.get(destination);
        match &step.action {
            RouteAction::Create { new, .. } => {
                if present.is_some() {
                    return Err(ProviderError::Conflict);
                }
                if self
                    .profile
                    .quota
                    .is_some_and(|quota| self.table.len() >= quota)
                {
                    return Err(ProviderError::Quota);
                }
                self.table.insert(destination.clone(), made(new)?);
            }
            RouteAction::Replace { new, .. } => {
                if present.is_none() {
                    return Err(ProviderError::Conflict);
                }
                self.table.insert(destination.clone(), made(new)?);
            }
            RouteAction::Delete { old, .. } => match present {
                None => return Err(ProviderError::Gone),
                Some(present) if present.next_hop != old.next_hop => {
                    return Err(ProviderError::Conflict);
                }
                Some(_) => drop(self.table.remove(destination)),
            },
        }
        Ok(())
    }
}

/// The route that a create or replacement results in. Where no next hop is named, the provider
/// takes the node's address of the right family, as upstream's providers do.
fn made(wanted: &Wanted) -> Result<Route, ProviderError> {
    let next_hop = wanted
        .next_hop
        .clone()
        .or_else(|| wanted.address().map(NextHop::Address))
        .ok_or_else(|| ProviderError::NotReady(SharedStr::new("node has no address")))?;
    Ok(Route {
        destination: wanted.destination.clone(),
        target: RouteTarget::Node(wanted.node.clone()),
        next_hop: Some(next_hop),
        target_addresses: None,
        blackhole: false,
        mark: Mark::None,
        id: None,
    })
}
