//! Rules of fault injection, and their effect on a request.

use std::time::Duration;

use http::StatusCode;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::Matcher;
use crate::{
    random::Random,
    request::RequestInfo,
    status::{ApiError, FieldError},
};

/// The effect on a matching request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// A `Status` failure.
    Status {
        /// The HTTP code, also in the body.
        code: StatusCode,
        /// Seconds for the `Retry-After` header and the details.
        retry_after: Option<u64>,
        /// The message of the Status.
        message: String,
    },
    /// An arbitrary answer.
    Body {
        /// The HTTP code.
        code: StatusCode,
        /// The `Content-Type`.
        content_type: String,
        /// The bytes of the body.
        body: Vec<u8>,
    },
    /// A wait before the request is handled.
    Delay(Duration),
    /// The connection is closed without an answer.
    Disconnect,
    /// 403 with the message of the authoriser.
    Unauthorised,
    /// 422, as a server without the feature WatchList answers streaming lists.
    NoStreamingLists,
    /// The watch is accepted, sends only this error, and ends.
    WatchError(InjectedWatchError),
    /// Lists ignore `limit` and return all items.
    IgnoreLimit,
    /// Lists show the state of an older version, while the history has it.
    StaleList {
        /// Resource version to show.
        version: u64,
    },
}

impl Fault {
    /// A `Status` with this code, without `Retry-After`.
    pub fn status(code: StatusCode) -> Self {
        Self::Status {
            code,
            retry_after: None,
            message: "injected fault".to_owned(),
        }
    }

    /// 429 with `Retry-After`.
    pub fn too_many_requests(retry_after: u64) -> Self {
        Self::Status {
            code: StatusCode::TOO_MANY_REQUESTS,
            retry_after: Some(retry_after),
            message: "Too many requests, please try again later.".to_owned(),
        }
    }
}

/// An ERROR event inside a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum InjectedWatchError {
    /// 410: the version is too old.
    Expired,
    /// 429: too many requests.
    TooManyRequests {
        /// Seconds that the client is asked to wait.
        retry_after: u64,
    },
    /// 504: the version does not exist yet.
    TooLargeVersion,
    /// 500: internal error.
    Internal,
}

impl InjectedWatchError {
    pub(crate) fn to_error(&self) -> ApiError {
        match self {
            Self::Expired => ApiError::expired("too old resource version: injected fault"),
            Self::TooManyRequests { retry_after } => ApiError::injected(
                StatusCode::TOO_MANY_REQUESTS,
                "Too many requests, please try again later.",
                Some(*retry_after),
            ),
            Self::TooLargeVersion => ApiError::future_version(u64::MAX, 0),
            Self::Internal => ApiError::internal("injected fault"),
        }
    }
}

/// The number, rate or duration of a rule's applications.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Times {
    /// This many matching requests.
    Next(u64),
    /// Every matching request.
    Always,
    /// Each matching request with this probability, drawn from the server's seed.
    Rate(f64),
    /// Every matching request during this time.
    For(Duration),
}

/// Identifies a rule for [`super::Faults::remove`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(pub(crate) u64);

#[derive(Debug)]
struct Rule {
    id: u64,
    matcher: Matcher,
    fault: Fault,
    left: Left,
}

#[derive(Debug)]
enum Left {
    Count(u64),
    Forever,
    Rate(f64),
    Until(Instant),
}

/// The active rules.
#[derive(Debug)]
pub(crate) struct FaultRules {
    rules: Mutex<(u64, Vec<Rule>)>,
    random: Random,
}

/// The combined effect of all rules on one request.
#[derive(Debug, Default)]
pub(crate) struct Interference {
    pub(crate) delay: Duration,
    /// The fault of the first matching rule that replaces the answer.
    pub(crate) answer: Option<Fault>,
    pub(crate) ignore_limit: bool,
    pub(crate) stale: Option<u64>,
}

impl FaultRules {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self {
            rules: Mutex::new((0, Vec::new())),
            random: Random::new(seed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Vec<Rule>)> {
        self.rules.lock()
    }

    pub(crate) fn add(&self, matcher: Matcher, fault: Fault, times: Times) -> FaultId {
        let left = match times {
            Times::Next(count) => Left::Count(count),
            Times::Always => Left::Forever,
            Times::Rate(rate) => Left::Rate(rate),
            // An end beyond what `Instant` can represent counts as never.
            Times::For(lasting) => Instant::now()
                .checked_add(lasting)
                .map_or(Left::Forever, Left::Until),
        };
        let mut rules = self.lock();
        rules.0 += 1;
        let id = rules.0;
        rules.1.push(Rule {
            id,
            matcher,
            fault,
            left,
        });
        FaultId(id)
    }

    pub(crate) fn remove(&self, id: FaultId) {
        self.lock().1.retain(|rule| rule.id != id.0);
    }

    pub(crate) fn clear(&self) {
        self.lock().1.clear();
    }

    /// Applies the rules to a request and counts down their times.
    pub(crate) fn interfere(&self, request: &RequestInfo) -> Interference {
        let mut interference = Interference::default();
        let mut rules = self.lock();
        if rules.1.is_empty() {
            return interference;
        }
        for rule in &mut rules.1 {
            // Only one rule can answer; the others are not counted down.
            if !rule.matcher.matches(request)
                || (rule.fault.answers() && interference.answer.is_some())
                || !rule.applies(&self.random)
            {
                continue;
            }
            match &rule.fault {
                Fault::Delay(by) => interference.delay = interference.delay.saturating_add(*by),
                Fault::IgnoreLimit => interference.ignore_limit = true,
                Fault::StaleList { version } => interference.stale = Some(*version),
                answer => interference.answer = Some(answer.clone()),
            }
        }
        rules.1.retain(|rule| match rule.left {
            Left::Count(count) => count > 0,
            Left::Until(end) => Instant::now() < end,
            Left::Forever | Left::Rate(_) => true,
        });
        interference
    }
}

impl Fault {
    fn answers(&self) -> bool {
        !matches!(
            self,
            Self::Delay(_) | Self::IgnoreLimit | Self::StaleList { .. }
        )
    }
}

impl Rule {
    fn applies(&mut self, random: &Random) -> bool {
        match &mut self.left {
            Left::Count(0) => false,
            Left::Count(count) => {
                *count -= 1;
                true
            }
            Left::Forever => true,
            Left::Rate(rate) => random.chance(*rate),
            Left::Until(end) => Instant::now() < *end,
        }
    }
}

/// The answer of a server without the feature WatchList.
pub(crate) fn no_streaming_lists() -> ApiError {
    let detail =
        "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    ApiError::invalid_options(
        "ListOptions",
        FieldError::forbidden("sendInitialEvents", detail),
    )
}
