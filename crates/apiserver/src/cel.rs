//! CEL expressions of definitions and policies: compiled within limits, run on a deep stack.
//!
//! The interpreter recurses with the expression and cannot be cancelled. So an expression that could
//! overflow the stack or exceed the cost limit is refused before it runs.

mod cost;
mod size;
mod unary;
mod variables;

use std::{collections::HashMap, sync::Arc};

use kube_cel::{
    KubeCelExt as _,
    cel::{Context, ExecutionError, Program, Value as CelValue, objects::Key},
};
use serde_json::Value;
use thiserror::Error;

pub(crate) use cost::{Estimate, Roots};
pub(crate) use size::Size;
pub(crate) use variables::{VARIABLES, VariableUse};

/// Limit of the length of an expression, in bytes.
const MAX_LENGTH: usize = 64 * 1024;
/// Limit of nested brackets.
const MAX_NESTING: usize = 96;
/// Limit of the depth of the syntax tree.
const MAX_DEPTH: usize = 1000;
/// Upstream's cost limit of one expression.
pub(crate) const CALL_LIMIT: u64 = 1_000_000;
/// Stack size in bytes: enough for [`MAX_NESTING`] in the parser and [`MAX_DEPTH`] in the
/// interpreter of an unoptimised build.
const STACK: usize = 256 * 1024 * 1024;

/// An expression that is refused at compilation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ExpressionError {
    #[error("expression size exceeds limit: size: {0}, limit {MAX_LENGTH}")]
    TooLong(usize),
    #[error("expression recursion limit exceeded: {0}")]
    TooDeep(usize),
    #[error("{0}")]
    Syntax(String),
}

/// An expression that failed to evaluate.
#[derive(Debug, Clone, PartialEq, Error)]
pub(crate) enum RunError {
    #[error("operation cancelled: actual cost limit exceeded")]
    TooCostly,
    #[error("no such key: {0}")]
    NoSuchKey(Arc<String>),
    #[error(
        "validation failed due to running out of cost budget, no further validation rules will be \
         run"
    )]
    OutOfBudget,
    #[error("{0}")]
    Failed(String),
}

impl From<ExecutionError> for RunError {
    fn from(error: ExecutionError) -> Self {
        match error {
            ExecutionError::NoSuchKey(key) => Self::NoSuchKey(key),
            // The message may contain the whole object.
            other => Self::Failed(crate::encoding::paths::shortened(other.to_string())),
        }
    }
}

/// The thread with the deep stack panicked or did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the CEL interpreter failed")]
pub(crate) struct Crashed;

/// Runs recursive work on a thread with [`STACK`] bytes; a panic becomes an error.
pub(crate) fn with_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Crashed> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new()
            .name("expressions".to_owned())
            .stack_size(STACK);
        let thread = builder.spawn_scoped(scope, work).map_err(|_| Crashed)?;
        thread.join().map_err(|_| Crashed)
    })
}

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) text: String,
    program: Program,
    pub(crate) variables: VariableUse,
}

impl Expression {
    /// Call it in [`with_deep_stack`].
    pub(crate) fn compile(text: &str) -> Result<Self, ExpressionError> {
        let program = Program::compile(&readable(text)?)
            .map_err(|error| ExpressionError::Syntax(error.to_string()))?;
        let tree = &program.expression().expr;
        if cost::estimate(tree, &Roots::new()).depth > MAX_DEPTH {
            return Err(ExpressionError::TooDeep(MAX_DEPTH));
        }
        Ok(Self {
            text: text.to_owned(),
            variables: VariableUse::of(tree),
            program,
        })
    }

    /// Upper bounds of cost and result size, given the sizes of the variables.
    pub(crate) fn estimate<'a>(&self, roots: &Roots<'a>) -> Estimate<'a> {
        cost::estimate(&self.program.expression().expr, roots)
    }

    /// Evaluates the expression unless its estimate exceeds [`CALL_LIMIT`]; call it in
    /// [`with_deep_stack`].
    pub(crate) fn run(
        &self,
        context: &Context<'_>,
        roots: &Roots<'_>,
    ) -> Result<CelValue, RunError> {
        if self.estimate(roots).cost > CALL_LIMIT {
            return Err(RunError::TooCostly);
        }
        Ok(self.program.execute(context)?)
    }
}

/// Upper bound of the cost of a program that `kube_cel` compiled.
pub(crate) fn cost_of(program: &Program, roots: &Roots<'_>) -> u64 {
    cost::estimate(&program.expression().expr, roots).cost
}

/// Rewrites an expression into a form that the parser handles in linear time; refuses one that is
/// too long or too deep.
pub(crate) fn readable(text: &str) -> Result<String, ExpressionError> {
    check_text(text)?;
    Ok(unary::shorten(text))
}

/// Checks length and nesting before the parser runs.
fn check_text(text: &str) -> Result<(), ExpressionError> {
    if text.len() > MAX_LENGTH {
        return Err(ExpressionError::TooLong(text.len()));
    }
    let mut open = 0_usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > MAX_NESTING {
            return Err(ExpressionError::TooDeep(MAX_NESTING));
        }
    }
    Ok(())
}

/// A context with the Kubernetes functions and these variables.
pub(crate) fn context(variables: &[(&str, &Value)]) -> Context<'static> {
    let mut context = Context::default().with_all();
    for (name, value) in variables {
        context.add_variable_from_value(*name, to_cel(value));
    }
    context
}

