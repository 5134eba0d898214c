//! Worst-case cost of a CEL expression, in upstream's cost units.

use std::collections::HashMap;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, LiteralValue, operators,
};

use super::Size;

/// Sizes of the variables of an expression, by name; `variables.x` counts as a name.
pub(crate) type Roots<'a> = HashMap<String, Size<'a>>;

/// Upper bounds of cost, result size and depth of an expression.
#[derive(Debug, Clone)]
pub(crate) struct Estimate<'a> {
    pub(crate) cost: u64,
    pub(crate) size: Size<'a>,
    /// Depth of the syntax tree.
    pub(crate) depth: usize,
}

/// Nodes visited before the cost of an expression counts as infinite.
const MAX_VISITS: u64 = 1_000_000;

pub(super) fn estimate<'a>(expression: &Expr, roots: &Roots<'a>) -> Estimate<'a> {
    let mut walk = Walk {
        roots,
        loops: Vec::new(),
        depth: 0,
        deepest: 0,
        visits_left: MAX_VISITS,
    };
    let (cost, size) = walk.visit(expression);
    Estimate {
        cost: if walk.visits_left == 0 {
            u64::MAX
        } else {
            cost
        },
        size,
        depth: walk.deepest,
    }
}

struct Walk<'r, 'a> {
    roots: &'r Roots<'a>,
    /// Variables of the enclosing loops, innermost last.
    loops: Vec<(String, Size<'a>)>,
    depth: usize,
    deepest: usize,
    visits_left: u64,
}

type Visit<'a> = (u64, Size<'a>);

impl<'a> Walk<'_, 'a> {
    fn visit(&mut self, expression: &Expr) -> Visit<'a> {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        let (cost, size) = self.look(expression);
        self.depth -= 1;
        if let Size::Values(values) = &size {
            self.visits_left = self.visits_left.saturating_sub(values.len() as u64);
        }
        self.visits_left = self.visits_left.saturating_sub(1);
        if self.visits_left == 0 {
            return (u64::MAX, Size::SCALAR);
        }
        (cost, size)
    }

    fn look(&mut self, expression: &Expr) -> Visit<'a> {
        match expression {
            Expr::Literal(LiteralValue::String(text)) => {
                (0, Size::counted(text.inner().len() as u64))
            }
            Expr::Literal(LiteralValue::Bytes(bytes)) => {
                (0, Size::counted(bytes.inner().len() as u64))
            }
            Expr::Unspecified | Expr::Literal(_) => (0, Size::SCALAR),
            Expr::Ident(name) => (1, self.variable(name)),
            Expr::Select(select) => {
                if let Expr::Ident(base) = &select.operand.expr
                    && let Some(size) = self.roots.get(&format!("{base}.{}", select.field))
                {
                    return (2, size.clone());
                }
                let (cost, size) = self.visit(&select.operand.expr);
                (cost.saturating_add(1), size.member(&select.field))
            }
            Expr::List(list) => {
                self.collected(list.elements.len(), list.elements.iter().map(|e| &e.expr))
            }
            Expr::Map(map) => self.entries(&map.entries),
            Expr::Struct(record) => self.entries(&record.entries),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn variable(&self, name: &str) -> Size<'a> {
        let of_loop = self.loops.iter().rev().find(|(known, _)| known == name);
        of_loop
            .map(|(_, size)| size)
            .or_else(|| self.roots.get(name))
            .cloned()
            .unwrap_or(Size::SCALAR)
    }

    fn entries(&mut self, entries: &[IdedEntryExpr]) -> Visit<'a> {
        let parts = entries.iter().flat_map(|entry| match &entry.expr {
            EntryExpr::StructField(field) => vec![&field.value.expr],
            EntryExpr::MapEntry(entry) => vec![&entry.key.expr, &entry.value.expr],
        });
        self.collected(entries.len(), parts)
    }

    /// A list or map literal.
    fn collected<'e>(&mut self, length: usize, parts: impl Iterator<Item = &'e Expr>) -> Visit<'a> {
        let (mut cost, mut weight) = (1_u64, 1_u64);
        for part in parts {
            let (part_cost, size) = self.visit(part);
            cost = cost.saturating_add(part_cost);
            weight = weight.saturating_add(size.weight());
        }
        let length = length as u64;
        (cost, Size::Counted { length, weight })
    }

    fn comprehension(&mut self, loops: &ComprehensionExpr) -> Visit<'a> {
        let (range_cost, range) = self.visit(&loops.iter_range.expr);
        let (init_cost, init) = self.visit(&loops.accu_init.expr);
        let rounds = range.length();
        let before = self.loops.len();
        self.loops.push((loops.accu_var.clone(), init.clone()));
        self.loops.push((loops.iter_var.clone(), range.looped()));
        if let Some(second) = &loops.iter_var2 {
            self.loops.push((second.clone(), range.element()));
        }
        let (condition_cost, _) = self.visit(&loops.loop_cond.expr);
        let (step_cost, step) = self.visit(&loops.loop_step.expr);
        self.loops.truncate(before);
        // Macros use their accumulator once per step, so it grows by at most the result of a step.
        let gathered = Size::Counted {
            length: init
                .length()
                .saturating_add(rounds.saturating_mul(step.length())),
            weight: init
                .weight()
                .saturating_add(rounds.saturating_mul(step.weight())),
        };
        self.loops.push((loops.accu_var.clone(), gathered));
        let (result_cost, result) = self.visit(&loops.result.expr);
        self.loops.truncate(before);
        let cost = rounds
            .saturating_mul(condition_cost.saturating_add(step_cost))
            .saturating_add(range_cost)
            .saturating_add(init_cost)
            .saturating_add(result_cost);
        (cost, result)
    }

    fn call(&mut self, call: &CallExpr) -> Visit<'a> {
        let operands = call.target.iter().map(|target| &target.expr);
        let operands = operands.chain(call.args.iter().map(|argument| &argument.expr));
        let mut sizes = Vec::new();
        let mut cost = 0_u64;
        for operand in operands {
            let (operand_cost, size) = self.visit(operand);
            cost = cost.saturating_add(operand_cost);
            sizes.push(size);
        }
        let own = own_cost(&call.func_name, &sizes);
        (cost.saturating_add(own), result(&call.func_name, sizes))
    }
}

