//! Reads a configuration file as kube-proxy does: a field that is unset or zero gets its default,
//! and an unknown field gives a warning, not an error.

use serde_json::{Map, Value, json};
use serde_saphyr::options::DuplicateKeyPolicy;
use thiserror::Error;
use weft_model::IpFamily;

use super::{
    API_VERSION, FieldError, GoDuration, HEALTHZ_PORT, InvalidConfiguration, KIND,
    KubeProxyConfiguration, METRICS_PORT,
    checked::{address_with_port, bind_family},
};

/// The contents of a configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The configuration with defaults filled in. Not yet validated.
    pub configuration: KubeProxyConfiguration,
    /// Findings that a strict decoder would refuse, for the log.
    pub warnings: Vec<String>,
}

/// A file that is not a kube-proxy configuration.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// Not YAML.
    #[error("it is not valid YAML")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// Another kind of object, or none.
    #[error(
        "expected apiVersion {API_VERSION} and kind {KIND}, found apiVersion \
         {api_version:?} and kind {kind:?}"
    )]
    Kind {
        /// The `apiVersion` found.
        api_version: String,
        /// The `kind` found.
        kind: String,
    },
    /// Values of the wrong type.
    #[error(transparent)]
    Fields(#[from] InvalidConfiguration),
}

/// Sections that may have any keys.
const OPAQUE: [&str; 3] = ["featureGates", "logging.options", "logging.vmodule"];