fn to_cel(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(flag) => CelValue::Bool(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => CelValue::Int(number),
            (None, Some(number)) => CelValue::Float(number),
            (None, None) => CelValue::Null,
        },
        Value::String(text) => CelValue::String(Arc::new(text.clone())),
        Value::Array(list) => CelValue::List(Arc::new(list.iter().map(to_cel).collect())),
        Value::Object(members) => {
            let members: HashMap<Key, CelValue> = members
                .iter()
                .map(|(name, value)| (Key::from(name.as_str()), to_cel(value)))
                .collect();
            CelValue::Map(members.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compile(text: &str) -> Result<Expression, ExpressionError> {
        with_deep_stack(|| Expression::compile(text)).unwrap()
    }

    fn run(text: &str, object: &Value) -> Result<CelValue, RunError> {
        let expression = compile(text).unwrap();
        let roots = Roots::from([("object".to_owned(), Size::of(object))]);
        with_deep_stack(|| expression.run(&context(&[("object", object)]), &roots)).unwrap()
    }

    #[test]
    fn values_of_an_object_are_those_of_its_text() {
        let object = json!({"n": 3, "f": 1.5, "s": "x", "l": [1, 2], "none": null, "b": true});
        let text = "object.n == 3 && object.f > 1.0 && object.s == 'x' && object.l.size() == 2 \
                    && object.none == null && object.b";
        assert_eq!(run(text, &object), Ok(CelValue::Bool(true)));
        let missing = run("object.nope == 1", &object).unwrap_err();
        assert_eq!(missing.to_string(), "no such key: nope");
    }

    #[test]
    fn no_expression_is_deep_enough_to_overflow() {
        for part in ["(", "[", "{1: ", "size("] {
            let text = part.repeat(MAX_NESTING + 1);
            let limit = MAX_NESTING;
            assert_eq!(compile(&text).unwrap_err(), ExpressionError::TooDeep(limit));
            // The deepest allowed nesting: any result is fine, a stack overflow is not.
            let _ = compile(&part.repeat(MAX_NESTING));
        }
        for part in [".a", " + 1"] {
            let text = format!("object{}", part.repeat(MAX_LENGTH / part.len() - 8));
            assert_eq!(
                compile(&text).unwrap_err(),
                ExpressionError::TooDeep(MAX_DEPTH)
            );
            let text = format!("object{} == 1", part.repeat(MAX_DEPTH - 8));
            assert!(run(&text, &json!({})).is_err());
        }
        for part in ["!", "-", "true && ", "true ? true : "] {
            let _ = with_deep_stack(|| Expression::compile(&(part.repeat(2000) + "true")));
        }
        let nested = format!("{}true{}", "!!(".repeat(90), ")".repeat(90));
        assert_eq!(run(&nested, &json!({})), Ok(CelValue::Bool(true)));
        let long = "a".repeat(MAX_LENGTH + 1);
        assert!(matches!(compile(&long), Err(ExpressionError::TooLong(_))));
        assert!(matches!(
            compile("object.a >"),
            Err(ExpressionError::Syntax(_))
        ));
    }

    #[test]
    fn reading_an_expression_takes_linear_time() {
        let seconds = |part: &str, last: &str, bytes: usize| {
            let text = part.repeat(bytes / part.len()) + last;
            let read = || {
                let before = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                // The parser may panic, which costs time as well.
                let _ = std::panic::catch_unwind(|| Expression::compile(&text).map(drop));
                let after = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                let nanoseconds = (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec;
                nanoseconds - before.tv_nsec
            };
            let best = (0..3).map(|_| with_deep_stack(read).unwrap()).min();
            best.unwrap()
        };
        for (part, last) in [
            ("!", "true"),
            ("! ", "true"),
            ("-", "1"),
            ("1 - - ", "1"),
            ("true && ", "true"),
            ("1 + ", "1"),
            ("true ? true : ", "true"),
            ("a.", "a"),
            ("'a', ", ""),
            ("x < ", "x"),
        ] {
            let (small, large) = (seconds(part, last, 4000), seconds(part, last, 16_000));
            assert!(
                large < small.max(1_000_000) * 8,
                "{part:?}: {small} ns, then {large} ns"
            );
        }
    }

    #[test]
    fn an_expression_over_its_cost_limit_is_not_run() {
        let numbers = json!({"l": vec![1; 200], "one": [1]});
        let nested = |depth: usize, list: &str| {
            let body = "v > 0".to_owned();
            (0..depth).fold(body, |body, _| format!("{list}.all(v, {body})"))
        };
        let costly = run(&nested(3, "object.l"), &numbers).unwrap_err();
        assert_eq!(costly, RunError::TooCostly);
        for cheap in [nested(2, "object.l"), nested(5, "object.one")] {
            assert_eq!(run(&cheap, &numbers), Ok(CelValue::Bool(true)), "{cheap}");
        }
        // Ten doublings of a list that the expression builds itself.
        let doubling = format!(
            "[object.l]{}.all(a, a.all(b, a.all(c, true)))",
            ".map(a, a + a)".repeat(10)
        );
        assert_eq!(run(&doubling, &numbers).unwrap_err(), RunError::TooCostly);
    }
}
