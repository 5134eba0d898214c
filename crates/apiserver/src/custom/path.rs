//! JSON paths of printer columns: members, indexes, simple filters and the first match of a wildcard.

use serde_json::Value;

use crate::store::Object;

/// Limit of values visited for one cell: a wildcard tries each element until one matches.
const MAX_VALUES: usize = 10_000;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    Index(usize),
    /// Elements whose member at this path has this value: `[?(@.type=="Ready")]`.
    Where(Vec<String>, String),
    Any,
}

/// A path into an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JsonPath(Vec<Step>);

impl JsonPath {
    /// Parses a path such as `.spec.size` or `.status.conditions[?(@.type=="Ready")].status`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text.trim().trim_start_matches('{').trim_end_matches('}');
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let end = if inside.starts_with('?') {
                    inside.find(")]")? + 1
                } else {
                    inside.find(']')?
                };
                steps.push(bracket(&inside[..end])?);
                rest = &inside[end + 1..];
                continue;
            }
            rest = rest.strip_prefix('.').unwrap_or(rest);
            let end = member_end(rest);
            if end == 0 {
                return None;
            }
            match &rest[..end] {
                "*" => steps.push(Step::Any),
                name => steps.push(Step::Member(name.replace("\\.", "."))),
            }
            rest = &rest[end..];
        }
        Some(Self(steps))
    }

    /// The value at the path, or the first of several, as upstream shows it; `None` when
    /// [`MAX_VALUES`] are visited before it.
    pub(crate) fn find<'a>(&self, object: &'a Object) -> Option<&'a Value> {
        let (first, rest) = self.0.split_first()?;
        let Step::Member(name) = first else {
            return None;
        };
        let mut left = MAX_VALUES;
        follow(object.get(name)?, rest, &mut left)
    }

    /// The member names of a path that has nothing else.
    pub(crate) fn members(&self) -> Option<Vec<String>> {
        let member = |step: &Step| match step {
            Step::Member(name) => Some(name.clone()),
            _ => None,
        };
        self.0.iter().map(member).collect()
    }
}

fn member_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut position = 0;
    while position < bytes.len() {
        match bytes[position] {
            b'\\' => position += 2,
            b'.' | b'[' => break,
            _ => position += 1,
        }
    }
    position.min(bytes.len())
}

fn bracket(text: &str) -> Option<Step> {
    if text == "*" {
        return Some(Step::Any);
    }
    if let Some(condition) = text.strip_prefix("?(") {
        let (left, right) = condition.trim_end_matches(')').split_once("==")?;
        let path = left
            .trim()
            .strip_prefix("@.")?
            .split('.')
            .map(str::to_owned)
            .collect();
        let value = right.trim().trim_matches(['"', '\'']);
        return Some(Step::Where(path, value.to_owned()));
    }
    if let Ok(position) = text.parse() {
        return Some(Step::Index(position));
    }
    Some(Step::Member(text.trim_matches(['"', '\'']).to_owned()))
}

fn follow<'a>(value: &'a Value, steps: &[Step], left: &mut usize) -> Option<&'a Value> {
    *left = left.checked_sub(1)?;
    let Some((step, rest)) = steps.split_first() else {
        return (!value.is_null()).then_some(value);
    };
    let fits = |element: &Value| match step {
        Step::Where(path, wanted) => {
            let found = path.iter().try_fold(element, |value, part| value.get(part));
            found.and_then(Value::as_str) == Some(wanted)
        }
        _ => true,
    };
    match step {
        Step::Member(name) => follow(value.get(name)?, rest, left),
        Step::Index(position) => follow(value.get(position)?, rest, left),
        Step::Any | Step::Where(..) => {
            for element in value.as_array()? {
                if !fits(element) {
                    *left = left.checked_sub(1)?;
                } else if let Some(found) = follow(element, rest, left) {
                    return Some(found);
                } else if *left == 0 {
                    return None;
                }
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_printer_columns_are_followed() {
        let Value::Object(object) = json!({
            "spec": {"size": 3, "a.b": "dotted", "list": [{"k": "x"}, {"k": "y"}]},
            "status": {"conditions": [
                {"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"},
            ]},
        }) else {
            unreachable!()
        };
        let find = |path: &str| JsonPath::parse(path).unwrap().find(&object).cloned();
        assert_eq!(find(".spec.size"), Some(json!(3)));
        assert_eq!(find(".spec.list[1].k"), Some(json!("y")));
        assert_eq!(find(".spec.list[*].k"), Some(json!("x")));
        assert_eq!(find(".spec.a\\.b"), Some(json!("dotted")));
        assert_eq!(
            find(".status.conditions[?(@.type==\"Ready\")].status"),
            Some(json!("True"))
        );
        assert_eq!(find(".status.absent"), None);
    }
}
