//! Label and field selectors: parse, canonical text, match.
//!
//! Parsing follows the grammar and the error texts of the Kubernetes API server. The `Display` of
//! a selector is canonical: two selectors that differ only in order, white space or spelling of an
//! operator (`=` and `==`) print the same and are equal.

mod field;
mod label;
mod lexer;
pub mod syntax;

pub use field::{FieldOperator, FieldRequirement, FieldSelector, FieldSelectorError};
pub use label::{LabelSelector, LabelSelectorError, Operator, Requirement};

use std::fmt;

/// The terms of a selector, separated by commas.
fn write_terms(f: &mut fmt::Formatter<'_>, terms: &[impl fmt::Display]) -> fmt::Result {
    for (position, term) in terms.iter().enumerate() {
        let separator = if position > 0 { "," } else { "" };
        write!(f, "{separator}{term}")?;
    }
    Ok(())
}
