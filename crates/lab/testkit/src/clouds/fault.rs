//! Faults that a double injects into calls.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A fault to inject. As JSON:
/// `{"endpoint": "add_route", "times": 2, "kind": "fail", "code": "locked"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Name under which the affected calls are counted; all calls if absent.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Number of calls that the fault affects.
    #[serde(default = "once")]
    pub times: u32,
    /// The effect on each of these calls.
    #[serde(flatten)]
    pub kind: FaultKind,
}

fn once() -> u32 {
    1
}

/// The effect of a fault on a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FaultKind {
    /// The call is refused with this code and has no effect.
    Fail {
        /// The cloud's own code.
        code: String,
    },
    /// The call is accepted, and the action that it starts fails with this code. Where calls do not
    /// start actions it is the same as [`FaultKind::Fail`].
    ActionFails {
        /// The cloud's own code.
        code: String,
    },
    /// The connection is closed before the call has its effect.
    DropBefore,
    /// The call has its effect, and the connection is closed before the response.
    DropAfter,
    /// The call has its effect, and the response is not one of the API.
    Garbage,
    /// The response is delayed.
    Slow {
        /// Additional delay.
        milliseconds: u64,
    },
}

impl Fault {
    /// Refuses the next `times` calls of an endpoint with a code.
    pub fn fail(endpoint: &str, times: u32, code: &str) -> Self {
        let code = code.to_owned();
        Self::on(endpoint, FaultKind::Fail { code }).times(times)
    }

    /// A fault for the next call of an endpoint.
    pub fn on(endpoint: &str, kind: FaultKind) -> Self {
        Self {
            endpoint: Some(endpoint.to_owned()),
            times: 1,
            kind,
        }
    }

    /// Sets the number of calls that the fault affects.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

impl FaultKind {
    pub(super) fn delay(&self) -> Duration {
        match self {
            Self::Slow { milliseconds } => Duration::from_millis(*milliseconds),
            _ => Duration::ZERO,
        }
    }
}

/// Pending faults, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes the first pending fault for this call and counts it down.
    pub(super) fn take(&mut self, endpoint: &str) -> Option<FaultKind> {
        let concerns = |fault: &Fault| {
            fault
                .endpoint
                .as_deref()
                .is_none_or(|name| name == endpoint)
        };
        let index = self
            .0
            .iter()
            .position(|fault| fault.times > 0 && concerns(fault))?;
        self.0[index].times -= 1;
        let kind = self.0[index].kind.clone();
        self.0.retain(|fault| fault.times > 0);
        Some(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_counts_down_with_each_call_it_names() {
        let mut faults = Faults::default();
        let text = r#"{"endpoint": "add_route", "times": 2, "kind": "fail", "code": "locked"}"#;
        faults.add(serde_json::from_str(text).unwrap());
        faults.add(serde_json::from_str(r#"{"kind": "drop_before"}"#).unwrap());
        let locked = FaultKind::Fail {
            code: "locked".to_owned(),
        };
        assert_eq!(faults.take("add_route"), Some(locked.clone()));
        assert_eq!(faults.take("get_network"), Some(FaultKind::DropBefore));
        assert_eq!(faults.take("get_network"), None);
        assert_eq!(faults.take("add_route"), Some(locked));
        assert_eq!(faults.take("add_route"), None);
    }
}
