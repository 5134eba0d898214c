//! CEL rules of a schema (`x-kubernetes-validations`).
//!
//! A definition whose rules could exceed the cost budget is refused; an object whose rules would
//! exceed it is refused without running them.

use kube_cel::{CompiledSchema, Validator, cel::Program};
use serde_json::{Value, json};

use crate::{
    cel::{self, Expression, Roots, Size},
    status::FieldError,
};

const RULES: &str = "x-kubernetes-validations";

/// Upstream's cost budgets: worst case of one rule, worst case of all rules of a schema, and cost of
/// all rules on one object.
const RULE_BUDGET: u64 = 10_000_000;
const SCHEMA_BUDGET: u64 = 100_000_000;
const OBJECT_BUDGET: u64 = 10_000_000;

/// Rules named when the whole schema exceeds its budget.
const MAX_NAMED_RULES: usize = 4;

const ADVICE: &str = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength \
                      where arrays, maps, and strings are declared)";

/// A rule and its position in the definition.
struct Site<'a> {
    field: String,
    rule: &'a Value,
    schema: &'a Value,
    /// Upper bound of evaluations per object.
    times: u64,
}

fn collect<'a>(schema: &'a Value, field: &str, times: u64, sites: &mut Vec<Site<'a>>) {
    let rules = schema.get(RULES).and_then(Value::as_array);
    for (position, rule) in rules.into_iter().flatten().enumerate() {
        sites.push(Site {
            field: format!("{field}.{RULES}[{position}]"),
            rule,
            schema,
            times,
        });
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        collect(
            property,
            &format!("{field}.properties[{name}]"),
            times,
            sites,
        );
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(name).filter(|inner| inner.is_object()) {
            let times = times.saturating_mul(Size::Schema(schema).length());
            collect(inner, &format!("{field}.{name}"), times, sites);
        }
    }
}

