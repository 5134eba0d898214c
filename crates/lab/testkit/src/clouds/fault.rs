use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Something that shall go wrong. As JSON:
/// `{"endpoint": "add_route", "times": 2, "kind": "fail", "code": "locked"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which calls, by the name under which they are counted; all if absent.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// How often.
    #[serde(default = "once")]
    pub times: u32,
    /// What.
    #[serde(flatten)]
    pub kind: FaultKind,
}

fn once() -> u32 {
    1
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FaultKind {
    /// The call is refused with this code, and nothing happens.
    Fail {
        /// The cloud's own code.
        code: String,
    },
    /// The call is taken, and the action that it starts ends with this code. Only where calls start
    /// actions; elsewhere as [`FaultKind::Fail`].
    ActionFails {
        /// The cloud's own code.
        code: String,
    },
    /// The connection is cut before anything happens.
    DropBefore,
    /// The call has its effect, and the connection is cut before the answer.
    DropAfter,
    /// The call has its effect, and the answer is no sentence of the protocol.
    Garbage,
    /// The answer takes longer.
    Slow {
        /// By this much.
        milliseconds: u64,
    },
}

impl Fault {
    /// Calls of an endpoint are refused with a code.
    pub fn fail(endpoint: &str, times: u32, code: &str) -> Self {
        let code = code.to_owned();
        Self::on(endpoint, FaultKind::Fail { code }).times(times)
    }

    /// Goes wrong once.
    pub fn on(endpoint: &str, kind: FaultKind) -> Self {
        Self {
            endpoint: Some(endpoint.to_owned()),
            times: 1,
            kind,
        }
    }

    /// Goes wrong so often.
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

/// The faults that are left, in the order in which they were given.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What goes wrong with this call; that time is spent.
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
    fn a_fault_is_spent_call_by_call_on_the_calls_it_names() {
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
