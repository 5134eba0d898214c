//! Fault injection: delays, errors, broken connections and stale lists on request.
//!
//! A rule selects requests ([`Matcher`]), says what happens to them ([`Fault`]) and how often
//! ([`Times`]). Rates draw from a seeded generator, so a run is repeatable. Open watches are
//! controlled directly: cut, stalled, sent an error.

mod matcher;
mod rules;
mod watches;

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::Value;

pub use matcher::Matcher;
pub use rules::{Fault, FaultId, InjectedWatchError, Times};
pub(crate) use rules::{FaultRules, Interference, no_streaming_lists};
pub use watches::{Cut, Stall};
pub(crate) use watches::{OpenWatches, WatchTicket};

use crate::{api::Api, request::Verb};

/// Handle to inject faults into a running server.
#[derive(Debug, Clone)]
pub struct Faults {
    pub(crate) api: Arc<Api>,
}

impl Faults {
    /// Adds a rule; it stays until its [`Times`] are used up or it is removed.
    pub fn inject(&self, matcher: Matcher, fault: Fault, times: Times) -> FaultId {
        self.api.faults.add(matcher, fault, times)
    }

    /// Removes a rule; no effect when it is used up.
    pub fn remove(&self, id: FaultId) {
        self.api.faults.remove(id);
    }

    /// Removes every rule and releases every stalled watch.
    pub fn clear(&self) {
        self.api.faults.clear();
        self.api.watches.release_all();
    }

    /// Answers matching requests with a `Status` of this code.
    pub fn respond(&self, matcher: Matcher, code: StatusCode, times: Times) -> FaultId {
        self.inject(matcher, Fault::status(code), times)
    }

    /// Delays matching requests before they are handled.
    pub fn delay(&self, matcher: Matcher, by: Duration, times: Times) -> FaultId {
        self.inject(matcher, Fault::Delay(by), times)
    }

    /// Answers streaming lists with 422, as a server without the feature WatchList.
    pub fn refuse_streaming_lists(&self) -> FaultId {
        let matcher = Matcher::any().verb(Verb::Watch).streaming_list(true);
        self.inject(matcher, Fault::NoStreamingLists, Times::Always)
    }

    /// Answers matching requests with 403, as if the user lacked the right.
    pub fn refuse_authorisation(&self, matcher: Matcher, times: Times) -> FaultId {
        self.inject(matcher, Fault::Unauthorised, times)
    }

    /// Cuts the open watches that match and breaks matching requests for this long.
    pub fn drop_client(&self, matcher: Matcher, lasting: Duration) -> FaultId {
        self.api.watches.cut(&matcher, Cut::MidFrame);
        self.inject(matcher, Fault::Disconnect, Times::For(lasting))
    }

    /// Ends matching open watches; returns their number.
    pub fn cut_watches(&self, matcher: &Matcher, how: Cut) -> usize {
        self.api.watches.cut(matcher, how)
    }

    /// Sends matching open watches an ERROR event, after which they end; returns their number.
    pub fn send_watch_error(&self, matcher: &Matcher, error: &InjectedWatchError) -> usize {
        self.api.watches.fail(matcher, &error.to_error().status())
    }

    /// Holds back every byte of matching watches, also of those opened later, until the returned
    /// [`Stall`] is dropped. The connections stay open.
    #[must_use = "dropping the stall releases the watches"]
    pub fn stall_watches(&self, matcher: Matcher) -> Stall {
        self.api.watches.stall(matcher)
    }

    /// Compacts the whole history: watches, exact lists and continue tokens of earlier versions
    /// are answered 410.
    pub fn compact(&self) {
        self.api.store.compact();
    }

    /// Expires all continue tokens issued so far: they are answered 410 with a new token.
    pub fn expire_continue_tokens(&self) {
        self.api.store.expire_tokens();
    }

    /// Stores an object without defaulting, admission or validation, as a client may meet it after
    /// a schema change. The resource is `pods` or `widgets.example.com`.
    ///
    /// Returns false when the resource is not served or the value is not a JSON object.
    pub fn inject_raw(&self, resource: &str, namespace: &str, name: &str, object: Value) -> bool {
        self.api.store_raw(resource, namespace, name, object)
    }
}
