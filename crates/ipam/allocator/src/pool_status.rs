//! The status of an IPPool: figures and the condition `Ready`.

use serde_json::{Value, json};
use weft_ipam::{
    allocator::{IpPool, Usage, WallTime},
    objects::{self, IpPoolStatus, PoolCondition, PoolFigures, PoolFlaw},
};

use crate::clock::rfc3339;

const READY: &str = "Ready";

/// The status to write; none if the pool has it already.
pub(super) fn wanted(
    object: &objects::IpPool,
    pool: &IpPool,
    usage: Option<Usage>,
    exhausted: bool,
    flaws: &[PoolFlaw],
    now: WallTime,
) -> Option<IpPoolStatus> {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let before = &object.status;
    let status = IpPoolStatus {
        figures: usage.map(|usage| PoolFigures {
            total: number(usage.total),
            free: number(usage.free()),
            claimed: number(usage.claimed),
            cooldown: number(usage.cooldown),
        }),
        exhausted,
        observed_generation: object.metadata.generation.unwrap_or_default(),
        conditions: conditions(&before.conditions, ready(pool, flaws), now),
    };
    (status != *before).then_some(status)
}

/// The status as a merge patch, which also removes figures that the pool must not have.
pub(super) fn patch(status: &IpPoolStatus) -> Value {
    let mut patch = json!(status);
    if status.figures.is_none() {
        for field in PoolFigures::FIELDS {
            patch[field] = Value::Null;
        }
    }
    patch
}

/// The condition without its time.
fn ready(pool: &IpPool, flaws: &[PoolFlaw]) -> PoolCondition {
    let fatal = flaws.iter().find(|flaw| flaw.is_fatal());
    let (status, reason) = match (fatal, pool.disabled) {
        (Some(flaw), _) => ("False", flaw.reason()),
        (None, true) => ("False", "Disabled"),
        (None, false) => ("True", "Served"),
    };
    let messages: Vec<String> = flaws.iter().map(ToString::to_string).collect();
    PoolCondition {
        r#type: READY.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: messages.join("; "),
        last_transition_time: String::new(),
    }
}

/// Keeps conditions of other writers; ours keeps its time unless its status changes.
fn conditions(
    before: &[PoolCondition],
    mut ready: PoolCondition,
    now: WallTime,
) -> Vec<PoolCondition> {
    let old = before.iter().find(|condition| condition.r#type == READY);
    ready.last_transition_time = match old {
        Some(old) if old.status == ready.status => old.last_transition_time.clone(),
        _ => rfc3339(now),
    };
    let others = before.iter().filter(|condition| condition.r#type != READY);
    others.cloned().chain([ready]).collect()
}
