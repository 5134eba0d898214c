//! Label selectors in the structured form of objects (`matchLabels`, `matchExpressions`).

use serde_json::Value;

/// True when labels match a selector; an empty selector matches everything.
pub(crate) fn matches(selector: &Value, labels: Option<&Value>) -> bool {
    let label = |key: &str| labels?.get(key)?.as_str();
    let equal = selector.get("matchLabels").and_then(Value::as_object);
    let equal = equal
        .into_iter()
        .flatten()
        .all(|(key, value)| label(key) == value.as_str());
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    equal
        && expressions.into_iter().flatten().all(|expression| {
            let key = expression
                .get("key")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let values = expression.get("values").and_then(Value::as_array);
            let listed = |value: &str| values.is_some_and(|list| list.iter().any(|v| v == value));
            match (
                expression.get("operator").and_then(Value::as_str),
                label(key),
            ) {
                (Some("In"), value) => value.is_some_and(listed),
                (Some("NotIn"), value) => !value.is_some_and(listed),
                (Some("Exists"), value) => value.is_some(),
                (Some("DoesNotExist"), value) => value.is_none(),
                _ => false,
            }
        })
}
