//! Writes `NetworkUnavailable` as upstream does.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use weft_model::SharedStr;
use weft_routes::{ConditionChange, Moment, Reason};

/// A merge by type in `nodes/status`, so that nobody else's condition is touched; a node that is
/// gone needs none.
pub(crate) async fn write(client: Client, change: &ConditionChange) -> kube::Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let status = if change.reason.status() {
        "True"
    } else {
        "False"
    };
    let patch = json!({ "status": { "conditions": [{
        "type": "NetworkUnavailable",
        "status": status,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": change.reason.as_str(),
        "message": change.reason.message(),
    }] } });
    let nodes: Api<Node> = Api::all(client);
    let parameters = PatchParams::default();
    let patched = nodes
        .patch_status(&change.node, &parameters, &Patch::Strategic(&patch))
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Writes that run at once.
const PARALLEL: usize = 16;
/// First and longest wait after a failed write.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Conditions that have to be written: one at a time for each node, so that none overtakes another,
/// and the last word counts.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    wanted: BTreeMap<SharedStr, Wish>,
    writing: BTreeSet<SharedStr>,
}

#[derive(Debug)]
struct Wish {
    reason: Reason,
    at: Moment,
    failures: u32,
}

impl Conditions {
    pub(crate) fn want(&mut self, change: ConditionChange, now: Moment) {
        let wish = Wish {
            reason: change.reason,
            at: now,
            failures: 0,
        };
        self.wanted.insert(change.node, wish);
    }

    /// The node is gone.
    pub(crate) fn forget(&mut self, node: &str) {
        self.wanted.remove(node);
    }

    /// What to write next. Say the end with [`Conditions::written`].
    pub(crate) fn next(&mut self, now: Moment) -> Option<ConditionChange> {
        if self.writing.len() >= PARALLEL {
            return None;
        }
        let mut wishes = self.wanted.iter();
        let (node, wish) =
            wishes.find(|(node, wish)| wish.at <= now && !self.writing.contains(*node))?;
        let change = ConditionChange {
            node: node.clone(),
            reason: wish.reason,
        };
        self.writing.insert(change.node.clone());
        Some(change)
    }

    /// A write ended.
    pub(crate) fn written(&mut self, change: &ConditionChange, done: bool, now: Moment) {
        self.writing.remove(&change.node);
        let Some(wish) = self.wanted.get_mut(&change.node) else {
            return;
        };
        if done && wish.reason == change.reason {
            self.wanted.remove(&change.node);
        } else if !done {
            let factor = 2_u32.saturating_pow(wish.failures.min(6));
            wish.failures = wish.failures.saturating_add(1);
            wish.at = now + (RETRY.0 * factor).min(RETRY.1);
        }
    }

    /// When to look again, if nothing happens before.
    pub(crate) fn wake(&self) -> Option<Moment> {
        if self.writing.len() >= PARALLEL {
            return None;
        }
        let idle = self
            .wanted
            .iter()
            .filter(|(node, _)| !self.writing.contains(*node));
        idle.map(|(_, wish)| wish.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(reason: Reason) -> ConditionChange {
        ConditionChange {
            node: "node-1".into(),
            reason,
        }
    }

    #[test]
    fn the_last_word_is_written_after_the_one_before() {
        let now = Moment::START;
        let mut conditions = Conditions::default();
        conditions.want(says(Reason::NoRouteCreated), now);
        let first = conditions.next(now).unwrap();
        conditions.want(says(Reason::RouteCreated), now);
        assert_eq!(conditions.next(now), None, "one at a time");
        assert_eq!(conditions.wake(), None);
        conditions.written(&first, true, now);
        let second = conditions.next(now).unwrap();
        assert_eq!(second, says(Reason::RouteCreated));
        conditions.written(&second, true, now);
        assert_eq!((conditions.next(now), conditions.wake()), (None, None));
    }

    #[test]
    fn a_write_that_fails_is_tried_again_after_growing_pauses() {
        let mut now = Moment::START;
        let mut conditions = Conditions::default();
        conditions.want(says(Reason::RouteCreated), now);
        for seconds in [1, 2, 4, 8] {
            let change = conditions.next(now).unwrap();
            conditions.written(&change, false, now);
            assert_eq!(conditions.next(now), None);
            now = now + Duration::from_secs(seconds);
            assert_eq!(conditions.wake(), Some(now));
        }
        assert!(conditions.next(now).is_some());
    }
}
