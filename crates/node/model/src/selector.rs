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