/// Decodes a file.
pub fn decode(text: &str) -> Result<Decoded, DecodeError> {
    let mut warnings = Vec::new();
    let mut given = parse(text, &mut warnings)?;
    let word = |value: Option<Value>| match value {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let api_version = word(given.remove("apiVersion"));
    let kind = word(given.remove("kind"));
    if api_version != API_VERSION || kind != KIND {
        return Err(DecodeError::Kind { api_version, kind });
    }
    let mut all = shape();
    overlay(&mut all, given.clone(), "", &mut warnings);
    let mut configuration: KubeProxyConfiguration =
        serde_json::from_value(Value::Object(all)).map_err(|error| culprits(given, &error))?;
    configuration.default_what_is_zero();
    Ok(Decoded {
        configuration,
        warnings,
    })
}

/// Parses strictly first: a duplicate key gives a warning, and the later one is used.
fn parse(text: &str, warnings: &mut Vec<String>) -> Result<Map<String, Value>, DecodeError> {
    let strict = serde_saphyr::options! { with_snippet: false };
    let lenient = serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: DuplicateKeyPolicy::LastWins,
    };
    let document: Option<Value> = match serde_saphyr::from_str_with_options(text, strict) {
        Ok(document) => document,
        Err(error) => {
            let document = serde_saphyr::from_str_with_options(text, lenient)
                .map_err(|error| DecodeError::Syntax(Box::new(error)))?;
            warnings.push(error.to_string());
            document
        }
    };
    match document {
        Some(Value::Object(fields)) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// All defaults with every key, including those that are left out when printed.
fn shape() -> Map<String, Value> {
    let defaults = KubeProxyConfiguration::default();
    let Ok(Value::Object(mut all)) = serde_json::to_value(defaults) else {
        unreachable!("a configuration is a mapping with text for keys")
    };
    all.insert("featureGates".to_owned(), json!({}));
    all.insert("windowsRunAsService".to_owned(), json!(false));
    all["logging"]["vmodule"] = json!([]);
    // Their defaults depend on the family of another field.
    all.insert("healthzBindAddress".to_owned(), json!(""));
    all.insert("metricsBindAddress".to_owned(), json!(""));
    all
}

/// Overwrites defaults with given values. Null leaves the default.
fn overlay(
    into: &mut Map<String, Value>,
    given: Map<String, Value>,
    path: &str,
    warnings: &mut Vec<String>,
) {
    for (key, value) in given {
        let path = join(path, &key);
        match (into.get_mut(&key), value) {
            (None, _) => warnings.push(format!("unknown field \"{path}\"")),
            (Some(_), Value::Null) => {}
            (Some(Value::Object(into)), Value::Object(given)) if !OPAQUE.contains(&&*path) => {
                overlay(into, given, &path, warnings);
            }
            (Some(into), value) => *into = value,
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Finds the fields that do not decode by trying each one alone over the defaults.
fn culprits(given: Map<String, Value>, whole: &serde_json::Error) -> InvalidConfiguration {
    let mut leaves = Vec::new();
    collect_leaves(given, &mut Vec::new(), &mut leaves);
    let mut errors: Vec<FieldError> = leaves
        .into_iter()
        .filter_map(|(path, value)| {
            let alone = path.iter().rev().fold(value, |value, key| {
                let mut level = Map::new();
                level.insert(key.clone(), value);
                Value::Object(level)
            });
            let Value::Object(alone) = alone else {
                return None;
            };
            let mut all = shape();
            overlay(&mut all, alone, "", &mut Vec::new());
            let decoded = serde_json::from_value::<KubeProxyConfiguration>(Value::Object(all));
            let problem = decoded.err()?.to_string();
            Some(FieldError::new(path.join("."), problem))
        })
        .collect();
    if errors.is_empty() {
        errors.push(FieldError::new(KIND, whole.to_string()));
    }
    InvalidConfiguration(errors)
}

fn collect_leaves(
    fields: Map<String, Value>,
    path: &mut Vec<String>,
    leaves: &mut Vec<(Vec<String>, Value)>,
) {
    for (key, value) in fields {
        path.push(key);
        match value {
            Value::Object(fields) if !fields.is_empty() => collect_leaves(fields, path, leaves),
            value => leaves.push((path.clone(), value)),
        }
        path.pop();
    }
}

impl KubeProxyConfiguration {
    /// Replaces zero values by defaults. Go cannot distinguish zero from unset in most fields, so
    /// `minSyncPeriod: 0s` in a file means one second, unlike `0s` as a flag.
    fn default_what_is_zero(&mut self) {
        let defaults = Self::default();
        let or = |value: &mut GoDuration, default: GoDuration| {
            if value.is_zero() {
                *value = default;
            }
        };
        or(&mut self.config_sync_period, defaults.config_sync_period);
        let iptables = &mut self.iptables;
        or(&mut iptables.sync_period, defaults.iptables.sync_period);
        or(
            &mut iptables.min_sync_period,
            defaults.iptables.min_sync_period,
        );
        let or = |value: &mut String, default: String| {
            if value.is_empty() {
                *value = default;
            }
        };
        or(&mut self.bind_address, defaults.bind_address);
        or(&mut self.mode, defaults.mode);
        or(&mut self.detect_local_mode, defaults.detect_local_mode);
        or(&mut self.logging.format, defaults.logging.format);
        let client = defaults.client_connection;
        or(
            &mut self.client_connection.content_type,
            client.content_type,
        );
        if self.client_connection.burst == 0 {
            self.client_connection.burst = client.burst;
        }
        if self.client_connection.qps == 0.0 {
            self.client_connection.qps = client.qps;
        }
        let flush = &self.logging.flush_frequency;
        if *flush == json!(0) || *flush == json!("0s") || *flush == json!("0") {
            self.logging.flush_frequency = defaults.logging.flush_frequency;
        }
        self.default_addresses();
    }

    /// Sets default addresses, in the family of the bind address.
    fn default_addresses(&mut self) {
        let (all, loopback) = match bind_family(&self.bind_address) {
            IpFamily::V4 => ("0.0.0.0", "127.0.0.1"),
            IpFamily::V6 => ("::", "::1"),
        };
        for (address, default, port) in [
            (&mut self.healthz_bind_address, all, HEALTHZ_PORT),
            (&mut self.metrics_bind_address, loopback, METRICS_PORT),
        ] {
            let given = if address.is_empty() {
                default
            } else {
                address.as_str()
            };
            *address = address_with_port(given, port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(fields: &str) -> String {
        format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{fields}\n")
    }

    fn decoded(fields: &str) -> KubeProxyConfiguration {
        let decoded = decode(&file(fields)).unwrap();
        assert_eq!(decoded.warnings, [""; 0]);
        decoded.configuration
    }

    #[test]
    fn nothing_null_and_zero_mean_the_defaults() {
        let defaults = KubeProxyConfiguration::default();
        for fields in [
            "",
            include_str!("../../testdata/kubeadm.yaml"),
            "iptables:\nlogging:\nconntrack: {}\n",
        ] {
            assert_eq!(decoded(fields), defaults, "{fields}");
        }
    }

    /// `0s` as a flag means no minimum; in a file it is the same as unset.
    #[test]
    fn a_minimal_period_of_zero_in_a_file_is_one_second() {
        for zero in ["0s", "0", "0h"] {
            let read = decoded(&format!("iptables: {{minSyncPeriod: \"{zero}\"}}"));
            assert_eq!(read.iptables.min_sync_period, GoDuration::from_seconds(1));
        }
        let read = decoded("iptables: {minSyncPeriod: 10s}");
        assert_eq!(read.iptables.min_sync_period, GoDuration::from_seconds(10));
    }

    #[test]
    fn zero_stays_zero_where_it_has_a_meaning() {
        let read = decoded(
            "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s}\noomScoreAdj: 0",
        );
        assert_eq!(read.conntrack.max_per_core, 0);
        assert_eq!(read.conntrack.min, 0);
        assert!(read.conntrack.tcp_established_timeout.is_zero());
        assert_eq!(read.oom_score_adj, 0);
    }

    #[test]
    fn addresses_follow_the_family_of_the_bind_address() {
        let read = decoded("bindAddress: '::'");
        assert_eq!(read.healthz_bind_address, "[::]:10256");
        assert_eq!(read.metrics_bind_address, "[::1]:10249");
        let read = decoded("healthzBindAddress: 10.0.0.1\nmetricsBindAddress: fd00::1");
        assert_eq!(read.healthz_bind_address, "10.0.0.1:10256");
        assert_eq!(read.metrics_bind_address, "[fd00::1]:10249");
    }

    #[test]
    fn unknown_fields_are_reported_and_do_not_stop_it() {
        let text = file(
            "foo: 1\niptables: {bar: 2, masqueradeBit: 3, masqueradeBit: 4}\nipvs: {baz: {}}\n\
             featureGates: {Anything: true}\nlogging: {options: {json: {splitStream: true}}}",
        );
        let Decoded {
            configuration,
            warnings,
        } = decode(&text).unwrap();
        assert_eq!(configuration.iptables.masquerade_bit, 4);
        assert!(configuration.feature_gates["Anything"]);
        assert!(warnings[0].contains("masqueradeBit"), "{warnings:?}");
        assert_eq!(
            warnings[1..],
            [
                "unknown field \"foo\"",
                "unknown field \"iptables.bar\"",
                "unknown field \"ipvs.baz\""
            ]
        );
    }

    #[test]
    fn values_of_the_wrong_type_are_all_named() {
        let text = file(
            "mode: 5\niptables: {syncPeriod: 5, minSyncPeriod: soon}\nipvs: 3\noomScoreAdj: 1",
        );
        let DecodeError::Fields(InvalidConfiguration(errors)) = decode(&text).unwrap_err() else {
            panic!("expected errors of fields");
        };
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "iptables.minSyncPeriod",
                "iptables.syncPeriod",
                "ipvs",
                "mode"
            ]
        );
        assert!(
            errors[0].problem.contains("`soon` is not a duration"),
            "{errors:?}"
        );
    }

    #[test]
    fn other_kinds_and_no_yaml_are_refused() {
        for text in [
            "",
            "mode: iptables",
            "[]",
            "apiVersion: v1\nkind: KubeProxyConfiguration",
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: ConfigMap",
        ] {
            let error = decode(text).unwrap_err();
            assert!(matches!(error, DecodeError::Kind { .. }), "{text}: {error}");
        }
        let error = decode("a: [").unwrap_err();
        assert!(matches!(error, DecodeError::Syntax(_)), "{error}");
    }
}
