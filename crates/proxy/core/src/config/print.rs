//! The configuration as kube-proxy's `--write-config-to` prints it.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::{API_VERSION, KIND, KubeProxyConfiguration, Mode};

impl KubeProxyConfiguration {
    /// The name of the mode: the configured one, or the default.
    pub fn effective_mode(&self) -> &str {
        if self.mode.is_empty() {
            Mode::default().as_str()
        } else {
            &self.mode
        }
    }

    /// A YAML document that can be read back.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        if let Value::Object(fields) = self.to_json() {
            write_fields(&mut text, &fields, 0);
        }
        text
    }

    /// A JSON object with `apiVersion` and `kind`.
    pub fn to_json(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_else(|_| {
            unreachable!("a configuration is a mapping with text for keys");
        });
        value["apiVersion"] = json!(API_VERSION);
        value["kind"] = json!(KIND);
        value["mode"] = json!(self.effective_mode());
        value
    }
}

fn write_fields(text: &mut String, fields: &Map<String, Value>, depth: usize) {
    for (key, value) in fields {
        indent(text, depth);
        text.push_str(&scalar(&Value::String(key.clone())));
        text.push(':');
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                text.push('\n');
                write_fields(text, fields, depth + 1);
            }
            Value::Array(items) if !items.is_empty() => {
                text.push('\n');
                for item in items {
                    indent(text, depth);
                    // Items that are not scalars are written as JSON, which is valid YAML. Only
                    // options that are not used have such items.
                    let _infallible = writeln!(text, "- {}", scalar(item));
                }
            }
            value => {
                let _infallible = writeln!(text, " {}", scalar(value));
            }
        }
    }
}

fn indent(text: &mut String, depth: usize) {
    for _ in 0..depth {
        text.push_str("  ");
    }
}

/// Quotes text only where YAML would read it as another type.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::String(text) if reads_as_another_type(text) || text.contains(char::is_control) => {
            value.to_string()
        }
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        // 5.0 is 5 in Go.
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => float.to_string(),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

fn is_plain(text: &str) -> bool {
    let fine = |c: char| c.is_alphanumeric() || "_./-+,:".contains(c);
    text.starts_with(|c: char| c.is_alphanumeric() || c == '/')
        && text.chars().all(fine)
        && !text.ends_with(':')
        && !reads_as_another_type(text)
}

fn reads_as_another_type(text: &str) -> bool {
    const WORDS: [&str; 9] = ["", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let word = text.to_ascii_lowercase();
    WORDS.contains(&word.as_str())
        || matches!(word.as_str(), "null" | "~")
        || text.parse::<f64>().is_ok()
        || text.starts_with("0x")
        // 1:30 is ninety and 2001-02-03 a day in YAML 1.1.
        || text.starts_with(|c: char| c.is_ascii_digit())
            && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b':' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{GoDuration, decode};

    #[test]
    fn the_defaults_print_as_kube_proxy_prints_them() {
        let expected = include_str!("../../testdata/defaults.yaml");
        assert_eq!(KubeProxyConfiguration::default().to_yaml(), expected);
    }

    #[test]
    fn what_is_printed_reads_back_the_same() {
        let mut configuration = KubeProxyConfiguration {
            bind_address: "::".to_owned(),
            mode: "nftables".to_owned(),
            hostname_override: "0123".to_owned(),
            healthz_bind_address: "[::]:10256".to_owned(),
            cluster_cidr: "10.244.0.0/16,fd00:10:244::/48".to_owned(),
            node_port_addresses: Some(vec!["10.0.0.0/8".to_owned(), "::1/128".to_owned()]),
            windows_run_as_service: true,
            port_range: "it's: \"odd\"\n#".to_owned(),
            ..KubeProxyConfiguration::default()
        };
        configuration.feature_gates.insert("Yes".to_owned(), false);
        configuration.client_connection.qps = 2.5;
        configuration.detect_local.bridge_interface = "on".to_owned();
        configuration.iptables.min_sync_period = GoDuration::from_nanoseconds(1_500_000);
        let text = configuration.to_yaml();
        let decoded = decode(&text).unwrap();
        assert_eq!(decoded.warnings, [""; 0], "{text}");
        assert_eq!(decoded.configuration, configuration, "{text}");
        for line in [
            "bindAddress: '::'",
            "clusterCIDR: 10.244.0.0/16,fd00:10:244::/48",
            "hostnameOverride: \"0123\"",
            "healthzBindAddress: '[::]:10256'",
            "  qps: 2.5",
            "nodePortAddresses:\n- 10.0.0.0/8\n- '::1/128'\n",
            "  minSyncPeriod: 1.5ms",
        ] {
            assert!(text.contains(line), "no {line:?} in\n{text}");
        }
    }

    #[test]
    fn text_that_could_be_another_type_is_quoted() {
        for text in [
            "",
            "yes",
            "No",
            "null",
            "~",
            "1",
            "0x10",
            "1e3",
            "1:30",
            "2001-02-03",
            "a b",
            "-x",
            "#",
        ] {
            let printed = scalar(&json!(text));
            let read: Value = serde_saphyr::from_str(&printed).unwrap();
            assert_eq!(read, json!(text), "{printed}");
            assert!(printed.starts_with(['"', '\'']), "{printed}");
        }
        for text in [
            "30s",
            "0.0.0.0:10256",
            "text",
            "application/vnd.x",
            "/var/lib/x.conf",
            "10.0.0.0/8",
        ] {
            assert_eq!(scalar(&json!(text)), text);
        }
    }
}
