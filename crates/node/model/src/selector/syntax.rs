//! Syntax of label keys and values, with Kubernetes' error messages.

/// Longest name part of a label key, and longest label value.
pub const LABEL_MAX: usize = 63;
/// Longest DNS subdomain.
pub const SUBDOMAIN_MAX: usize = 253;

const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
    '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const QUALIFIED: &str = "a valid label key must consist of alphanumeric characters, '-', '_' or \
    '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
    '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an \
    optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric \
    characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
    'MyValue',  or 'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
    'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
    characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
    '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// Errors of a qualified name such as a label key; empty if it is valid.
pub fn qualified_name_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(
                    subdomain_errors(prefix)
                        .into_iter()
                        .map(|text| format!("prefix part {text}")),
                );
            }
            name
        }
        _ => return vec![QUALIFIED.replace("valid label key", "qualified name")],
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part must be no more than {LABEL_MAX} bytes"));
    }
    if !is_qualified_part(name) {
        errors.push(NAME_PART.to_owned());
    }
    errors
}

/// Errors of a label key: those of a qualified name, with other words.
pub fn label_key_errors(text: &str) -> Vec<String> {
    if text.split('/').count() > 2 {
        return vec![QUALIFIED.to_owned()];
    }
    qualified_name_errors(text)
}

/// Errors of a label value; empty if it is valid.
pub fn label_value_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_MAX {
        errors.push(format!("must be no more than {LABEL_MAX} bytes"));
    }
    if !text.is_empty() && !is_qualified_part(text) {
        errors.push(LABEL_VALUE.to_owned());
    }
    errors
}

/// Errors of an RFC 1123 subdomain; empty if it is valid.
pub fn subdomain_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        errors.push(format!("must be no more than {SUBDOMAIN_MAX} bytes"));
    }
    if text.is_empty() || !text.split('.').all(is_dns_label) {
        errors.push(SUBDOMAIN.to_owned());
    }
    errors
}

/// Errors of an RFC 1123 label; empty if it is valid.
pub fn dns_label_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_MAX {
        errors.push(format!("must be no more than {LABEL_MAX} bytes"));
    }
    if !is_dns_label(text) {
        let dotted = text.split('.').all(is_dns_label);
        errors.push(if dotted {
            "must not contain dots".to_owned()
        } else {
            LABEL.to_owned()
        });
    }
    errors
}

fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    let edge = |b: Option<&u8>| b.is_some_and(|b| *b != b'-');
    bytes.iter().all(inner) && edge(bytes.first()) && edge(bytes.last())
}

fn is_qualified_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.iter().all(inner) && edge(bytes.first()) && edge(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_may_carry_a_dns_prefix() {
        assert!(qualified_name_errors("kubernetes.io/metadata.name").is_empty());
        assert_eq!(
            qualified_name_errors("/x"),
            ["prefix part must be non-empty"]
        );
        assert_eq!(label_key_errors("a/b/c"), [QUALIFIED]);
        assert_ne!(qualified_name_errors("a/b/c"), [QUALIFIED]);
        assert_eq!(qualified_name_errors(&"x".repeat(64)).len(), 1);
    }

    #[test]
    fn a_dotted_label_has_an_error_of_its_own() {
        assert_eq!(dns_label_errors("a.b"), ["must not contain dots"]);
        assert_eq!(dns_label_errors("A"), [LABEL]);
        assert!(dns_label_errors("1abc").is_empty());
    }

    #[test]
    fn label_values_may_be_empty() {
        assert!(label_value_errors("").is_empty());
        assert_eq!(label_value_errors("-bad-"), [LABEL_VALUE]);
    }
}
