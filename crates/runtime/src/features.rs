//! Feature gates: behaviour that an operator can switch when the process starts.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{
    collector::Collector, encoding::DescriptorEncoder, metrics::MetricType, registry::Registry,
};
use thiserror::Error;

/// Maturity of a feature, as in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// May be removed in any release.
    Alpha,
    /// May change.
    Beta,
    /// Cannot be removed.
    Stable,
    /// Will be removed.
    Deprecated,
}

impl Stage {
    /// As Kubernetes names it in metrics.
    fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Stable => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// A feature that can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureGate {
    /// Name in `--feature-gates`.
    pub name: &'static str,
    /// Value if `--feature-gates` does not name it.
    pub default: bool,
    /// Maturity, shown in `kubernetes_feature_enabled`.
    pub stage: Stage,
    /// Setting another value than the default is an error.
    pub locked: bool,
}

/// Handling of gate names that are not defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownGates {
    /// Returns an error.
    Refuse,
    /// Returns a warning: for commands that replace a program whose gates are not all defined here.
    Warn,
}

/// Failure to apply `--feature-gates`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FeatureGateError {
    /// No gate of this name is defined.
    #[error("unknown feature gate {name:?}: known are {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// Defined names, separated by commas.
        known: String,
    },
    /// The gate's value is fixed.
    #[error("feature gate {name} is locked to {value}")]
    Locked {
        /// The gate.
        name: &'static str,
        /// The value it is locked to.
        value: bool,
    },
    /// Not `Name=true` or `Name=false`.
    #[error("feature gate {0:?}: expected Name=true or Name=false")]
    Malformed(String),
}

/// The gates of a process while it reads its command line.
#[derive(Clone, Debug)]
pub struct FeatureGates {
    gates: BTreeMap<&'static str, (FeatureGate, bool)>,
}

impl FeatureGates {
    /// Gates at their defaults.
    pub fn new(gates: &[FeatureGate]) -> Self {
        let gates = gates.iter().map(|gate| (gate.name, (*gate, gate.default)));
        Self {
            gates: gates.collect(),
        }
    }

    /// Applies `A=true,B=false`. Returns warnings for the log.
    pub fn set(
        &mut self,
        text: &str,
        unknown: UnknownGates,
    ) -> Result<Vec<String>, FeatureGateError> {
        let mut warnings = Vec::new();
        for pair in text
            .split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
        {
            let malformed = || FeatureGateError::Malformed(pair.to_owned());
            let (name, value) = pair.split_once('=').ok_or_else(malformed)?;
            let value = match value.trim().to_ascii_lowercase().as_str() {
                "true" | "t" | "1" => true,
                "false" | "f" | "0" => false,
                _ => return Err(malformed()),
            };
            match self.gates.get_mut(name.trim()) {
                Some((gate, current)) if gate.locked && value != *current => {
                    return Err(FeatureGateError::Locked {
                        name: gate.name,
                        value: *current,
                    });
                }
                Some((_, current)) => *current = value,
                None if unknown == UnknownGates::Warn => {
                    warnings.push(format!("ignoring unknown feature gate {name}"));
                }
                None => {
                    let known: Vec<&str> = self.gates.keys().copied().collect();
                    let (name, known) = (name.to_owned(), known.join(", "));
                    return Err(FeatureGateError::Unknown { name, known });
                }
            }
        }
        Ok(warnings)
    }

    /// Fixes the values for the run of the process.
    pub fn freeze(self) -> Features {
        Features {
            gates: Arc::new(self.gates),
        }
    }
}

/// The gates of a running process, immutable.
#[derive(Clone, Debug)]
pub struct Features {
    gates: Arc<BTreeMap<&'static str, (FeatureGate, bool)>>,
}

impl Features {
    /// Returns whether a feature is enabled. A name that was never defined is disabled.
    pub fn is_enabled(&self, name: &str) -> bool {
        self.gates.get(name).is_some_and(|(_, value)| *value)
    }

    /// Exposes the gates as `kubernetes_feature_enabled`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }
}

impl Collector for Features {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "kubernetes_feature_enabled",
            "1 if the feature is enabled, by name and stage",
            None,
            MetricType::Gauge,
        )?;
        for (gate, value) in self.gates.values() {
            let labels = [("name", gate.name), ("stage", gate.stage.label())];
            family
                .encode_family(&labels)?
                .encode_gauge(&i64::from(*value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::prometheus_text;

    fn gates() -> FeatureGates {
        FeatureGates::new(&[
            FeatureGate {
                name: "Quick",
                default: true,
                stage: Stage::Beta,
                locked: false,
            },
            FeatureGate {
                name: "Settled",
                default: true,
                stage: Stage::Stable,
                locked: true,
            },
        ])
    }

    #[test]
    fn invariant_43_unknown_names_and_locked_values_are_errors() {
        let mut gates = gates();
        assert_eq!(
            gates.set("Quick=false, Settled=true", UnknownGates::Refuse),
            Ok(vec![])
        );
        assert!(!gates.clone().freeze().is_enabled("Quick"));
        assert_eq!(
            gates.set("Settled=false", UnknownGates::Warn),
            Err(FeatureGateError::Locked {
                name: "Settled",
                value: true
            })
        );
        let error = gates.set("Nope=true", UnknownGates::Refuse).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown feature gate \"Nope\": known are Quick, Settled"
        );
        assert!(matches!(
            gates.set("Quick", UnknownGates::Warn),
            Err(FeatureGateError::Malformed(_))
        ));
        assert!(matches!(
            gates.set("Quick=yes", UnknownGates::Warn),
            Err(FeatureGateError::Malformed(_))
        ));
        let warnings = gates
            .set("SomeUpstreamGate=true,Quick=true", UnknownGates::Warn)
            .unwrap();
        assert!(warnings[0].contains("SomeUpstreamGate"));
        assert!(
            gates.freeze().is_enabled("Quick"),
            "known gates still apply"
        );
    }

    #[test]
    fn invariant_43_gates_are_exposed() {
        let mut registry = Registry::default();
        gates().freeze().register(&mut registry);
        let text = prometheus_text(&registry);
        assert!(
            text.contains("kubernetes_feature_enabled{name=\"Quick\",stage=\"BETA\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("kubernetes_feature_enabled{name=\"Settled\",stage=\"\"} 1"),
            "{text}"
        );
    }
}