/// Cost of reading `length` bytes: a tenth, at least 1.
fn traversal(length: u64) -> u64 {
    length.div_ceil(10).max(1)
}

/// Cost of a function call without its operands.
fn own_cost(function: &str, sizes: &[Size<'_>]) -> u64 {
    let length = |position: usize| sizes.get(position).map_or(0, Size::length);
    let total = || sizes.iter().map(Size::weight).fold(0, u64::saturating_add);
    match function {
        operators::LOGICAL_AND
        | operators::LOGICAL_OR
        | operators::CONDITIONAL
        | operators::NOT_STRICTLY_FALSE => 0,
        operators::EQUALS
        | operators::NOT_EQUALS
        | operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS => {
            let weights = sizes.iter().map(Size::weight);
            traversal(weights.min().unwrap_or(0))
        }
        operators::ADD if sizes.iter().any(Size::is_text) => traversal(total()),
        operators::ADD => length(0).saturating_add(length(1)).max(1),
        operators::IN => length(1).saturating_mul(traversal(length(0))).max(1),
        "contains" => traversal(length(0)).saturating_mul(traversal(length(1))),
        "matches" | "find" | "findAll" => {
            traversal(length(0)).saturating_mul(length(1).div_ceil(4).max(1))
        }
        "startsWith" | "endsWith" => traversal(length(1)),
        "size" | operators::INDEX | operators::LOGICAL_NOT | operators::NEGATE => 1,
        _ if sizes.len() > 1 => sizes.iter().fold(1, |cost: u64, size| {
            cost.saturating_mul(traversal(size.weight()))
        }),
        _ => traversal(total()),
    }
}

/// Size of a function's result.
fn result<'a>(function: &str, mut sizes: Vec<Size<'a>>) -> Size<'a> {
    let weights = || sizes.iter().map(Size::weight);
    match function {
        operators::CONDITIONAL if sizes.len() == 3 => {
            let other = sizes.pop().unwrap_or(Size::SCALAR);
            sizes.pop().unwrap_or(Size::SCALAR).or(other)
        }
        operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT => {
            sizes.first().map_or(Size::SCALAR, Size::element)
        }
        operators::ADD => Size::Counted {
            length: sizes.iter().map(Size::length).fold(0, u64::saturating_add),
            weight: weights().fold(0, u64::saturating_add),
        },
        _ if function.starts_with(['_', '!', '-', '@']) => Size::SCALAR,
        "size" | "contains" | "matches" | "startsWith" | "endsWith" => Size::SCALAR,
        // Each byte of one operand can be replaced by, or be followed by, all of another.
        "replace" | "join" | "format" => Size::counted(weights().fold(1, |all, weight| {
            all.saturating_mul(weight.saturating_add(1))
        })),
        // Encodings less than double the length of a text; numbers become texts of some bytes.
        _ => Size::counted(
            weights()
                .fold(0, u64::saturating_add)
                .saturating_mul(2)
                .saturating_add(32),
        ),
    }
}
