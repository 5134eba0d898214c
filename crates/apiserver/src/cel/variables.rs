//! Finds the policy variables that an expression uses.

use std::collections::HashSet;

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedEntryExpr};

/// The object whose members are the variables of a policy.
pub(crate) const VARIABLES: &str = "variables";

/// The members of `variables` that an expression can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VariableUse {
    /// Only members selected by name.
    Named(HashSet<String>),
    /// Any member: the expression uses `variables` other than by selecting a member.
    All,
}

impl VariableUse {
    /// Recurses with the expression; call it in [`super::with_deep_stack`].
    pub(super) fn of(expression: &Expr) -> Self {
        let mut names = HashSet::new();
        if visit(expression, &mut names) {
            Self::Named(names)
        } else {
            Self::All
        }
    }
}

/// Collects names; false when `variables` is used other than by selecting a member.
fn visit(expression: &Expr, names: &mut HashSet<String>) -> bool {
    match expression {
        Expr::Unspecified | Expr::Literal(_) => true,
        Expr::Ident(name) => name != VARIABLES,
        Expr::Select(select) => match &select.operand.expr {
            Expr::Ident(name) if name == VARIABLES => {
                names.insert(select.field.clone());
                true
            }
            operand => visit(operand, names),
        },
        Expr::Call(call) => {
            let target = call.target.iter().map(|target| &target.expr);
            let mut parts = target.chain(call.args.iter().map(|argument| &argument.expr));
            parts.all(|part| visit(part, names))
        }
        Expr::List(list) => list.elements.iter().all(|part| visit(&part.expr, names)),
        Expr::Map(map) => visit_entries(&map.entries, names),
        Expr::Struct(record) => visit_entries(&record.entries, names),
        Expr::Comprehension(comprehension) => [
            &comprehension.iter_range,
            &comprehension.accu_init,
            &comprehension.loop_cond,
            &comprehension.loop_step,
            &comprehension.result,
        ]
        .iter()
        .all(|part| visit(&part.expr, names)),
    }
}

fn visit_entries(entries: &[IdedEntryExpr], names: &mut HashSet<String>) -> bool {
    entries.iter().all(|entry| match &entry.expr {
        EntryExpr::StructField(field) => visit(&field.value.expr, names),
        EntryExpr::MapEntry(entry) => {
            visit(&entry.key.expr, names) && visit(&entry.value.expr, names)
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::cel::{Expression, VariableUse, with_deep_stack};

    #[test]
    fn an_expression_uses_the_variables_it_names_wherever_it_names_them() {
        for (text, used) in [
            ("object.a == 1", Some(&[][..])),
            ("variables.a + variables.b.c == 1", Some(&["a", "b"])),
            ("has(variables.a)", Some(&["a"])),
            ("[variables.a, {'k': variables.b}]", Some(&["a", "b"])),
            ("object.l.all(v, v == variables.a)", Some(&["a"])),
            ("variables.a.exists(v, v > 0)", Some(&["a"])),
            (
                "size(variables.a) > 0 ? variables.b : 'c'",
                Some(&["a", "b"]),
            ),
            ("variables.a == 1 && 'b' in variables", None),
            ("variables['a'] == 1", None),
        ] {
            let expression = with_deep_stack(|| Expression::compile(text)).unwrap();
            let wanted = used.map_or(VariableUse::All, |names| {
                VariableUse::Named(names.iter().map(|name| (*name).to_owned()).collect())
            });
            assert_eq!(expression.unwrap().variables, wanted, "{text}");
        }
    }
}