/// Rewrites the rules of a schema with [`cel::readable`].
fn make_readable(schema: &mut Value) {
    let rules = schema.get_mut(RULES).and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten() {
        for part in ["rule", "messageExpression"] {
            let Some(Value::String(text)) = rule.get_mut(part) else {
                continue;
            };
            if let Ok(readable) = cel::readable(text) {
                *text = readable;
            }
        }
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (_, property) in properties.into_iter().flatten() {
        make_readable(property);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(name).filter(|inner| inner.is_object()) {
            make_readable(inner);
        }
    }
}

/// Errors of the rules of the schema at a field of a definition.
pub(super) fn errors(schema: &Value, field: &str) -> Vec<FieldError> {
    let mut sites = Vec::new();
    collect(schema, field, 1, &mut sites);
    let (mut errors, mut costs) = (Vec::new(), Vec::new());
    for site in &sites {
        match site.cost() {
            Ok(cost) => {
                if cost > RULE_BUDGET {
                    let detail = format!("estimated rule cost {}", excess(cost, RULE_BUDGET));
                    errors.push(FieldError::forbidden(site.at("rule"), &detail));
                }
                costs.push((cost, site));
            }
            Err(error) => errors.push(error),
        }
    }
    let total = costs
        .iter()
        .map(|(cost, _)| *cost)
        .fold(0, u64::saturating_add);
    if total > SCHEMA_BUDGET {
        costs.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        errors.extend(costs.iter().take(MAX_NAMED_RULES).map(|(_, site)| {
            let detail = "contributed to estimated rule cost total exceeding cost limit for \
                          entire OpenAPIv3 schema";
            FieldError::forbidden(site.at("rule"), detail)
        }));
        let detail = format!(
            "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema {}",
            excess(total, SCHEMA_BUDGET)
        );
        errors.push(FieldError::forbidden(field, &detail));
    }
    errors
}

#[expect(clippy::cast_precision_loss, reason = "a factor for people to read")]
fn excess(cost: u64, budget: u64) -> String {
    let factor = match cost as f64 / budget as f64 {
        factor if factor > 100.0 => "more than 100x".to_owned(),
        factor if factor < 1.5 => format!("{factor:.6}x"),
        factor => format!("{factor:.1}x"),
    };
    format!("exceeds budget by factor of {factor} {ADVICE}")
}

impl Site<'_> {
    fn at(&self, part: &str) -> String {
        format!("{}.{part}", self.field)
    }

    fn text(&self, part: &str) -> &str {
        self.rule
            .get(part)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Worst-case cost per object.
    fn cost(&self) -> Result<u64, FieldError> {
        if self.text("rule").trim().is_empty() {
            return Err(FieldError::required(
                self.at("rule"),
                "rule is not specified",
            ));
        }
        let rule = self.part_cost("rule")?;
        let message = match self.text("messageExpression") {
            "" => 0,
            _ => self.part_cost("messageExpression")?,
        };
        Ok(rule.saturating_add(message).saturating_mul(self.times))
    }

    fn part_cost(&self, part: &str) -> Result<u64, FieldError> {
        let estimate = || {
            let roots = Roots::from(
                ["self", "oldSelf"].map(|name| (name.to_owned(), Size::Schema(self.schema))),
            );
            Expression::compile(self.text(part)).map(|compiled| compiled.estimate(&roots).cost)
        };
        let problem = match cel::with_deep_stack(estimate) {
            Ok(Ok(cost)) => return Ok(cost),
            Ok(Err(error)) => error.to_string(),
            Err(crashed) => crashed.to_string(),
        };
        let shown = json!({
            "Rule": self.text("rule"), "Message": self.text("message"),
            "MessageExpression": self.text("messageExpression"),
            "Reason": self.rule.get("reason"), "FieldPath": self.text("fieldPath"),
            "OptionalOldSelf": self.rule.get("optionalOldSelf"),
        });
        let detail = format!("compilation failed: {problem}");
        Err(FieldError::invalid(self.at(part), &shown, &detail))
    }
}

/// The compiled rules of one version.
#[derive(Debug)]
pub(super) struct CompiledRules(CompiledSchema);

impl CompiledRules {
    /// `None` when there are no rules, or when one cannot be compiled: such a definition is
    /// refused today, but an earlier version may have stored it.
    pub(super) fn compile(schema: &Value) -> Option<Self> {
        let mut sites = Vec::new();
        collect(schema, "", 1, &mut sites);
        if sites.is_empty() {
            return None;
        }
        if let Some(error) = sites.iter().find_map(|site| site.cost().err()) {
            tracing::warn!(
                field = error.field,
                error = error.message,
                "cannot compile CEL rules of a stored definition, not enforced"
            );
            return None;
        }
        let mut schema = schema.clone();
        make_readable(&mut schema);
        let compiled = cel::with_deep_stack(|| kube_cel::compile_schema(&schema)).ok()?;
        Some(Self(compiled))
    }

    /// Errors of the rules about an object.
    pub(super) fn errors(&self, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let check = || {
            let olds: Vec<&Value> = old.into_iter().collect();
            if cost(&self.0, value, &olds) > OBJECT_BUDGET {
                let detail = "validation failed due to running out of cost budget, no further \
                              validation rules will be run";
                return vec![FieldError::type_invalid("<nil>", "object", detail)];
            }
            match Validator::new().validate_compiled(&self.0, value, old) {
                Ok(()) => Vec::new(),
                Err(broken) => broken.as_slice().iter().map(complaint).collect(),
            }
        };
        cel::with_deep_stack(check)
            .unwrap_or_else(|crashed| vec![FieldError::rule("<nil>", &crashed.to_string())])
    }
}

fn complaint(error: &kube_cel::ValidationError) -> FieldError {
    let field = match error.field_path.as_str() {
        "" => "<nil>",
        path => path,
    };
    match error.reason.as_deref() {
        Some("FieldValueForbidden") => FieldError::forbidden(field, &error.message),
        Some("FieldValueRequired") => FieldError::required(field, &error.message),
        _ => FieldError::rule(field, &error.message),
    }
}

/// Upper bound of the cost of all rules on a value; `oldSelf` is any of `olds`.
fn cost(schema: &CompiledSchema, value: &Value, olds: &[&Value]) -> u64 {
    let roots = Roots::from([
        ("self".to_owned(), Size::of(value)),
        ("oldSelf".to_owned(), Size::Values(olds.to_vec())),
    ]);
    let program = |program: &Program| cel::cost_of(program, &roots);
    let own = schema.validations.iter().flatten().map(|rule| {
        let message = rule.message_program.as_ref().map_or(0, program);
        program(&rule.program).saturating_add(message)
    });
    let own = own.fold(0, u64::saturating_add);
    let inner = match value {
        Value::Object(members) => members
            .iter()
            .filter_map(|(name, member)| {
                let known = schema.properties.get(name);
                let inner = known.or(schema.additional_properties.as_deref())?;
                let olds: Vec<&Value> = olds.iter().filter_map(|old| old.get(name)).collect();
                Some(cost(inner, member, &olds))
            })
            .fold(0, u64::saturating_add),
        Value::Array(list) => {
            let elements = olds.iter().filter_map(|old| old.as_array()).flatten();
            let olds: Vec<&Value> = elements.collect();
            let items = schema.items.as_deref();
            items.map_or(0, |items| {
                list.iter()
                    .map(|element| cost(items, element, &olds))
                    .fold(0, u64::saturating_add)
            })
        }
        _ => 0,
    };
    own.saturating_add(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(list: &Value, rule: &str) -> Value {
        json!({"type": "object", "properties": {"spec": {
            "type": "object", "properties": {"l": list, "s": {"type": "string"}},
            RULES: [{"rule": rule}],
        }}})
    }

    /// kube-apiserver 1.36.4 accepts and refuses the same rules.
    #[test]
    fn rules_are_refused_for_their_cost_where_upstream_refuses_them() {
        let integers = json!({"type": "array", "items": {"type": "integer"}});
        let texts = json!({"type": "array", "items": {"type": "string"}});
        let of =
            |items: Value, most: u64| json!({"type": "array", "items": items, "maxItems": most});
        let text = |most: u64| json!({"type": "string", "maxLength": most});
        let accepted = [
            (integers.clone(), "self.l.all(a, a > 0)"),
            (texts.clone(), "self.l.all(a, a != '')"),
            (texts.clone(), "self.l.all(a, a.startsWith('x'))"),
            (of(text(64), 100), "self.l.all(a, self.l.all(b, a != b))"),
            (
                of(text(64), 200),
                "self.l.all(a, self.l.exists_one(b, a == b))",
            ),
            (
                of(json!({"type": "integer"}), 1000),
                "self.l.all(a, self.l.all(b, a != b))",
            ),
            (
                of(json!({"type": "integer"}), 1000),
                "self.l.map(a, a + 1).exists(b, b > 3)",
            ),
            (integers.clone(), "3 in self.l"),
            (integers.clone(), "self.l == oldSelf.l"),
            (integers.clone(), "self.s.matches('^x+$')"),
            (integers.clone(), "self.s.contains('abcdefghijklmnop')"),
            (integers.clone(), "self.s + self.s != 'x'"),
        ];
        for (list, rule) in accepted {
            assert_eq!(errors(&schema(&list, rule), "s"), [], "{rule}");
        }
        let refused = [
            (texts.clone(), "self.l.all(a, a.matches('^x+$'))"),
            (
                of(json!({"type": "string"}), 100),
                "self.l.all(a, self.l.all(b, a != b))",
            ),
            (
                of(json!({"type": "integer"}), 2000),
                "self.l.all(a, self.l.all(b, a != b))",
            ),
            (
                of(text(253), 500),
                "self.l.all(a, self.l.exists_one(b, a == b))",
            ),
        ];
        for (list, rule) in refused {
            let errors = errors(&schema(&list, rule), "s");
            assert!(
                errors[0].message.contains("exceeds budget by factor of"),
                "{rule}"
            );
        }
    }

    #[test]
    fn rules_are_not_run_on_an_object_too_large_for_them() {
        let list = json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1000});
        let rule = "self.l.all(a, self.l.all(b, a + b > 0 || a - b > 0 || a * b > 0))";
        let rules = CompiledRules::compile(&schema(&list, rule)).unwrap();
        let object = |size: usize| json!({"spec": {"l": vec![1; size]}});
        assert_eq!(rules.errors(&object(100), None), []);
        let errors = rules.errors(&object(1000), None);
        assert!(
            errors[0].message.contains("running out of cost budget"),
            "{errors:?}"
        );
    }
}
