//! Faults on demand: what goes wrong between a client and a real API server, when asked for.
//!
//! A rule says which requests it is about ([`Matcher`]), what happens to them ([`Fault`]) and how
//! often ([`Times`]). Rates draw from a seeded generator, so a run can be repeated. Open watches
//! are acted upon directly: cut, stalled, sent an error.

mod matcher;
mod rules;
mod watches;

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::Value;

pub use matcher::Matcher;
pub use rules::{Fault, FaultId, Times, WatchError};
pub(crate) use rules::{FaultRules, Interference, no_streaming_lists};
pub use watches::{Cut, Stall};
pub(crate) use watches::{OpenWatches, WatchTicket};

use crate::{api::Api, request::Verb};

/// A handle to make things go wrong; see the module's description.
#[derive(Debug, Clone)]
pub struct Faults {
    pub(crate) api: Arc<Api>,
}

impl Faults {
    /// Adds a rule; it stays until its times are used up or it is removed.
    pub fn inject(&self, matcher: Matcher, fault: Fault, times: Times) -> FaultId {
        self.api.faults.add(matcher, fault, times)
    }

    /// Takes a rule back; harmless when it is used up.
    pub fn remove(&self, id: FaultId) {
        self.api.faults.remove(id);
    }

    /// Takes back every rule and releases every stalled watch.
    pub fn clear(&self) {
        self.api.faults.clear();
        self.api.watches.release_all();
    }

    /// Answers matching requests with a `Status` of this code.
    pub fn respond(&self, matcher: Matcher, code: StatusCode, times: Times) -> FaultId {
        self.inject(matcher, Fault::status(code), times)
    }

    /// Makes matching requests wait before they are handled.
    pub fn delay(&self, matcher: Matcher, by: Duration, times: Times) -> FaultId {
        self.inject(matcher, Fault::Delay(by), times)
    }

    /// Answers streaming lists with 422, as a server without that feature.
    pub fn refuse_streaming_lists(&self) -> FaultId {
        let matcher = Matcher::any().verb(Verb::Watch).streaming_list(true);
        self.inject(matcher, Fault::NoStreamingLists, Times::Always)
    }

    /// Answers matching requests as if the user had no right to them.
    pub fn refuse_authorisation(&self, matcher: Matcher, times: Times) -> FaultId {
        self.inject(matcher, Fault::Unauthorised, times)
    }

    /// Cuts what a client has open and refuses its connections for a while.
    pub fn drop_client(&self, matcher: Matcher, lasting: Duration) -> FaultId {
        self.api.watches.cut(&matcher, Cut::MidFrame);
        self.inject(matcher, Fault::Disconnect, Times::For(lasting))
    }

    /// Ends matching open watches; answers how many.
    pub fn cut_watches(&self, matcher: &Matcher, how: Cut) -> usize {
        self.api.watches.cut(matcher, how)
    }

    /// Sends matching open watches an ERROR event, after which they end; answers how many.
    pub fn send_watch_error(&self, matcher: &Matcher, error: &WatchError) -> usize {
        self.api.watches.fail(matcher, &error.to_error().status())
    }

    /// Holds back every byte of matching watches, those opened later too, until the answer is
    /// dropped. The connections stay open.
    #[must_use = "dropping the stall releases the watches"]
    pub fn stall_watches(&self, matcher: Matcher) -> Stall {
        self.api.watches.stall(matcher)
    }

    /// Forgets all history: watches, exact lists and continue tokens from before are answered 410.
    pub fn compact(&self) {
        self.api.store.compact();
    }

    /// Refuses to continue any list begun so far, with 410 and a fresh token.
    pub fn expire_continue_tokens(&self) {
        self.api.store.expire_tokens();
    }

    /// Stores an object as it is, past every rule: what a client must survive when a schema
    /// changes under it. The resource is `pods` or `widgets.example.com`.
    ///
    /// Answers false when the server knows no such resource.
    pub fn inject_raw(&self, resource: &str, namespace: &str, name: &str, object: Value) -> bool {
        self.api.store_raw(resource, namespace, name, object)
    }
}
